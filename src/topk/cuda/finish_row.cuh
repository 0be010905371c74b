#pragma once

// The end of every kernel that filters: candidates of a row -> its k winners -> the caller's memory. Also the slow
// exact pass, for a row whose bar was too high or whose candidates did not fit.

#include <cstdint>

#include "topk/cuda/filter.cuh"
#include "topk/cuda/write_row.cuh"

namespace tamis::topk_cuda {

/// Rows of at most `capacity` scores need no bar: all of them become candidates.
template <typename T>
__device__ void take_whole_window(const RowWindow<T>& window, FilterStorage& s) {
  for (std::uint32_t i = threadIdx.x; i < window.count; i += kFilterThreads) s.candidates[i] = window.composite(i);
  if (threadIdx.x == 0) {
    s.num_candidates = window.count;
    s.bar = {kNoKey, 0};
  }
  __syncthreads();
}

/// Candidates as the exact winners, found by passes over the whole window.
template <typename T>
__device__ __noinline__ void take_exact_winners(const RowWindow<T>& window, std::uint32_t k, FilterStorage& s) {
  const WindowItems<T, kFilterThreads> items{window};
  const Composite last = kth_best<kFilterThreads>(items, k, window.count, s.bins, s.select);
  if (threadIdx.x == 0) {
    s.num_candidates = 0;
    s.bar = {~0U, 0};  // no candidate but the winners: the certificate has to look at the window
  }
  __syncthreads();
  items.each([&](std::uint32_t key, std::uint32_t position) {
    const Composite c = composite_of(key, position);
    if (c >= last) s.candidates[atomicAdd(&s.num_candidates, 1U)] = c;
  });
  __syncthreads();
}

/// The positions of candidates that are at least `last`, k of them, ascending, as s.positions.ordered.
/// Positions are dealt to 2,048 buckets between the smallest and the largest; within its bucket, which holds about one,
/// a position counts the smaller ones. Begin with a barrier since the last use; ends with one.
__device__ inline void order_by_position(FilterStorage& s, Composite last, std::uint32_t k) {
  constexpr int kThreads = kFilterThreads;
  constexpr std::uint32_t kOwned = kBins / kThreads;
  const std::uint32_t found = s.num_candidates;
  const auto each_winner = [&](auto f) {
    for (std::uint32_t i = threadIdx.x; i < found; i += kThreads) {
      const Composite c = s.candidates[i];
      if (c >= last) f(position_of(c));
    }
  };
  if (threadIdx.x == 0) {
    s.select.min_value = ~0U;
    s.select.max_value = 0;
  }
  for (std::uint32_t i = threadIdx.x; i < kBins; i += kThreads) s.bins[i] = 0;
  __syncthreads();
  std::uint32_t smallest = ~0U, largest = 0;
  each_winner([&](std::uint32_t position) {
    smallest = min(smallest, position);
    largest = max(largest, position);
  });
  smallest = __reduce_min_sync(kAllLanes, smallest);
  largest = __reduce_max_sync(kAllLanes, largest);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&s.select.min_value, smallest);
    atomicMax(&s.select.max_value, largest);
  }
  __syncthreads();
  smallest = s.select.min_value;
  const int shift = max(0, 32 - __clz(static_cast<int>(s.select.max_value - smallest)) - kBinBits);
  each_winner([&](std::uint32_t position) { atomicAdd(&s.bins[(position - smallest) >> shift], 1U); });
  __syncthreads();
  std::uint32_t owned[kOwned], sum = 0, total;
#pragma unroll
  for (std::uint32_t i = 0; i < kOwned; ++i) sum += owned[i] = s.bins[threadIdx.x * kOwned + i];
  std::uint32_t before = sum_before<kThreads>(sum, s.select.warp_totals, total);
#pragma unroll
  for (std::uint32_t i = 0; i < kOwned; ++i) {
    s.bins[threadIdx.x * kOwned + i] = before;
    before += owned[i];
  }
  __syncthreads();
  // Afterwards a bucket's counter says where it ends.
  each_winner([&](std::uint32_t position) {
    s.positions.bucketed[atomicAdd(&s.bins[(position - smallest) >> shift], 1U)] = position;
  });
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) {
    const std::uint32_t position = s.positions.bucketed[i], bucket = (position - smallest) >> shift;
    const std::uint32_t begin = bucket == 0 ? 0 : s.bins[bucket - 1], end = s.bins[bucket];
    std::uint32_t rank = begin;
    for (std::uint32_t j = begin; j < end; ++j) rank += s.positions.bucketed[j] < position ? 1U : 0U;
    s.positions.ordered[rank] = position;
  }
  __syncthreads();
}

/// Selects among the candidates and writes the row. s.bar says above which key all scores are candidates.
template <typename T>
__device__ void finish_row(const TopkParams& p, std::int64_t row, const RowWindow<T>& window, std::uint32_t capacity,
                           FilterStorage& s) {
  constexpr int kThreads = kFilterThreads;
  const auto k = static_cast<std::uint32_t>(min(p.k, static_cast<std::int64_t>(window.count)));
  if (s.num_candidates < k || s.num_candidates > capacity) take_exact_winners(window, k, s);
  const std::uint32_t found = s.num_candidates;

  Composite last = lowest_composite();  // every candidate wins
  if (found > k) last = kth_candidate(s, k);
  __syncthreads();

  if (p.certificate != nullptr) {
    auto& storage = *reinterpret_cast<CertificateStorage*>(&s.sample);
    const ArrayItems<kThreads> candidates{s.candidates, found};
    const AtLeast<ArrayItems<kThreads>> winners{candidates, last};
    // Candidates hold all equals of the last winner if that ranks above the bar.
    if (window.count > capacity && key_of(last) <= s.bar.key) {
      write_certificate<kThreads>(p, row, winners, k, WindowItems<T, kThreads>{window}, storage);
    } else {
      write_certificate<kThreads>(p, row, winners, k, candidates, storage);
    }
  }

  const bool by_value = p.order == TopkOrder::kByValue;
  if (by_value) {
    collect_winners(s, last);
    std::uint32_t room = 2;
    while (room < k) room *= 2;
    sort_descending<kThreads>(s.winners, k, room);
  } else {
    order_by_position(s, last, k);
  }
  write_winners<T, kThreads>(p, row, window, k, [&](std::uint32_t i) {
    return by_value ? position_of(s.winners[i]) : s.positions.ordered[i];
  });
}

}  // namespace tamis::topk_cuda
