#pragma once

// The end of every kernel that filters: candidates of a row -> its k winners -> the caller's memory. Also the slow
// exact pass, for a row whose bar was too high or whose candidates did not fit.

#include <cstdint>

#include "topk/cuda/filter.cuh"
#include "topk/cuda/write_row.cuh"

namespace tamis::topk_cuda {

/// Rows of at most `capacity` scores need no bar: all of them become candidates.
template <typename T, int kThreads>
__device__ void take_whole_window(const RowWindow<T>& window, FilterStorage<kThreads>& s) {
  for (std::uint32_t i = threadIdx.x; i < window.count; i += kThreads)
    s.candidates[i] = candidate_of(window.score(i), i);
  if (threadIdx.x == 0) {
    s.num_candidates = window.count;
    s.bar = {kNoKey, 0};
  }
  __syncthreads();
}

/// Candidates as the exact winners, found by passes over the whole window.
template <typename T, int kThreads>
__device__ __noinline__ void take_exact_winners(const RowWindow<T>& window, std::uint32_t k,
                                                FilterStorage<kThreads>& s) {
  const WindowItems<T, kThreads> items{window};
  const Composite last = kth_best<kThreads>(items, k, window.count, s.bins, s.select);
  if (threadIdx.x == 0) {
    s.num_candidates = 0;
    s.bar = {~0U, 0};  // no candidate but the winners: the certificate has to look at the window
  }
  __syncthreads();
  items.each([&](std::uint32_t key, std::uint32_t position) {
    if (composite_of(key, position) < last) return;
    s.candidates[atomicAdd(&s.num_candidates, 1U)] = candidate_of(window.score(position), position);
  });
  __syncthreads();
}

/// Writes the positions of the k winners of the row in ascending order.
/// Positions are dealt to the bins between the smallest and the largest; within its bin, which holds about one, a
/// position counts the smaller ones. Begin with a barrier since the last use.
template <typename T, int kThreads, typename Items>
__device__ void write_by_position(const TopkParams& p, std::int64_t row, const RowWindow<T>& window, const Items& items,
                                  Composite last, std::uint32_t k, FilterStorage<kThreads>& s) {
  const AtLeast<Items> winners{items, last};
  std::uint32_t smallest = ~0U, largest = 0;
  winners.each([&](std::uint32_t, std::uint32_t position) {
    smallest = min(smallest, position);
    largest = max(largest, position);
  });
  s.bins.template clear<kThreads>();
  block_range<kThreads>(smallest, largest, s.select);
  const int shift = s.bins.shift_for(largest - smallest);
  items.each([&](std::uint32_t key, std::uint32_t position) {
    count_if(composite_of(key, position) >= last, &s.bins.counts[(position - smallest) >> shift]);
  });
  __syncthreads();
  using Owned = OwnedBins<kThreads, decltype(s.bins)::kCount>;
  const std::uint32_t first = threadIdx.x * Owned::kCount;
  const Owned owned(s.bins, first);
  std::uint32_t total, before = sum_before<kThreads>(owned.sum, s.select.warp_totals, total);
#pragma unroll
  for (int i = 0; i < Owned::kCount; ++i) {
    s.bins.counts[first + i] = before;
    before += owned.counts[i];
  }
  __syncthreads();
  // Afterwards a bin says where it ends.
  winners.each([&](std::uint32_t, std::uint32_t position) {
    s.bucketed[atomicAdd(&s.bins.counts[(position - smallest) >> shift], 1U)] = position;
  });
  __syncthreads();
  write_winners<T, kThreads>(p, row, window, k, [&](std::uint32_t i) {
    const std::uint32_t position = s.bucketed[i], bin = (position - smallest) >> shift;
    const std::uint32_t begin = bin == 0 ? 0 : s.bins.counts[bin - 1], end = s.bins.counts[bin];
    std::uint32_t rank = begin;
    for (std::uint32_t j = begin; j < end; ++j) rank += s.bucketed[j] < position ? 1U : 0U;
    return Placed{rank, position};
  });
}

/// Selects among `found` candidates, given as items, and writes the row.
template <typename T, int kThreads, typename Items>
__device__ void select_and_write(const TopkParams& p, std::int64_t row, const RowWindow<T>& window, const Items& items,
                                 std::uint32_t found, std::uint32_t k, std::uint32_t capacity,
                                 FilterStorage<kThreads>& s) {
  Composite last = lowest_composite();  // every candidate wins
  if (found > k) last = kth_best<kThreads>(items, k, found, s.bins, s.select);
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
  if (p.order != TopkOrder::kByValue) {
    write_by_position(p, row, window, items, last, k, s);
    return;
  }
  if (threadIdx.x == 0) s.num_winners = 0;
  __syncthreads();
  AtLeast<Items>{items, last}.each([&](std::uint32_t key, std::uint32_t position) {
    s.winners[atomicAdd(&s.num_winners, 1U)] = composite_of(key, position);
  });
  __syncthreads();
  std::uint32_t room = 2;
  while (room < k) room *= 2;
  sort_descending<kThreads>(s.winners, k, room);
  write_winners<T, kThreads>(p, row, window, k, [&](std::uint32_t i) { return Placed{i, position_of(s.winners[i])}; });
}

/// Selects among the candidates and writes the row. s.bar says above which key all scores are candidates.
template <typename T, int kThreads>
__device__ void finish_row(const TopkParams& p, std::int64_t row, const RowWindow<T>& window, std::uint32_t capacity,
                           FilterStorage<kThreads>& s) {
  const auto k = static_cast<std::uint32_t>(min(p.k, static_cast<std::int64_t>(window.count)));
  if (s.num_candidates < k || s.num_candidates > capacity) take_exact_winners(window, k, s);
  const ArrayItems<kThreads> array{s.candidates, s.num_candidates};
  // As many candidates as usual fit registers.
  if (array.count <= 2048) {
    select_and_write(p, row, window, RegisterItems<kThreads, 2048 / kThreads>(array), array.count, k, capacity, s);
  } else if (array.count <= 6144) {
    select_and_write(p, row, window, RegisterItems<kThreads, 6144 / kThreads>(array), array.count, k, capacity, s);
  } else {
    select_and_write(p, row, window, array, array.count, k, capacity, s);
  }
}

}  // namespace tamis::topk_cuda
