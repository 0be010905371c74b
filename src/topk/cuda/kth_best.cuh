#pragma once

// The k-th best of a set that a block holds, wherever the set lies: registers, shared or global memory.
// Every round spreads the keys that are left evenly over 2,048 bins between the smallest and the largest, counts them,
// and goes on with the bin that holds the k-th. Scores that crowd in a narrow range are spread as well as others. Few
// that are left are compared each with each; many equal ones go through the same rounds by position. Definition:
// topk/reference.hpp.

#include <cstdint>

#include "topk/cuda/keys.cuh"

namespace tamis::topk_cuda {

inline constexpr std::uint32_t kBins = 2048;
inline constexpr int kBinBits = 11;
inline constexpr std::uint32_t kFewLeft = 64;  // compared with each other, one a thread
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

struct SelectStorage {
  std::uint32_t min_value, max_value;
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
    const std::uint32_t below = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == 31) warp_totals[warp] = inclusive;
  __syncthreads();
  const std::uint32_t of_warp = lane < kThreads / 32 ? warp_totals[lane] : 0;
  total = __reduce_add_sync(kAllLanes, of_warp);
  return __reduce_add_sync(kAllLanes, lane < warp ? of_warp : 0) + inclusive - value;
}

/// Of a set of keys (or, with kPositions, of the positions of scores with `key`), the values that hold the k-th best:
/// [low, high]. On return k counts within them, and in_range says how many there are: at most kFewLeft, or all equal.
template <int kThreads, bool kPositions, typename Items>
__device__ void narrow_range(const Items& items, std::uint32_t key, std::uint32_t& low, std::uint32_t& high,
                             std::uint32_t& k, std::uint32_t& in_range, std::uint32_t* bins, SelectStorage& s) {
  constexpr std::uint32_t kOwned = kBins / kThreads;
  // Larger is better: positions are inverted.
  const auto each_value = [&](auto f) {
    items.each([&](std::uint32_t item_key, std::uint32_t position) {
      if (!kPositions) f(item_key);
      else if (item_key == key) f(~position);
    });
  };
  for (;;) {
    // 1. What is left lies between which two?
    if (threadIdx.x == 0) {
      s.min_value = ~0U;
      s.max_value = 0;
      s.num_left = 0;
    }
    for (std::uint32_t i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    std::uint32_t from_low = ~0U, max_value = 0;
    const std::uint32_t width = high - low;
    each_value([&](std::uint32_t value) {
      const std::uint32_t offset = value - low;  // wraps below low
      if (offset <= width) {
        from_low = min(from_low, offset);
        max_value = max(max_value, value);
      }
    });
    from_low = __reduce_min_sync(kAllLanes, from_low);
    max_value = __reduce_max_sync(kAllLanes, max_value);
    if (threadIdx.x % 32 == 0) {
      atomicMin(&s.min_value, from_low);
      atomicMax(&s.max_value, max_value);
    }
    __syncthreads();
    low += s.min_value;
    high = s.max_value;
    if (low == high) return;

    // 2. Count.
    const int shift = max(0, 32 - __clz(static_cast<int>(high - low)) - kBinBits);
    const std::uint32_t left = high - low;
    each_value([&](std::uint32_t value) {
      const std::uint32_t offset = value - low;
      if (offset <= left) atomicAdd(&bins[offset >> shift], 1U);
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
    in_range = s.in_bin;
    low += s.bin << shift;
    high = low + min(high - low, (1U << shift) - 1);  // the top bin may end at the largest value there is
    if (shift == 0 || in_range <= kFewLeft) return;
  }
}

/// @param items      items.each(f) calls f(key, position) for every item of the calling thread, and may call it with
/// kNoKey
///                   for places that hold none; all threads call it together.
/// @param k          1 <= k <= number of items, count of them.
/// @param bins       kBins counters.
/// All threads return the same composite, the k-th largest. Begin with a barrier since the last use of storage; it is
/// free again after the caller's next one.
template <int kThreads, typename Items>
__device__ Composite kth_best(const Items& items, std::uint32_t k, std::uint32_t count, std::uint32_t* bins,
                              SelectStorage& s) {
  std::uint32_t low = kNanKey, high = ~0U, in_range = count;
  narrow_range<kThreads, false>(items, 0, low, high, k, in_range, bins, s);
  const std::uint32_t key = low;
  const bool one_key = low == high && in_range > kFewLeft;
  std::uint32_t low_place = 0, high_place = ~0U;
  if (one_key) {
    if (in_range == k) return composite_of(key, ~0U >> 1);  // the highest position: all of them
    __syncthreads();
    narrow_range<kThreads, true>(items, key, low_place, high_place, k, in_range, bins, s);
  }
  const Composite lowest = one_key ? static_cast<Composite>(key) << 32 | low_place : static_cast<Composite>(low) << 32;
  const Composite highest =
      one_key ? static_cast<Composite>(key) << 32 | high_place : static_cast<Composite>(high) << 32 | ~0U;
  items.each([&](std::uint32_t item_key, std::uint32_t position) {
    const Composite c = composite_of(item_key, position);
    if (c >= lowest && c <= highest) s.left[atomicAdd(&s.num_left, 1U)] = c;
  });
  __syncthreads();
  const std::uint32_t left = s.num_left;
  if (threadIdx.x < left) {
    const Composite mine = s.left[threadIdx.x];
    std::uint32_t better = 0;
    for (std::uint32_t i = 0; i < left; ++i) better += s.left[i] > mine ? 1U : 0U;
    if (better == k - 1) s.result = mine;
  }
  __syncthreads();
  return s.result;
}

/// Composites in an array of the block.
template <int kThreads>
struct ArrayItems {
  const Composite* items;
  std::uint32_t count;
  template <typename F>
  __device__ void each(F f) const {
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) f(key_of(items[i]), position_of(items[i]));
  }
};

}  // namespace tamis::topk_cuda
