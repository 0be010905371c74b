#pragma once

// Algorithm `select`: any k, one block a row. Finds the exact k-th by passes over the scores where they lie, then walks
// the row once more and lets winners leave in order. Algorithm `cub` is the same with winners left in the workspace,
// where CUB sorts them by value. Bound by some six reads of the row by one block. Definition: topk/reference.hpp.

#include <cstdint>

#include "topk/cuda/write_row.cuh"

namespace tamis::topk_cuda {

inline constexpr int kSelectThreads = 1024;

struct SelectRowStorage {
  Bins<4096> bins;
  SelectStorage select;
  std::uint32_t warp_totals[2][32];
  CertificateStorage certificate;
};

/// Leaves composites of the winners in the workspace, [rows, k], in ascending position, zeros after them.
template <typename T>
__global__ void __launch_bounds__(kSelectThreads)
    select_kernel(const __grid_constant__ TopkParams p, Composite* found) {
  __shared__ SelectRowStorage s;
  constexpr int kThreads = kSelectThreads;
  constexpr std::uint32_t kPerThread = 4;
  const std::int64_t row = blockIdx.x;
  const RowWindow<T> window = row_window<T>(p, row);
  const auto k = static_cast<std::uint32_t>(min(p.k, static_cast<std::int64_t>(window.count)));
  const WindowItems<T, kThreads> items{window};

  Composite last = lowest_composite();
  if (k < window.count) last = kth_best<kThreads>(items, k, window.count, s.bins, s.select);
  if (p.certificate != nullptr) {
    write_certificate<kThreads>(p, row, AtLeast<WindowItems<T, kThreads>>{items, last}, k, items, s.certificate);
  }
  std::uint32_t rank = 0;
  for (std::uint32_t base = 0, turn = 0; base < window.count && rank < k; base += kThreads * kPerThread, ++turn) {
    Composite mine[kPerThread];
    std::uint32_t wins = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kPerThread; ++i) {
      const std::uint32_t position = base + threadIdx.x * kPerThread + i;
      mine[i] = position >= base && position < window.count ? window.composite(position) : 0;
      wins += mine[i] >= last ? 1U : 0U;
    }
    std::uint32_t total;
    std::uint32_t at = rank + sum_before<kThreads>(wins, s.warp_totals[turn % 2], total);
#pragma unroll
    for (std::uint32_t i = 0; i < kPerThread; ++i) {
      if (mine[i] >= last) found[row * p.k + at++] = mine[i];
    }
    rank += total;
  }
  for (std::int64_t i = k + threadIdx.x; i < p.k; i += kThreads) found[row * p.k + i] = 0;
}

/// Winners in the order in which they stand in the workspace.
template <typename T>
__global__ void __launch_bounds__(kSelectThreads)
    write_found_kernel(const __grid_constant__ TopkParams p, const Composite* found) {
  const std::int64_t row = blockIdx.x;
  const RowWindow<T> window = row_window<T>(p, row);
  write_winners<T, kSelectThreads>(p, row, window, window.count, [&](std::uint32_t i) {
    return Placed{i, position_of(found[row * p.k + i])};
  });
}

}  // namespace tamis::topk_cuda
