#pragma once

// Algorithm `grid`: several blocks a row without clusters, for rows so long that 16 blocks would read them too slowly,
// and for GPUs that have no clusters. Two launches: the first filters slices as `stream` does and leaves each slice's
// candidates in the workspace, the second has one block a row that selects among them. No block waits for another, so
// nothing can deadlock, and the workspace needs no clearing.
// Definition: topk/reference.hpp.

#include <cstdint>

#include "topk/cuda/finish_row.cuh"

namespace tamis::topk_cuda {

/// What the first launch leaves of a slice; its candidates lie in an array of their own, capacity a slice.
struct SliceHeader {
  std::uint32_t num_candidates, bar_key;
};

struct GridWorkspace {
  SliceHeader* headers;   // [rows, slices]
  Candidate* candidates;  // [rows, slices, capacity]
};

template <typename T>
__global__ void __launch_bounds__(kFilterThreads, 2)
    grid_filter_kernel(const __grid_constant__ TopkParams p, std::uint32_t capacity, std::uint32_t num_slices,
                       GridWorkspace workspace) {
  extern __shared__ uint4 dynamic_shared[];
  FilterStorage& s = *reinterpret_cast<FilterStorage*>(dynamic_shared);
  const std::int64_t row = blockIdx.x / num_slices;
  const std::uint32_t index = blockIdx.x % num_slices;
  const RowWindow<T> window = row_window<T>(p, row);
  if (window.count <= capacity) return;  // the second launch does it alone

  const auto k = static_cast<std::uint32_t>(p.k);
  const RowTiles<T> tiles(window);
  const Sample<T> sample(tiles, window.count, k);
  const auto slice = [&](std::uint32_t of) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(tiles.num_tiles) * of / num_slices);
  };
  const std::uint32_t begin = slice(index), end = slice(index + 1), mine = begin + threadIdx.x / 32;
  TileStream<T> tile_stream(s, tiles, mine, end);
  tile_stream.start(mine);
  if (threadIdx.x == 0) s.num_candidates = 0;
  const Bar bar = sample.bar(s.sample);
  if (threadIdx.x == 0) s.bar = bar;
  __syncthreads();
  filter_tiles(window, tiles, tile_stream, begin, end, index == 0, index + 1 == num_slices, k, capacity, s);

  const std::int64_t at = blockIdx.x;
  if (threadIdx.x == 0) workspace.headers[at] = {s.num_candidates, s.bar.key};
  for (std::uint32_t i = threadIdx.x; i < min(s.num_candidates, capacity); i += kFilterThreads) {
    workspace.candidates[at * capacity + i] = s.candidates[i];
  }
}

template <typename T>
__global__ void __launch_bounds__(kFilterThreads, 2)
    grid_finish_kernel(const __grid_constant__ TopkParams p, std::uint32_t capacity, std::uint32_t num_slices,
                       GridWorkspace workspace) {
  extern __shared__ uint4 dynamic_shared[];
  FilterStorage& s = *reinterpret_cast<FilterStorage*>(dynamic_shared);
  const std::int64_t row = blockIdx.x;
  const RowWindow<T> window = row_window<T>(p, row);
  const auto k = static_cast<std::uint32_t>(p.k);
  if (window.count <= capacity) {
    if (window.count <= k && p.order != TopkOrder::kByValue && p.certificate == nullptr) {
      write_whole_window<T, kFilterThreads>(p, row, window);
      return;
    }
    take_whole_window(window, s);
    finish_row(p, row, window, capacity, s);
    return;
  }

  // Slices in turns of as many as there are threads: their counts, their places, their candidates.
  if (threadIdx.x == 0) {
    s.num_candidates = 0;
    s.bar = {kNoKey, 0};
  }
  __syncthreads();
  const SliceHeader* headers = workspace.headers + row * num_slices;
  const Candidate* candidates = workspace.candidates + row * num_slices * static_cast<std::int64_t>(capacity);
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (std::uint32_t first = 0; first < num_slices; first += kFilterThreads) {
    const std::uint32_t mine = first + threadIdx.x;
    const SliceHeader header = mine < num_slices ? headers[mine] : SliceHeader{0, 0};
    const std::uint32_t have = s.num_candidates;
    atomicMax(&s.bar.key, header.bar_key);
    if (__syncthreads_or(header.num_candidates > capacity) != 0) {
      if (threadIdx.x == 0) s.num_candidates = capacity + 1;  // lost: the exact pass
      __syncthreads();
      break;
    }
    std::uint32_t total;
    std::uint32_t before = have + sum_before<kFilterThreads>(header.num_candidates, s.select.warp_totals, total);
    if (have + total <= capacity) {
      // A warp copies the slices of its own threads.
      for (std::uint32_t i = 0; i < 32 && first + warp * 32 + i < num_slices; ++i) {
        const std::uint32_t to = __shfl_sync(0xFFFFFFFFU, before, i);
        const std::uint32_t count = __shfl_sync(0xFFFFFFFFU, header.num_candidates, i);
        const Candidate* from = candidates + static_cast<std::int64_t>(first + warp * 32 + i) * capacity;
        for (std::uint32_t j = lane; j < count; j += 32) s.candidates[to + j] = from[j];
      }
      __syncthreads();
      if (threadIdx.x == 0) s.num_candidates = have + total;
      __syncthreads();
      continue;
    }
    for (std::uint32_t i = first; i < min(num_slices, first + kFilterThreads); ++i) {
      const std::uint32_t more = headers[i].num_candidates, now = s.num_candidates;
      __syncthreads();
      if (now + more > capacity) {
        const std::uint32_t risen = key_of(keep_k_best(s, k));
        if (threadIdx.x == 0) s.bar.key = max(s.bar.key, risen);
      }
      const std::uint32_t to = s.num_candidates;
      const Candidate* from = candidates + static_cast<std::int64_t>(i) * capacity;
      for (std::uint32_t j = threadIdx.x; j < more; j += kFilterThreads) s.candidates[to + j] = from[j];
      __syncthreads();
      if (threadIdx.x == 0) s.num_candidates = to + more;
      __syncthreads();
    }
  }
  finish_row(p, row, window, capacity, s);
}

}  // namespace tamis::topk_cuda
