#pragma once

// The end of every kernel that filters: candidates of a row -> its k winners -> the caller's memory. Also the slow
// exact pass, for a row whose bar was too high or whose candidates did not fit.

#include <cstdint>

#include "topk/cuda/filter.cuh"
#include "topk/cuda/write_row.cuh"

namespace tamis::topk_cuda {

static_assert(sizeof(OrderStorage) <= 8192 * sizeof(Composite), "winners are ordered where the candidates were");

/// Rows of at most `capacity` scores need no bar: all of them become candidates.
template <typename T>
__device__ void take_whole_window(const RowWindow<T>& window, FilterStorage& s) {
  for (std::uint32_t i = threadIdx.x; i < window.count; i += kFilterThreads) s.candidates[i] = window.composite(i);
  if (threadIdx.x == 0) {
    s.num_candidates = window.count;
    s.bar = {0, 0};
  }
  __syncthreads();
}

/// Candidates as the exact winners, found by passes over the whole window.
template <typename T>
__device__ void take_exact_winners(const RowWindow<T>& window, std::uint32_t k, FilterStorage& s) {
  const WindowItems<T, kFilterThreads> items{window};
  const Composite last = kth_largest<kFilterThreads>(items, k, window.count, s.bins, s.select);
  if (threadIdx.x == 0) {
    s.num_candidates = 0;
    s.bar = {~0U, 0};  // no candidate but the winners: the certificate has to look at the window
  }
  __syncthreads();
  items.each([&](Composite c) {
    if (c >= last) s.candidates[atomicAdd(&s.num_candidates, 1U)] = c;
  });
  __syncthreads();
}

/// Selects among the candidates and writes the row. s.bar says above which key all scores are candidates.
template <typename T>
__device__ void finish_row(const TopkParams& p, std::int64_t row, const RowWindow<T>& window, std::uint32_t capacity,
                           FilterStorage& s) {
  constexpr int kThreads = kFilterThreads;
  const auto k = min(static_cast<std::uint32_t>(p.k), window.count);
  if (s.num_candidates < k || s.num_candidates > capacity) take_exact_winners(window, k, s);
  const std::uint32_t found = s.num_candidates;

  Composite last = 0;  // every candidate wins
  if (found > k)
    last = kth_largest<kThreads>(ArrayItems<kThreads>{s.candidates, found}, k, window.count, s.bins, s.select);
  if (threadIdx.x == 0) s.num_winners = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < found; i += kThreads) {
    if (s.candidates[i] >= last) s.winners[atomicAdd(&s.num_winners, 1U)] = s.candidates[i];
  }
  __syncthreads();

  if (p.certificate != nullptr) {
    auto& storage = *reinterpret_cast<CertificateStorage*>(&s.sample);
    const ArrayItems<kThreads> winners{s.winners, k};
    // Candidates hold all equals of the last winner if that ranks above the bar.
    if (k > 0 && window.count > capacity && key_of(last) <= s.bar.key) {
      write_certificate<kThreads>(p, row, winners, k, WindowItems<T, kThreads>{window}, storage);
    } else {
      write_certificate<kThreads>(p, row, winners, k, ArrayItems<kThreads>{s.candidates, found}, storage);
    }
  }

  const RowWriter<T> out(p, row, window);
  if (p.order == TopkOrder::kByValue) {
    std::uint32_t room = 2;
    while (room < k) room *= 2;
    sort_descending<kThreads>(s.winners, k, room);
    for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) out.winner(i, position_of(s.winners[i]));
  } else {
    order_by_position<kThreads>(s.winners, k, window.count, *reinterpret_cast<OrderStorage*>(s.candidates),
                                s.select.warp_totals,
                                [&](std::uint32_t rank, std::uint32_t position) { out.winner(rank, position); });
  }
  out.template nothing_from<kThreads>(k);
}

}  // namespace tamis::topk_cuda
