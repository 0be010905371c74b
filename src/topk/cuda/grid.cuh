#pragma once

// Algorithm `grid`: several blocks a row, for few rows. Two launches: the first filters slices as `stream` does and
// leaves each slice's candidates in the workspace, the second has one block a row that selects among them. No block
// waits for another, so nothing can deadlock whatever else runs, and the workspace needs no clearing. On Hopper and
// later the second launch is a programmatic dependent one: it is in place when the first ends. Definition:
// topk/reference.hpp. Why not a cluster: docs/design/2026-12-topk-cuda.md.

#include <cstdint>

#include "topk/cuda/stream.cuh"

namespace tamis::topk_cuda {

/// What the first launch leaves of a slice; its candidates lie in an array of their own, capacity a slice.
struct SliceHeader {
  std::uint32_t num_candidates, bar_key;
};

struct GridWorkspace {
  SliceHeader* headers;   // [rows, slices]
  Candidate* candidates;  // [rows, slices, capacity]
};

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    grid_filter_kernel(const __grid_constant__ TopkParams p, std::uint32_t capacity, std::uint32_t num_slices,
                       GridWorkspace workspace) {
  if constexpr (is_built<kThreads>()) {
    extern __shared__ uint4 dynamic_shared[];
    auto& s = *reinterpret_cast<FilterStorage<kThreads>*>(dynamic_shared);
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();  // the second launch may take its place; it waits for all of this one
#endif
    const RowWindow<T> window = row_window<T>(p, blockIdx.x / num_slices);
    if (window.count <= capacity) return;  // the second launch does it alone
    filter_slice(p, window, blockIdx.x % num_slices, num_slices, capacity, s);

    const std::int64_t at = blockIdx.x;
    if (threadIdx.x == 0) workspace.headers[at] = {s.num_candidates, s.bar.key};
    for (std::uint32_t i = threadIdx.x; i < min(s.num_candidates, capacity); i += kThreads) {
      workspace.candidates[at * capacity + i] = s.candidates[i];
    }
  }
}

/// Fills s.candidates with what the slices of a row left, at most kThreads of them.
template <int kThreads>
__device__ void gather_slices(const SliceHeader* headers, const Candidate* candidates, std::uint32_t num_slices,
                              std::uint32_t k, std::uint32_t capacity, FilterStorage<kThreads>& s) {
  const SliceHeader mine = threadIdx.x < num_slices ? headers[threadIdx.x] : SliceHeader{0, kNoKey};
  std::uint32_t least = 0, bar_key = mine.bar_key, total;
  block_range<kThreads>(least, bar_key, s.select);
  const std::uint32_t before = sum_before<kThreads>(mine.num_candidates, s.select.warp_totals, total);
  s.bucketed[threadIdx.x] = before + mine.num_candidates;  // where the slice's candidates end
  const bool lost = __syncthreads_or(mine.num_candidates > capacity) != 0;
  if (lost || total <= capacity) {
    // Candidate i comes from the first slice that ends behind it; all are fetched at once.
    for (std::uint32_t i = threadIdx.x; !lost && i < total; i += kThreads) {
      std::uint32_t slice = 0;
      for (std::uint32_t step = kThreads / 2; step > 0; step /= 2) {
        if (s.bucketed[slice + step - 1] <= i) slice += step;
      }
      const std::uint32_t from = slice == 0 ? 0 : s.bucketed[slice - 1];
      s.candidates[i] = candidates[static_cast<std::int64_t>(slice) * capacity + (i - from)];
    }
    if (threadIdx.x == 0) {
      s.num_candidates = lost ? capacity + 1 : total;
      s.bar = {bar_key, 0};
    }
    __syncthreads();
    return;
  }
  // They do not fit at once: slice by slice, keeping the k best whenever the next one's would not fit. A slice leaves
  // at most high_water(), capacity - k or less.
  if (threadIdx.x == 0) s.num_candidates = 0;
  __syncthreads();
  for (std::uint32_t i = 0; i < num_slices; ++i) {
    const std::uint32_t more = headers[i].num_candidates, have = s.num_candidates;
    __syncthreads();
    if (have + more > capacity) bar_key = max(bar_key, key_of(keep_k_best(s, k)));
    const std::uint32_t to = s.num_candidates;
    const Candidate* from = candidates + static_cast<std::int64_t>(i) * capacity;
    for (std::uint32_t j = threadIdx.x; j < more; j += kThreads) s.candidates[to + j] = from[j];
    __syncthreads();
    if (threadIdx.x == 0) s.num_candidates = to + more;
    __syncthreads();
  }
  if (threadIdx.x == 0) s.bar = {bar_key, 0};
  __syncthreads();
}

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    grid_finish_kernel(const __grid_constant__ TopkParams p, std::uint32_t capacity, std::uint32_t num_slices,
                       GridWorkspace workspace) {
  if constexpr (is_built<kThreads>()) {
    extern __shared__ uint4 dynamic_shared[];
    auto& s = *reinterpret_cast<FilterStorage<kThreads>*>(dynamic_shared);
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();  // launched early: nothing may be read before this
#endif
    const std::int64_t row = blockIdx.x;
    const RowWindow<T> window = row_window<T>(p, row);
    if (window.count <= capacity) {
      write_short_row(p, row, window, capacity, s);
      return;
    }
    gather_slices(workspace.headers + row * num_slices,
                  workspace.candidates + row * num_slices * static_cast<std::int64_t>(capacity), num_slices,
                  static_cast<std::uint32_t>(p.k), capacity, s);
    finish_row(p, row, window, capacity, s);
  }
}

}  // namespace tamis::topk_cuda
