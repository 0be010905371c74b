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
    if (pool && p_.listed != nullptr) {
      for_pieces(p_.num_listed, [&](std::int64_t i, int worker) {
        if (is_listed(p_, i)) pool_and_store(p_.listed[i], worker);
      });
      pool = false;
    } else if (pool && rule_.order == StepOrder::kPoolThenSave) {
      for_pieces(p_.tokens, [&](std::int64_t token, int worker) { pool_and_store(token, worker); });
      pool = false;
    }
    for_pieces(p_.tokens, [&](std::int64_t token, int worker) {
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
  void for_pieces(std::int64_t count, const Body& body) const {
    const std::int64_t piece = std::clamp<std::int64_t>(count / (4 * std::int64_t{workers_}), 1, kMaxPiece);
    core::parallel_for(count, piece, workers_, [&](std::int64_t begin, std::int64_t end, int worker) {
      for (std::int64_t i = begin; i < end; ++i) body(i, worker);
      if (rule_.store == StateStore::kStreamed) finish_streaming();
    });
  }

  // The entry that the token completes and has a slot for, if there is one.
  void pool_and_store(std::int64_t token, int worker) const {
    const TokenPlace place = place_token(p_, token);
    if (!place.valid || !completes_entry(p_, place.position) || !writes_entry(p_, p_.kv_slots[token], place.position))
      return;
    float* entry = entry_of(worker);
    pool_channels(find_window(p_, token, place, rows_of(worker)), p_.head_dim, entry + p_.head_dim, entry);
    finish_entry(p_, group_of(p_, place.position), p_.kv_slots[token], entry);
  }

  void save(std::int64_t token) const {
    const TokenPlace place = place_token(p_, token);
    if (!place.valid) return;
    std::byte* row = find_save_row(p_, place, token, save_slot(p_, token));
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
