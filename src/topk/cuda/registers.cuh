#pragma once

// Algorithm `registers`: one block a row, every score of the row in a register of the block, the exact k-th found among
// them without a sample; winners leave in the order in which they lie.
// Bound by:   latency: one read of the row, then counting, whose rounds are barriers.
// Sync:       within the block only.
// Definition: topk/reference.hpp.

#include <cstdint>

#include "topk/cuda/write_row.cuh"

namespace tamis::topk_cuda {

/// Vector i of thread t holds positions (i * kThreads + t) * kPerVector and on.
template <typename T, int kThreads, int kVectors>
struct RegisterRow {
  static constexpr int kPerVector = ScoreFormat<T>::kPerVector;
  static constexpr std::uint32_t kCapacity = static_cast<std::uint32_t>(kThreads) * kVectors * kPerVector;

  std::uint32_t keys[kVectors * kPerVector];
  std::uint32_t count;

  __device__ static std::uint32_t first_position(int i) { return (i * kThreads + threadIdx.x) * kPerVector; }

  __device__ explicit RegisterRow(const RowWindow<T>& window) : count(window.count) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(window.scores) % 16 == 0;
    uint4 vectors[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint32_t first = first_position(i);
      if (aligned && first + kPerVector <= count) {
        vectors[i] = load_vector(reinterpret_cast<const uint4*>(window.scores + first));
      } else {
        // The row's end, or a row that begins between two vectors.
        T scores[kPerVector];
#pragma unroll
        for (int j = 0; j < kPerVector; ++j) scores[j] = first + j < count ? window.scores[first + j] : T(0.0F);
        vectors[i] = *reinterpret_cast<const uint4*>(scores);
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors * kPerVector; ++i) {
      keys[i] = key_of(ScoreFormat<T>::element(vectors[i / kPerVector], i % kPerVector));
    }
  }

  template <typename F>
  __device__ void each(F f) const {
#pragma unroll
    for (int i = 0; i < kVectors * kPerVector; ++i) {
      const std::uint32_t position = first_position(i / kPerVector) + i % kPerVector;
      if (position < count) f(composite_of(keys[i], position));
    }
  }
};

struct RegistersStorage {
  std::uint32_t bins[kBins];
  SelectStorage select;
  std::uint32_t warp_totals[4][32];
  CertificateStorage certificate;
  std::uint32_t num_winners;
};

/// @param winners_room  Dynamic shared memory holds so many winners, a power of two; only for TopkOrder::kByValue.
template <typename T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads)
    registers_kernel(const __grid_constant__ TopkParams p, std::uint32_t winners_room) {
  using Row = RegisterRow<T, kThreads, kVectors>;
  __shared__ RegistersStorage s;
  extern __shared__ uint4 dynamic_shared[];
  auto* sorted = reinterpret_cast<Composite*>(dynamic_shared);

  const std::int64_t row = blockIdx.x;
  const RowWindow<T> window = row_window<T>(p, row);
  const auto k = static_cast<std::uint32_t>(min(p.k, static_cast<std::int64_t>(window.count)));
  const RowWriter<T> out(p, row, window);
  const bool all_win = k == window.count;
  if (all_win && p.order != TopkOrder::kByValue && p.certificate == nullptr) {
    out.template whole_window<kThreads>();
    return;
  }

  const Row items(window);
  Composite last = 0;
  if (!all_win) last = kth_largest<kThreads>(items, k, window.count, s.bins, s.select);
  if (p.certificate != nullptr) {
    write_certificate<kThreads>(p, row, AtLeast<Row>{items, last}, k, items, s.certificate);
  }
  out.template nothing_from<kThreads>(k);

  if (p.order == TopkOrder::kByValue) {
    if (threadIdx.x == 0) s.num_winners = 0;
    __syncthreads();
    AtLeast<Row>{items, last}.each([&](Composite c) { sorted[atomicAdd(&s.num_winners, 1U)] = c; });
    __syncthreads();
    sort_descending<kThreads>(sorted, k, winners_room);
    for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) out.winner(i, position_of(sorted[i]));
    return;
  }

  // Ranks: positions grow with the vector's number, then with the thread. Counts of two vectors travel in one word.
  constexpr int kPerVector = Row::kPerVector;
  std::uint32_t base = 0;
#pragma unroll
  for (int i = 0; i < kVectors; i += 2) {
    std::uint32_t counts = 0, wins[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2 && i + half < kVectors; ++half) {
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) {
        const std::uint32_t position = Row::first_position(i + half) + j;
        const bool wins_here =
            position < window.count && composite_of(items.keys[(i + half) * kPerVector + j], position) >= last;
        wins[half] |= wins_here ? 1U << j : 0U;
      }
      counts |= static_cast<std::uint32_t>(__popc(wins[half])) << 16 * half;
    }
    std::uint32_t total;
    const std::uint32_t before = sum_before<kThreads>(counts, s.warp_totals[i / 2], total);
#pragma unroll
    for (int half = 0; half < 2 && i + half < kVectors; ++half) {
      std::uint32_t rank = base + (before >> 16 * half & 0xFFFFU);
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) {
        if ((wins[half] >> j & 1U) != 0) out.winner(rank++, Row::first_position(i + half) + j);
      }
      base += total >> 16 * half & 0xFFFFU;
    }
  }
}

}  // namespace tamis::topk_cuda
