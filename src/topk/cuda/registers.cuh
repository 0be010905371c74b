#pragma once

// Algorithm `registers`: one block a row, the key of every score of the row in a register of the block, the exact k-th
// found among them without a sample; winners leave in the order in which they lie. Bound by instructions, some 30 a
// score, and the latency of ten barriers. Synchronises within the block only. Definition: topk/reference.hpp.

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
        alignas(16) T scores[kPerVector];
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

/// Winners that are sorted by value, a power of two.
inline constexpr std::uint32_t kMostSorted = 4096;

struct RegistersStorage {
  Bins<8192> bins;  // 16 an octave of scores: of 8,192 normal ones some 80 share the k-th's
  SelectStorage select;
  std::uint32_t warp_totals[2][32];
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
    write_winners<T, kThreads>(p, row, window, k, [&](std::uint32_t i) { return Placed{i, position_of(sorted[i])}; });
    return;
  }

  // Ranks: positions grow with the vector's number, then with the thread. A thread's counts of its vectors travel
  // together, 8 bits each, through the warp (32 lanes of 8 scores are at most 256: the last lane's own are added apart)
  // ...
  constexpr int kPerVector = Row::kPerVector;
  static_assert(kVectors <= 4 && 31 * kPerVector < 256, "four counts of 8 bits");
  const std::uint32_t last_key = key_of(last), last_position = position_of(last);
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t wins[kVectors], counts = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    wins[i] = 0;
#pragma unroll
    for (int j = 0; j < kPerVector; ++j) {
      const std::uint32_t key = items.keys[i * kPerVector + j];
      const bool won = key > last_key || (key == last_key && Row::first_position(i) + j <= last_position);
      wins[i] |= won ? 1U << j : 0U;
    }
    counts |= static_cast<std::uint32_t>(__popc(wins[i])) << 8 * i;
  }
  std::uint32_t before = __shfl_up_sync(kAllLanes, counts, 1);
  if (lane == 0) before = 0;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAllLanes, before, step);
    if (lane >= step) before += below;
  }
  // ... and 16 bits each over the block.
  if (lane == 31) {
#pragma unroll
    for (int half = 0; half < (kVectors + 1) / 2; ++half) {
      const std::uint32_t low = (before >> 16 * half & 0xFFU) + (counts >> 16 * half & 0xFFU);
      const std::uint32_t high = (before >> (16 * half + 8) & 0xFFU) + (counts >> (16 * half + 8) & 0xFFU);
      s.warp_totals[half][warp] = low | high << 16;
    }
  }
  __syncthreads();
  auto* positions = reinterpret_cast<std::uint16_t*>(dynamic_shared);
  std::uint32_t base = 0;
#pragma unroll
  for (int half = 0; half < (kVectors + 1) / 2; ++half) {
    const std::uint32_t of_warp = lane < kThreads / 32 ? s.warp_totals[half][lane] : 0;
    const std::uint32_t warps_before = __reduce_add_sync(kAllLanes, lane < warp ? of_warp : 0);
    const std::uint32_t total = __reduce_add_sync(kAllLanes, of_warp);
#pragma unroll
    for (int i = 2 * half; i < kVectors && i < 2 * half + 2; ++i) {
      std::uint32_t rank = base + (warps_before >> 16 * (i % 2) & 0xFFFFU) + (before >> 8 * i & 0xFFU);
      const std::uint32_t first = Row::first_position(i);
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) {
        if ((wins[i] >> j & 1U) != 0) positions[rank++] = static_cast<std::uint16_t>(first + j);
      }
      base += total >> 16 * (i % 2) & 0xFFFFU;
    }
  }
  __syncthreads();
  write_winners<T, kThreads>(p, row, window, k, [&](std::uint32_t i) { return Placed{i, positions[i]}; });
}

}  // namespace tamis::topk_cuda
