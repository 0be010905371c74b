#pragma once

// The k-th best of a set that a block holds, wherever the set lies: registers, shared or global memory.
// Every round spreads the keys that are left evenly over some thousand bins between the smallest and the largest,
// counts them, and goes on with the bin that holds the k-th. Scores that crowd in a narrow range are spread as well as
// others. Few that are left are compared each with each; many equal ones go through the same rounds by position.
// Definition: topk/reference.hpp.

#include <bit>
#include <cstdint>

#include "topk/cuda/keys.cuh"

namespace tamis::topk_cuda {

inline constexpr std::uint32_t kFewLeft = 256;  // compared with each other, several threads each
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

struct SelectStorage {
  std::uint32_t warp_min[32], warp_max[32], warp_totals[32];
  std::uint32_t bin, above, in_bin, num_left;
  alignas(16) Composite left[kFewLeft];
  Composite result;
};

/// Smallest and largest over the block, for every thread. One barrier inside; storage is free again after the caller's
/// next one.
template <int kThreads>
__device__ void block_range(std::uint32_t& smallest, std::uint32_t& largest, SelectStorage& s) {
  const std::uint32_t lane = threadIdx.x % 32;
  smallest = __reduce_min_sync(kAllLanes, smallest);
  largest = __reduce_max_sync(kAllLanes, largest);
  if (lane == 0) {
    s.warp_min[threadIdx.x / 32] = smallest;
    s.warp_max[threadIdx.x / 32] = largest;
  }
  __syncthreads();
  constexpr std::uint32_t kWarps = kThreads / 32;
  smallest = __reduce_min_sync(kAllLanes, s.warp_min[lane % kWarps]);
  largest = __reduce_max_sync(kAllLanes, s.warp_max[lane % kWarps]);
}

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

/// ++*counter, which lies in shared memory, if the condition holds. In assembly, since the compiler makes a branch of
/// an `if` around atomicAdd(). A constant 1 becomes ATOMS.POPC.INC, which adds the lanes of one address at once.
__device__ inline void count_if(bool condition, std::uint32_t* counter) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p red.shared.add.u32 [%1], 1; }" ::"r"(condition ? 1U : 0U),
               "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(counter)))
               : "memory");
}

/// Counters of a block, a power of two of them.
template <int kNumBins>
struct Bins {
  static constexpr int kCount = kNumBins, kBits = std::bit_width(static_cast<unsigned>(kNumBins)) - 1;
  alignas(16) std::uint32_t counts[kNumBins];

  template <int kThreads>
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kNumBins / 4 / kThreads; ++i) {
      reinterpret_cast<uint4*>(counts)[i * kThreads + threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
  }
  /// Right shift that spreads offsets up to `largest` over the bins.
  __device__ static int shift_for(std::uint32_t largest) {
    return max(0, 32 - __clz(static_cast<int>(largest)) - kBits);
  }
};

/// The neighbouring bins that a thread adds up.
template <int kThreads, int kNumBins>
struct OwnedBins {
  static constexpr int kCount = kNumBins / kThreads;
  static_assert(kCount % 4 == 0, "bins are read 16 bytes at a time");
  std::uint32_t counts[kCount];
  std::uint32_t sum = 0;

  __device__ OwnedBins(const Bins<kNumBins>& bins, std::uint32_t first) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(bins.counts + first + i);
      counts[i] = four.x;
      counts[i + 1] = four.y;
      counts[i + 2] = four.z;
      counts[i + 3] = four.w;
      sum += four.x + four.y + four.z + four.w;
    }
  }
};

/// Values in [low, high], `count` of the set's, of which the k-th best is sought.
struct Sought {
  std::uint32_t low, high, count, k;
};

/// Narrows what is sought among keys (or, with kPositions, among the inverted positions of scores with `key`) until at
/// most kFewLeft are left, or equal ones only.
template <int kThreads, bool kPositions, typename Items, int kNumBins>
__device__ void narrow(const Items& items, std::uint32_t key, Sought& sought, Bins<kNumBins>& bins, SelectStorage& s) {
  const auto each_offset = [&](auto f) {
    const std::uint32_t low = sought.low, width = sought.high - sought.low;
    items.each([&](std::uint32_t item_key, std::uint32_t position) {
      if (kPositions && item_key != key) return;
      const std::uint32_t offset = (kPositions ? ~position : item_key) - low;  // wraps below low
      if (offset <= width) f(offset);
    });
  };
  for (;;) {
    // 1. What is left lies between which two?
    std::uint32_t smallest = ~0U, largest = 0;
    each_offset([&](std::uint32_t offset) {
      smallest = min(smallest, offset);
      largest = max(largest, offset);
    });
    bins.template clear<kThreads>();
    if (threadIdx.x == 0) s.num_left = 0;
    block_range<kThreads>(smallest, largest, s);
    sought.high = sought.low + largest;
    sought.low += smallest;
    if (sought.low == sought.high) return;

    // 2. Count.
    const int shift = bins.shift_for(sought.high - sought.low);
    {
      const std::uint32_t low = sought.low, width = sought.high - sought.low;
      items.each([&](std::uint32_t item_key, std::uint32_t position) {
        const std::uint32_t offset = (kPositions ? ~position : item_key) - low, bin = offset >> shift;
        // The lowest bin is what remains: where most scores are equal they are the lowest (zeros, -inf), and many
        // atomics on one address are slow.
        count_if(bin != 0 && offset <= width && (!kPositions || item_key == key), &bins.counts[bin]);
      });
    }
    __syncthreads();

    // 3. From the top, which bin holds the k-th? Thread 0 owns the highest bins.
    using Owned = OwnedBins<kThreads, kNumBins>;
    const std::uint32_t first = kNumBins - (threadIdx.x + 1) * Owned::kCount;
    const Owned owned(bins, first);
    std::uint32_t total;
    std::uint32_t above = sum_before<kThreads>(owned.sum, s.warp_totals, total);
    if (sought.k > total) {
      if (threadIdx.x == 0) {
        s.bin = 0;
        s.above = total;
        s.in_bin = sought.count - total;
      }
    } else if (above < sought.k && sought.k <= above + owned.sum) {
#pragma unroll
      for (int i = Owned::kCount - 1; i >= 0; --i) {
        if (above < sought.k && sought.k <= above + owned.counts[i]) {
          s.bin = first + i;
          s.above = above;
          s.in_bin = owned.counts[i];
        }
        above += owned.counts[i];
      }
    }
    __syncthreads();
    sought.k -= s.above;
    sought.count = s.in_bin;
    sought.low += s.bin << shift;
    // The top bin may end at the largest value there is.
    sought.high = sought.low + min(sought.high - sought.low, (1U << shift) - 1);
    if (shift == 0 || sought.count <= kFewLeft) return;
  }
}

/// @param items  items.each(f) calls f(key, position) for every item of the calling thread, and may call it with kNoKey
/// for
///               places that hold none; all threads call it together.
/// @param count  Number of items.  @param k  1 <= k <= count.
/// All threads return the same composite, the k-th largest. Begin with a barrier since the last use of storage; it is
/// free again after the caller's next one.
template <int kThreads, typename Items, int kNumBins>
__device__ Composite kth_best(const Items& items, std::uint32_t k, std::uint32_t count, Bins<kNumBins>& bins,
                              SelectStorage& s) {
  Sought keys{kNanKey, ~0U, count, k};
  narrow<kThreads, false>(items, 0, keys, bins, s);
  Composite lowest = static_cast<Composite>(keys.low) << 32, highest = static_cast<Composite>(keys.high) << 32 | ~0U;
  if (keys.count > kFewLeft) {
    // Equal scores; the lower positions win.
    if (keys.count == keys.k) return composite_of(keys.low, ~0U >> 1);
    Sought places{0, ~0U, keys.count, keys.k};
    __syncthreads();
    narrow<kThreads, true>(items, keys.low, places, bins, s);
    highest = lowest | places.high;
    lowest |= places.low;
    keys.k = places.k;
  }
  items.each([&](std::uint32_t item_key, std::uint32_t position) {
    if (item_key - keys.low > keys.high - keys.low) return;
    const Composite c = composite_of(item_key, position);
    if (c >= lowest && c <= highest) s.left[atomicAdd(&s.num_left, 1U)] = c;
  });
  __syncthreads();
  constexpr std::uint32_t kSharers = kThreads / kFewLeft;
  const std::uint32_t left = s.num_left, mine_at = threadIdx.x / kSharers;
  const Composite mine = mine_at < left ? s.left[mine_at] : 0;
  std::uint32_t better = 0;
  for (std::uint32_t i = threadIdx.x % kSharers; i < left; i += kSharers) better += s.left[i] > mine ? 1U : 0U;
#pragma unroll
  for (std::uint32_t step = 1; step < kSharers; step *= 2) better += __shfl_xor_sync(kAllLanes, better, step);
  if (mine != 0 && better == keys.k - 1 && threadIdx.x % kSharers == 0) s.result = mine;
  __syncthreads();
  return s.result;
}

/// Candidates in an array of the block.
template <int kThreads>
struct ArrayItems {
  const Candidate* items;
  std::uint32_t count;
  template <typename F>
  __device__ void each(F f) const {
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      f(key_of_candidate(items[i]), position_of_candidate(items[i]));
    }
  }
};

/// The same in registers, at most kEach a thread: passes over them then wait for nothing.
template <int kThreads, int kEach>
struct RegisterItems {
  std::uint32_t keys[kEach], positions[kEach];  // kNoKey where there is none
  __device__ explicit RegisterItems(const ArrayItems<kThreads>& array) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::uint32_t at = i * kThreads + threadIdx.x;
      const bool there = at < array.count;
      const Candidate c = there ? array.items[at] : 0;
      keys[i] = there ? key_of_candidate(c) : kNoKey;
      positions[i] = position_of_candidate(c);
    }
  }
  template <typename F>
  __device__ void each(F f) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) f(keys[i], positions[i]);
  }
};

/// Those of some items that are at least `last`.
template <typename Items>
struct AtLeast {
  const Items& items;
  Composite last;
  template <typename F>
  __device__ void each(F f) const {
    items.each([&](std::uint32_t key, std::uint32_t position) {
      if (composite_of(key, position) >= last) f(key, position);
    });
  }
};

}  // namespace tamis::topk_cuda
