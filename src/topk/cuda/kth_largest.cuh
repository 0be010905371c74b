#pragma once

// The k-th largest composite of a set that a block holds, wherever the set lies: registers, shared or global memory.
// Every round spreads what is left evenly over 2,048 bins between its smallest and its largest key, counts, and goes on
// with the bin that holds the k-th. Scores that crowd in a narrow range are spread just as well as others, and equal
// scores are told apart by position. Definition: topk/reference.hpp.

#include <cstdint>

#include "topk/cuda/keys.cuh"

namespace tamis::topk_cuda {

inline constexpr std::uint32_t kBins = 2048;
inline constexpr int kBinBits = 11;
inline constexpr std::uint32_t kFewLeft = 64;  // so many are compared with each other, one a thread

struct SelectStorage {
  std::uint32_t min_key, max_key;
  std::uint32_t warp_totals[32];
  std::uint32_t bin, above, in_bin;
  std::uint32_t num_left;
  Composite left[kFewLeft];
  Composite result;
};

/// Sum of `value` over the threads before this one; `total` over all. One barrier inside; storage is free again after
/// the caller's next one.
template <int kThreads>
__device__ std::uint32_t sum_before(std::uint32_t value, std::uint32_t* warp_totals, std::uint32_t& total) {
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t below = __shfl_up_sync(0xFFFFFFFFU, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == 31) warp_totals[warp] = inclusive;
  __syncthreads();
  const std::uint32_t of_warp = lane < kThreads / 32 ? warp_totals[lane] : 0;
  total = __reduce_add_sync(0xFFFFFFFFU, of_warp);
  return __reduce_add_sync(0xFFFFFFFFU, lane < warp ? of_warp : 0) + inclusive - value;
}

/// @param items      items.each(f) calls f(composite) for every item of the calling thread; all threads call it
/// together.
/// @param k          1 <= k <= number of items.
/// @param positions  All positions are below it.
/// @param bins       kBins counters.
/// All threads return the same composite. Ends with a barrier after the last use of storage.
template <int kThreads, typename Items>
__device__ Composite kth_largest(const Items& items, std::uint32_t k, std::uint32_t positions, std::uint32_t* bins,
                                 SelectStorage& s) {
  constexpr std::uint32_t kOwned = kBins / kThreads;
  Composite low = 0, high = ~Composite{0};
  for (;;) {
    // 1. The keys that are left lie between which two?
    if (threadIdx.x == 0) {
      s.min_key = ~0U;
      s.max_key = 0;
      s.num_left = 0;
    }
    for (std::uint32_t i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    std::uint32_t min_key = ~0U, max_key = 0;
    items.each([&](Composite c) {
      if (c < low || c > high) return;
      min_key = min(min_key, key_of(c));
      max_key = max(max_key, key_of(c));
    });
    min_key = __reduce_min_sync(0xFFFFFFFFU, min_key);
    max_key = __reduce_max_sync(0xFFFFFFFFU, max_key);
    if (threadIdx.x % 32 == 0) {
      atomicMin(&s.min_key, min_key);
      atomicMax(&s.max_key, max_key);
    }
    __syncthreads();
    low = max(low, composite_of(s.min_key, positions - 1));
    high = min(high, composite_of(s.max_key, 0));

    // 2. Count.
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - kBinBits);
    items.each([&](Composite c) {
      if (c >= low && c <= high) atomicAdd(&bins[(c - low) >> shift], 1U);
    });
    __syncthreads();

    // 3. From the top, which bin holds the k-th? Thread t owns kOwned neighbouring bins, thread 0 the highest ones.
    const std::uint32_t first = kBins - (threadIdx.x + 1) * kOwned;
    std::uint32_t owned[kOwned], sum = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kOwned; ++i) sum += owned[i] = bins[first + i];
    std::uint32_t total;
    std::uint32_t above = sum_before<kThreads>(sum, s.warp_totals, total);
    if (above < k && k <= above + sum) {
#pragma unroll
      for (int i = kOwned - 1; i >= 0; --i) {
        if (above < k && k <= above + owned[i]) {
          s.bin = first + i;
          s.above = above;
          s.in_bin = owned[i];
        }
        above += owned[i];
      }
    }
    __syncthreads();
    k -= s.above;
    low += static_cast<Composite>(s.bin) << shift;
    high = min(high, low + ((Composite{1} << shift) - 1));
    if (shift == 0) return low;  // one composite a bin

    // 4. Few enough to compare each with each.
    const std::uint32_t left = s.in_bin;
    if (left <= kFewLeft) {
      items.each([&](Composite c) {
        if (c >= low && c <= high) s.left[atomicAdd(&s.num_left, 1U)] = c;
      });
      __syncthreads();
      if (threadIdx.x < left) {
        const Composite mine = s.left[threadIdx.x];
        std::uint32_t better = 0;
        for (std::uint32_t i = 0; i < left; ++i) better += s.left[i] > mine ? 1U : 0U;
        if (better == k - 1) s.result = mine;
      }
      __syncthreads();
      return s.result;
    }
  }
}

/// Composites in an array of the block.
template <int kThreads>
struct ArrayItems {
  const Composite* items;
  std::uint32_t count;
  template <typename F>
  __device__ void each(F f) const {
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) f(items[i]);
  }
};

}  // namespace tamis::topk_cuda
