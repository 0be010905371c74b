// One step of the compressor on the CPU.
// Order:   pooling reads rows of earlier steps from the state. In a ring, saving token i replaces the row of position
//          i - block_size. Entries up to i do not need it once they are pooled, but the thread that pools one may be
//          behind: a ring is pooled whole before anything is saved. In a paged state the rows read belong to positions
//          below the request's first of this step and the rows written to positions from there on, so they never meet,
//          whichever thread is where: each piece of tokens is pooled and saved at once, while its inputs are in L2.
// Threads: share pieces of tokens. That does not show in a result: an entry is a function of its rows alone. Sharing
//          the channels of one C128 entry (27 us) between two threads did not pay: waking the second takes as long as
//          it saves.

#include "compressor/cpu/compress_cpu.hpp"

#include <algorithm>

#include "compressor/cpu/entry.hpp"
#include "compressor/cpu/pool.hpp"
#include "compressor/rules.hpp"
#include "core/parallel.hpp"

namespace tamis::compressor {
namespace {

// Tokens of a piece: their inputs (C4 main, fp32: 16 KiB each with gates) stay in a 1 MiB L2 between pooling and
// saving. Small steps are cut finer so that every worker gets some.
constexpr std::int64_t kMaxPiece = 32;

std::size_t align64(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

class Step {
 public:
  Step(const CompressorParams& params, int workers, std::byte* workspace)
      : p_(params),
        workers_(workers),
        workspace_(workspace),
        scratch_bytes_(worker_scratch_bytes(params.window(), params.head_dim)),
        rule_(choose_compressor_rule(params.state_ring != nullptr,
                                     params.tokens * 2 * params.width() * dtype_bytes(params.state_dtype))) {}

  void run(bool pool) const {
    if (pool && rule_.order == StepOrder::kPoolThenSave) {
      for_pieces([&](std::int64_t token, int worker) { pool_and_store(token, worker); });
      pool = false;
    }
    for_pieces([&](std::int64_t token, int worker) {
      if (pool) pool_and_store(token, worker);
      save(token);
    });
  }

 private:
  PoolRow* rows_of(int worker) const {
    return reinterpret_cast<PoolRow*>(workspace_ + static_cast<std::size_t>(worker) * scratch_bytes_);
  }
  // d numbers of an entry, then 2 d of scratch for pooling.
  float* entry_of(int worker) const {
    return reinterpret_cast<float*>(workspace_ + static_cast<std::size_t>(worker) * scratch_bytes_ +
                                    align64(static_cast<std::size_t>(p_.window()) * sizeof(PoolRow)));
  }

  template <typename Body>
  void for_pieces(const Body& body) const {
    const std::int64_t piece = std::clamp<std::int64_t>(p_.tokens / (4 * std::int64_t{workers_}), 1, kMaxPiece);
    core::parallel_for(p_.tokens, piece, workers_, [&](std::int64_t begin, std::int64_t end, int worker) {
      for (std::int64_t token = begin; token < end; ++token) body(token, worker);
      if (rule_.store == StateStore::kStreamed) finish_streaming();
    });
  }

  // True if the token writes an entry; then `place` says where it stands.
  bool find_entry(std::int64_t token, TokenPlace& place) const {
    const std::int64_t slot = p_.kv_slots[token];
    if (slot < 0 || slot >= p_.cache.num_slots()) return false;
    place = place_token(p_, token);
    return place.valid && completes_entry(p_, place.position) &&
           place.position - (p_.ratio - 1) < p_.max_positions;  // the entry's own position has a row in cos_sin
  }

  // Channels of a row that count: half A of the group before, half B of the own group; without overlap there is one
  // half.
  std::int64_t column_of(std::int64_t position, std::int64_t group) const {
    return p_.coff == 2 && position >= group ? p_.head_dim : 0;
  }

  // Rows are found from the last one down: tokens of this step as far as they go, stepping over padding, then state.
  PoolWindow find_rows(std::int64_t token, const TokenPlace& place, PoolRow* rows) const {
    const std::int64_t group = place.position - (p_.ratio - 1);
    const std::int64_t first = std::max<std::int64_t>(0, group - (p_.coff - 1) * p_.ratio);
    const std::int64_t state_bytes = dtype_bytes(p_.state_dtype);
    const std::int64_t input_bytes = dtype_bytes(p_.input_dtype);
    PoolRow* const end = rows + (place.position - first + 1);
    PoolRow* row = end;
    std::int64_t t = place.position;
    for (std::int64_t i = token; t >= first && i >= 0; i = find_token_before(p_, place, i, --t)) {
      const std::int64_t column = column_of(t, group);
      *--row = {p_.kv + (i * p_.kv_stride + column) * input_bytes,
                p_.gate + (i * p_.gate_stride + column) * input_bytes,
                p_.ape + (t % p_.ratio) * p_.ape_stride + column};
    }
    PoolRow* const inputs = row;
    for (; t >= first; --t) {
      const std::byte* found = find_state_row(p_, place.request, t);
      if (found == nullptr) continue;
      const std::int64_t column = column_of(t, group);
      *--row = {found + column * state_bytes, found + (p_.width() + column) * state_bytes, nullptr};
    }
    return {row, inputs - row, end - row, p_.state_dtype, p_.input_dtype};
  }

  void pool_and_store(std::int64_t token, int worker) const {
    TokenPlace place;
    if (!find_entry(token, place)) return;
    float* entry = entry_of(worker);
    pool_channels(find_rows(token, place, rows_of(worker)), p_.head_dim, entry + p_.head_dim, entry);
    finish_entry(p_, place.position - (p_.ratio - 1), p_.kv_slots[token], entry);
  }

  void save(std::int64_t token) const {
    const TokenPlace place = place_token(p_, token);
    if (!place.valid) return;
    std::byte* row = find_save_row(p_, place, token);
    if (row == nullptr) return;
    const std::int64_t input_bytes = dtype_bytes(p_.input_dtype);
    save_row({p_.kv + token * p_.kv_stride * input_bytes, p_.gate + token * p_.gate_stride * input_bytes,
              p_.ape + place.position % p_.ratio * p_.ape_stride, row, p_.width(), p_.input_dtype, p_.state_dtype,
              rule_.store == StateStore::kStreamed});
  }

  const CompressorParams& p_;
  int workers_;
  std::byte* workspace_;
  std::size_t scratch_bytes_;
  const CompressorRule& rule_;
};

}  // namespace

std::size_t worker_scratch_bytes(std::int64_t window, std::int64_t head_dim) {
  // Rows, the entry with its scratch, and a pair of cache lines between workers.
  return align64(static_cast<std::size_t>(window) * sizeof(PoolRow)) +
         align64(3 * static_cast<std::size_t>(head_dim) * sizeof(float)) + 128;
}

void compress_cpu(const CompressorParams& params, CompressPlan plan, int workers, std::byte* workspace) {
  Step(params, workers, workspace).run(plan != CompressPlan::kNone);
}

}  // namespace tamis::compressor
