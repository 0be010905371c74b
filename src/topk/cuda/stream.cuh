#pragma once

// Algorithm `stream`: one block a row. A bar from a sample of the row, one pass over the row, candidates in shared
// memory, the exact k best of them. A tile goes to the warp that asks first. Bound by reading the scores once; for few
// or short rows by the latency of the sample and of the selection. Synchronises within the block only.
// Definition: topk/reference.hpp. Why this way: docs/design/2026-12-topk-cuda.md.

#include <cstdint>

#include "topk/cuda/finish_row.cuh"

namespace tamis::topk_cuda {

/// Writes a row of at most `capacity` scores.
template <typename T, int kThreads>
__device__ void write_short_row(const TopkParams& p, std::int64_t row, const RowWindow<T>& window,
                                std::uint32_t capacity, FilterStorage<kThreads>& s) {
  if (window.count <= p.k && p.order != TopkOrder::kByValue && p.certificate == nullptr) {
    write_whole_window<T, kThreads>(p, row, window);
    return;
  }
  take_whole_window(window, s);
  finish_row(p, row, window, capacity, s);
}

/// Leaves the candidates of slice `index` of `num_slices` of a row in shared memory; the row has more than `capacity`
/// scores. Ends with a barrier.
template <typename T, int kThreads>
__device__ void filter_slice(const TopkParams& p, const RowWindow<T>& window, std::uint32_t index,
                             std::uint32_t num_slices, std::uint32_t capacity, FilterStorage<kThreads>& s) {
  const auto k = static_cast<std::uint32_t>(p.k);
  const RowTiles<T> tiles(window);
  const Sample<T, kThreads> sample(tiles, window.count, k);
  const auto slice = [&](std::uint32_t of) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(tiles.num_tiles) * of / num_slices);
  };
  const std::uint32_t begin = slice(index), end = slice(index + 1);
  TileStream<T, kThreads> stream(s, tiles, begin, end);
  if (threadIdx.x == 0) s.num_candidates = 0;
  // The first tiles are on their way while the bar is sought. Started before the sample has arrived they delay it;
  // where two blocks share a multiprocessor, one's delay is the other's turn.
  constexpr bool kEarly = kThreads <= 512;
  if (kEarly) stream.start(s);
  const Bar bar = sample.bar(s.sample, [&] {
    if (!kEarly) stream.start(s);
  });
  if (threadIdx.x == 0) s.bar = bar;
  __syncthreads();
  filter_tiles(window, tiles, stream, index == 0, index + 1 == num_slices, k, capacity, s);
}

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    stream_kernel(const __grid_constant__ TopkParams p, std::uint32_t capacity) {
  if constexpr (is_built<kThreads>()) {
    extern __shared__ uint4 dynamic_shared[];
    auto& s = *reinterpret_cast<FilterStorage<kThreads>*>(dynamic_shared);
    const std::int64_t row = blockIdx.x;
    const RowWindow<T> window = row_window<T>(p, row);
    if (window.count <= capacity) {
      write_short_row(p, row, window, capacity, s);
      return;
    }
    filter_slice(p, window, 0, 1, capacity, s);
    finish_row(p, row, window, capacity, s);
  }
}

}  // namespace tamis::topk_cuda
