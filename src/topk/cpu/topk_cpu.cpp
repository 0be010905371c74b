// The three CPU algorithms around the candidate set, and how they spread over threads.
//
// Work split: rows; when there are fewer rows than workers, also segments of a row. A segment's survivors are a
// superset
//             of the row's winners inside it, so the merge is exact and no result depends on the split.
// Sync:       segments meet only at the end of a parallel loop.
// Definition: topk/reference.hpp.

#include "topk/cpu/topk_cpu.hpp"

#include <tbb/info.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "core/float_formats.hpp"
#include "core/parallel.hpp"
#include "topk/cpu/candidates.hpp"
#include "topk/cpu/ordering.hpp"
#include "topk/cpu/row_output.hpp"

namespace tamis::topk_cpu {
namespace {

// A segment shorter than this costs more in hand-over (some microseconds) than its scan.
constexpr std::int64_t kMinSegment = 32768;
// Rows are handed out so that a piece holds about this many scores.
constexpr std::int64_t kScoresPerPiece = 16384;

constexpr std::size_t round_up_64(std::size_t n) { return (n + 63) / 64 * 64; }

struct Row {
  const char* window = nullptr;  // first score of the window
  std::int64_t count = 0;        // positions in the window
};

std::uint32_t inf_bits(DType dtype) { return dtype == DType::kFloat16 ? kInfBits16 : kInfBits32; }

Row row_window(const TopkParams& p, std::int64_t r) {
  std::int64_t start = 0, end = p.width;
  if (p.row_starts != nullptr) start = std::clamp<std::int64_t>(load_at<std::int32_t>(p.row_starts, r), 0, p.width);
  if (p.row_ends != nullptr) end = std::min<std::int64_t>(load_at<std::int32_t>(p.row_ends, r), p.width);
  end = std::max(end, start);
  return {static_cast<const char*>(p.scores) + (r * p.row_stride + start) * dtype_bytes(p.dtype), end - start};
}

std::uint32_t bits_at(const TopkParams& p, const Row& row, std::int64_t position) {
  if (p.dtype == DType::kFloat32) return load_at<std::uint32_t>(row.window, position);
  return static_cast<std::uint32_t>(load_at<std::uint16_t>(row.window, position)) << 16;
}

RowMap row_map(const TopkParams& p, std::int64_t r) {
  RowMap map;
  map.mapping = p.mapping;
  if (p.mapping == TopkMapping::kRagged) {
    map.ragged_offset = p.ragged_dtype == DType::kInt64 ? load_at<std::int64_t>(p.ragged_offsets, r)
                                                        : load_at<std::int32_t>(p.ragged_offsets, r);
  }
  if (p.mapping == TopkMapping::kPageTable) {
    const std::int64_t table = p.row_to_table != nullptr ? load_at<std::int32_t>(p.row_to_table, r) : r;
    if (table >= 0 && table < p.tables) {
      map.pages = static_cast<const char*>(p.page_table) + table * p.page_table_stride * dtype_bytes(DType::kInt32);
    }
    map.max_pages = p.max_pages;
    map.page_size = p.page_size;
    if (p.page_starts != nullptr) map.page_start = load_at<std::int32_t>(p.page_starts, r);
  }
  return map;
}

// Copies the scores of the winners, then quiet NaN.
template <typename T>
void write_values(void* out, const Row& row, const std::uint32_t* positions, std::int64_t num_winners, std::int64_t k,
                  T quiet_nan) {
  for (std::int64_t i = 0; i < num_winners; ++i) {
    const auto position = positions != nullptr ? static_cast<std::int64_t>(positions[i]) : i;
    store_at<T>(out, i, load_at<T>(row.window, position));
  }
  for (std::int64_t i = num_winners; i < k; ++i) store_at<T>(out, i, quiet_nan);
}

TopkCertificate make_certificate(const TopkParams& p, const Row& row, const std::uint32_t* positions,
                                 std::int64_t num_winners) {
  TopkCertificate certificate{core::fp16_to_float(0x7E00), 0, 0, 0};
  if (num_winners == 0) return certificate;
  const std::uint32_t inf = inf_bits(p.dtype);
  std::int32_t last = std::numeric_limits<std::int32_t>::max();
  std::int32_t won = 0;
  for (std::int64_t i = 0; i < num_winners; ++i) {
    const auto position = positions != nullptr ? static_cast<std::int64_t>(positions[i]) : i;
    const std::int32_t key = key_of_bits(bits_at(p, row, position), inf);
    won = key < last ? 1 : won + (key == last ? 1 : 0);
    last = std::min(last, key);
  }
  const std::uint32_t bits = bits_of_key(last, inf);
  certificate.threshold = p.dtype == DType::kFloat16 ? core::fp16_to_float(static_cast<std::uint16_t>(bits >> 16))
                                                     : std::bit_cast<float>(bits);
  certificate.num_equal_won = won;
  certificate.num_above = static_cast<std::int32_t>(num_winners) - won;
  certificate.num_equal =
      static_cast<std::int32_t>(p.dtype == DType::kFloat32 ? count_key_32(row.window, row.count, last, inf)
                                                           : count_key_16(row.window, row.count, last, inf));
  return certificate;
}

// Writes everything about row r. positions = nullptr stands for 0, 1, 2, ...
void write_row(const TopkParams& p, std::int64_t r, const Row& row, const std::uint32_t* positions,
               std::int64_t num_winners) {
  void* indices = static_cast<char*>(p.indices) + r * p.indices_stride * dtype_bytes(p.index_dtype);
  write_row_indices(p.index_dtype, indices, positions, num_winners, p.k, row_map(p, r));
  if (p.values != nullptr) {
    void* values = static_cast<char*>(p.values) + r * p.values_stride * dtype_bytes(p.dtype);
    switch (p.dtype) {
      case DType::kFloat32: write_values<std::uint32_t>(values, row, positions, num_winners, p.k, 0x7FC00000U); break;
      case DType::kBFloat16: write_values<std::uint16_t>(values, row, positions, num_winners, p.k, 0x7FC0); break;
      default: write_values<std::uint16_t>(values, row, positions, num_winners, p.k, 0x7E00); break;
    }
  }
  if (p.certificate != nullptr) {
    const TopkCertificate certificate = make_certificate(p, row, positions, num_winners);
    void* out = static_cast<char*>(p.certificate) + r * p.certificate_stride * dtype_bytes(DType::kInt32);
    std::memcpy(out, &certificate, sizeof(certificate));
  }
}

void offer(const TopkParams& p, Candidates& c, const Row& row, std::int64_t begin, std::int64_t count) {
  const char* scores = row.window + begin * dtype_bytes(p.dtype);
  if (p.dtype == DType::kFloat32) feed_32(c, scores, count, static_cast<std::uint32_t>(begin));
  else feed_16(c, scores, count, static_cast<std::uint32_t>(begin));
}

void sample(const TopkParams& p, Candidates& c, const Row& row, std::int64_t widening) {
  if (p.dtype == DType::kFloat32) sample_threshold_32(c, row.window, row.count, widening);
  else sample_threshold_16(c, row.window, row.count, widening);
}

// Fills the set with a row. A sampled threshold that turns out too high is lowered and the row offered again; in the
// end there is none, so this terminates.
void offer_row(const TopkParams& p, Candidates& c, const Row& row) {
  for (std::int64_t widening = 1;; widening *= 4) {
    c.begin_row();
    sample(p, c, row, widening);
    offer(p, c, row, 0, row.count);
    if (c.count >= std::min(p.k, row.count)) return;
  }
}

void write_candidates(const TopkParams& p, Candidates& c, std::int64_t r, const Row& row) {
  if (c.count > p.k) cut(c);
  if (p.order == TopkOrder::kByValue) order_by_value(c);
  write_row(p, r, row, c.positions, c.count);
}

// n <= k, where every position wins and scores are read only to order by them, or k = 0.
void identity_row(const TopkParams& p, Candidates& c, std::int64_t r, const Row& row) {
  if (p.order != TopkOrder::kByValue || p.k == 0) {
    write_row(p, r, row, nullptr, std::min(p.k, row.count));
    return;
  }
  c.begin_row();
  offer(p, c, row, 0, row.count);
  order_by_value(c);
  write_row(p, r, row, c.positions, c.count);
}

void filter_row(const TopkParams& p, Candidates& c, std::int64_t r) {
  const Row row = row_window(p, r);
  if (row.count <= p.k) {
    identity_row(p, c, r, row);
    return;
  }
  offer_row(p, c, row);
  write_candidates(p, c, r, row);
}

void select_row(const TopkParams& p, std::int64_t r, void* memory) {
  const Row row = row_window(p, r);
  const std::int64_t num_winners = std::min(p.k, row.count);
  auto* codes = static_cast<std::uint64_t*>(memory);
  auto* positions = reinterpret_cast<std::uint32_t*>(codes + p.width);
  const std::uint32_t inf = inf_bits(p.dtype);
  for (std::int64_t i = 0; i < row.count; ++i) {
    codes[i] = rank_code(key_of_bits(bits_at(p, row, i), inf), static_cast<std::uint32_t>(i));
  }
  if (num_winners < row.count) std::nth_element(codes, codes + num_winners, codes + row.count);
  if (p.order == TopkOrder::kByValue) std::sort(codes, codes + num_winners);
  for (std::int64_t i = 0; i < num_winners; ++i) positions[i] = position_of_code(codes[i]);
  if (p.order != TopkOrder::kByValue) std::sort(positions, positions + num_winners);
  write_row(p, r, row, positions, num_winners);
}

// What a segment hands over: a header, then room for k bits and k positions.
struct SlotHeader {
  std::int64_t count;
};
constexpr std::size_t kSlotHeaderBytes = 64;

struct SegmentRange {
  std::int64_t begin, count;
};

SegmentRange segment_range(std::int64_t row_count, std::int64_t segments, std::int64_t s) {
  // Whole 64-byte groups, so that only the last segment has a tail.
  const std::int64_t piece = ((row_count + segments - 1) / segments + 63) / 64 * 64;
  const std::int64_t begin = std::min(row_count, s * piece);
  return {begin, std::min(row_count, begin + piece) - begin};
}

void run_segments(const TopkParams& p, const TopkPlan& plan, char* workspace) {
  const auto worker_set = [&](int worker) {
    return make_candidates(p.k, p.width, true, inf_bits(p.dtype),
                           workspace + plan.worker_bytes * static_cast<std::size_t>(worker));
  };
  char* slots = workspace + plan.worker_bytes * static_cast<std::size_t>(plan.workers);
  const auto slot_at = [&](std::int64_t item) { return slots + plan.slot_bytes * static_cast<std::size_t>(item); };
  // Every segment of a row starts from the same sampled threshold; these lie behind the slots.
  struct First {
    bool open;
    std::int32_t threshold;
  };
  auto* firsts = reinterpret_cast<First*>(slot_at(p.rows * plan.segments));

  core::parallel_for(p.rows, 1, plan.workers, [&](std::int64_t begin, std::int64_t end, int worker) {
    Candidates c = worker_set(worker);
    for (std::int64_t r = begin; r < end; ++r) {
      const Row row = row_window(p, r);
      c.begin_row();
      if (row.count > p.k) sample(p, c, row, 1);
      firsts[r] = {c.open, c.threshold};
    }
  });
  core::parallel_for(p.rows * plan.segments, 1, plan.workers, [&](std::int64_t begin, std::int64_t end, int worker) {
    Candidates c = worker_set(worker);
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t r = item / plan.segments;
      const Row row = row_window(p, r);
      if (row.count <= p.k) continue;  // written by the merge
      const SegmentRange range = segment_range(row.count, plan.segments, item % plan.segments);
      c.begin_row();
      c.open = firsts[r].open;
      c.threshold = firsts[r].threshold;
      offer(p, c, row, range.begin, range.count);
      if (c.count > p.k) cut(c);
      char* slot = slot_at(item);
      const SlotHeader header{c.count};
      std::memcpy(slot, &header, sizeof(header));
      const auto bytes = static_cast<std::size_t>(c.count) * sizeof(std::uint32_t);
      std::memcpy(slot + kSlotHeaderBytes, c.bits, bytes);
      std::memcpy(slot + kSlotHeaderBytes + static_cast<std::size_t>(p.k) * sizeof(std::uint32_t), c.positions, bytes);
    }
  });
  core::parallel_for(p.rows, 1, plan.workers, [&](std::int64_t begin, std::int64_t end, int worker) {
    Candidates c = worker_set(worker);
    for (std::int64_t r = begin; r < end; ++r) {
      const Row row = row_window(p, r);
      if (row.count <= p.k) {
        identity_row(p, c, r, row);
        continue;
      }
      c.begin_row();
      for (std::int64_t s = 0; s < plan.segments; ++s) {
        const char* slot = slot_at(r * plan.segments + s);
        const auto* bits = reinterpret_cast<const std::uint32_t*>(slot + kSlotHeaderBytes);
        feed_candidates(c, bits, bits + p.k, load_at<SlotHeader>(slot, 0).count);
      }
      if (c.count < p.k) offer_row(p, c, row);  // the sampled threshold was too high
      write_candidates(p, c, r, row);
    }
  });
}

}  // namespace

TopkPlan make_plan(const TopkParams& p, TopkAlgorithm algorithm) {
  TopkPlan plan;
  plan.algorithm = algorithm;
  // The machine's concurrency, not the calling arena's: a size asked for in one arena holds in another.
  const int most = p.num_threads > 0 ? p.num_threads : std::max(1, tbb::info::default_concurrency());
  switch (algorithm) {
    case TopkAlgorithm::kSelect: plan.worker_bytes = static_cast<std::size_t>(p.width) * 12; break;
    case TopkAlgorithm::kIdentity:
      if (p.order == TopkOrder::kByValue && p.k > 0) plan.worker_bytes = candidates_bytes(p.width, p.width, false);
      break;
    default:
      plan.worker_bytes = candidates_bytes(p.k, p.width, true);
      if (p.rows > 0 && p.rows < most) {
        // Segments of at least 4 k scores, so that handing over k of them stays cheap.
        const std::int64_t shortest = std::max(kMinSegment, 4 * p.k);
        plan.segments =
            std::clamp<std::int64_t>((most + p.rows - 1) / p.rows, 1, std::max<std::int64_t>(1, p.width / shortest));
      }
  }
  plan.worker_bytes = round_up_64(plan.worker_bytes);
  plan.workers = static_cast<int>(std::clamp<std::int64_t>(p.rows * plan.segments, 1, most));
  plan.workspace_bytes = plan.worker_bytes * static_cast<std::size_t>(plan.workers);
  if (plan.segments > 1) {
    plan.slot_bytes = round_up_64(kSlotHeaderBytes + 2 * sizeof(std::uint32_t) * static_cast<std::size_t>(p.k));
    plan.workspace_bytes += plan.slot_bytes * static_cast<std::size_t>(p.rows * plan.segments) +
                            round_up_64(static_cast<std::size_t>(p.rows) * sizeof(std::int64_t));
  }
  return plan;
}

void run_topk(const TopkParams& p, const TopkPlan& plan, void* workspace) {
  auto* memory = static_cast<char*>(workspace);
  if (plan.segments > 1) {
    run_segments(p, plan, memory);
    return;
  }
  const std::int64_t grain = std::max<std::int64_t>(1, kScoresPerPiece / std::max<std::int64_t>(1, p.width));
  core::parallel_for(p.rows, grain, plan.workers, [&](std::int64_t begin, std::int64_t end, int worker) {
    void* scratch = memory + plan.worker_bytes * static_cast<std::size_t>(worker);
    if (plan.algorithm == TopkAlgorithm::kSelect) {
      for (std::int64_t r = begin; r < end; ++r) select_row(p, r, scratch);
      return;
    }
    const bool filter = plan.algorithm == TopkAlgorithm::kSimdFilter;
    Candidates c;
    if (plan.worker_bytes > 0) {
      c = make_candidates(filter ? p.k : p.width, p.width, filter, inf_bits(p.dtype), scratch);
    }
    for (std::int64_t r = begin; r < end; ++r) {
      if (filter) filter_row(p, c, r);
      else identity_row(p, c, r, row_window(p, r));
    }
  });
}

}  // namespace tamis::topk_cpu
