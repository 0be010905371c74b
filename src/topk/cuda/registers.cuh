#pragma once

// Algorithm `registers`: one block a row, the key of every score of the row in a register of the block, the exact k-th
// found among them without a sample; winners leave in the order in which they lie. Bound by:   instructions, some 30 a
// score, and the latency of ten barriers. Sync:       within the block only. Definition: topk/reference.hpp.

#include <cstdint>

#include "topk/cuda/write_row.cuh"

namespace tamis::topk_cuda {

/// Vector i of thread t holds positions (i * kThreads + t) * kPerVector and on.
template <typename T, int kThreads, int kVectors>
struct RegisterRow {
  static constexpr int kPerVector = ScoreFormat<T>::kPerVector;
  static constexpr int kScores = kVectors * kPerVector;  // a thread

  std::uint32_t keys[kScores];  // kNoKey past the window

  __device__ static std::uint32_t first_position(int i) { return (i * kThreads + threadIdx.x) * kPerVector; }

  __device__ explicit RegisterRow(const RowWindow<T>& window) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(window.scores) % 16 == 0;
    uint4 vectors[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint32_t first = first_position(i);
      if (aligned && first + kPerVector <= window.count) {
        vectors[i] = load_vector(reinterpret_cast<const uint4*>(window.scores + first));
      } else {
        // The row's end, or a row that begins between two vectors.
        T scores[kPerVector];
#pragma unroll
        for (int j = 0; j < kPerVector; ++j) scores[j] = first + j < window.count ? window.scores[first + j] : T(0.0F);
        vectors[i] = *reinterpret_cast<const uint4*>(scores);
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) {
        const std::uint32_t key = key_of(ScoreFormat<T>::element(vectors[i], j));
        keys[i * kPerVector + j] = first_position(i) + j < window.count ? key : kNoKey;
      }
    }
  }

  template <typename F>
  __device__ void each(F f) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) f(keys[i], first_position(i / kPerVector) + i % kPerVector);
  }
};

struct RegistersStorage {
  std::uint32_t bins[kBins];
  SelectStorage select;
  std::uint32_t warp_totals[4][32];
  CertificateStorage certificate;
  std::uint32_t num_winners;
};

/// Dynamic shared memory: for TopkOrder::kByValue `room` composites, a power of two; else the winners' positions, 2
/// bytes each.
template <typename T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    registers_kernel(const __grid_constant__ TopkParams p, std::uint32_t room) {
  using Row = RegisterRow<T, kThreads, kVectors>;
  __shared__ RegistersStorage s;
  extern __shared__ uint4 dynamic_shared[];

  const std::int64_t row = blockIdx.x;
  const RowWindow<T> window = row_window<T>(p, row);
  const auto k = static_cast<std::uint32_t>(min(p.k, static_cast<std::int64_t>(window.count)));
  const bool all_win = k == window.count;
  if (all_win && p.order != TopkOrder::kByValue && p.certificate == nullptr) {
    write_whole_window<T, kThreads>(p, row, window);
    return;
  }

  const Row items(window);
  Composite last = lowest_composite();
  if (!all_win) last = kth_best<kThreads>(items, k, window.count, s.bins, s.select);
  if (p.certificate != nullptr) {
    write_certificate<kThreads>(p, row, AtLeast<Row>{items, last}, k, items, s.certificate);
  }

  if (p.order == TopkOrder::kByValue) {
    auto* sorted = reinterpret_cast<Composite*>(dynamic_shared);
    if (threadIdx.x == 0) s.num_winners = 0;
    __syncthreads();
    AtLeast<Row>{items, last}.each([&](std::uint32_t key, std::uint32_t position) {
      sorted[atomicAdd(&s.num_winners, 1U)] = composite_of(key, position);
    });
    __syncthreads();
    sort_descending<kThreads>(sorted, k, room);
    write_winners<T, kThreads>(p, row, window, k, [&](std::uint32_t i) { return position_of(sorted[i]); });
    return;
  }

  // Ranks: positions grow with the vector's number, then with the thread. Counts of two vectors travel in one word.
  auto* positions = reinterpret_cast<std::uint16_t*>(dynamic_shared);
  const std::uint32_t last_key = key_of(last), last_position = position_of(last);
  constexpr int kPerVector = Row::kPerVector;
  std::uint32_t base = 0;
#pragma unroll
  for (int i = 0; i < kVectors; i += 2) {
    std::uint32_t wins[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2 && i + half < kVectors; ++half) {
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) {
        const std::uint32_t key = items.keys[(i + half) * kPerVector + j];
        const bool won = key > last_key || (key == last_key && Row::first_position(i + half) + j <= last_position);
        wins[half] |= won ? 1U << j : 0U;
      }
    }
    std::uint32_t total;
    const auto counts = static_cast<std::uint32_t>(__popc(wins[0]) | __popc(wins[1]) << 16);
    const std::uint32_t before = sum_before<kThreads>(counts, s.warp_totals[i / 2], total);
#pragma unroll
    for (int half = 0; half < 2 && i + half < kVectors; ++half) {
      std::uint32_t rank = base + (before >> 16 * half & 0xFFFFU);
      const std::uint32_t first = Row::first_position(i + half);
      for (std::uint32_t left = wins[half]; left != 0; left &= left - 1) {
        positions[rank++] = static_cast<std::uint16_t>(first + __ffs(static_cast<int>(left)) - 1);
      }
      base += total >> 16 * half & 0xFFFFU;
    }
  }
  __syncthreads();
  write_winners<T, kThreads>(p, row, window, k, [&](std::uint32_t i) { return positions[i]; });
}

}  // namespace tamis::topk_cuda
