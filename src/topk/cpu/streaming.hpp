#pragma once

// Top-k of a row that is never stored: blocks of fp32 scores come in ascending position, the winners come out. The
// result is element for element that of topk() on the whole row, in every order. Used by the fused index_topk().
//
//   TopkAccumulator top(k, max_count, memory);         // memory: workspace_bytes(k, max_count), 64-byte aligned
//   for each row:
//     top.begin_row();
//     for each block of columns, left to right:
//       top.feed(block, block_count, first_column - row_start);
//     const std::int64_t n = top.finish(order);          // min(k, positions fed)
//     write_row_indices(dtype, out, top.positions(), n, k, row_map);
//     for i < n: values[i] = top.value(i);               // then quiet NaN up to k

#include <cstddef>
#include <cstdint>

#include "tamis/topk.hpp"
#include "topk/cpu/candidates.hpp"
#include "topk/cpu/row_output.hpp"

namespace tamis::topk_cpu {

class TopkAccumulator {
 public:
  /// Bytes for rows of at most `max_count` positions; a multiple of 64, about 16 * (min(2 * k + 1024, max_count) +
  /// 128).
  static std::size_t workspace_bytes(std::int64_t k, std::int64_t max_count);

  /// `memory` belongs to the caller, is 64-byte aligned, holds anything, and serves one accumulator at a time.
  TopkAccumulator(std::int64_t k, std::int64_t max_count, void* memory);

  /// Forgets everything: the next block belongs to another row.
  void begin_row() { candidates_.begin_row(); }

  /// Offers scores of the positions first_position, first_position + 1, ... Each block lies wholly above the ones
  /// before it (gaps are allowed); positions are in [0, 2^31) and all blocks of a row hold at most max_count scores.
  /// Any alignment, any count; multiples of 16 scores are fastest. Does not keep the pointer.
  void feed(const float* scores, std::int64_t count, std::int64_t first_position) {
    if (candidates_.k > 0) feed_32(candidates_, scores, count, static_cast<std::uint32_t>(first_position));
  }

  /// Ends the row. Returns how many winners there are: min(k, positions fed).
  std::int64_t finish(TopkOrder order);

  /// Winners after finish(), in its order.
  const std::uint32_t* positions() const { return candidates_.positions; }
  /// Score of winner i, the very bits that were fed.
  float value(std::int64_t i) const { return load_at<float>(candidates_.bits, i); }

 private:
  Candidates candidates_;
};

}  // namespace tamis::topk_cpu
