#pragma once

// Algorithm `identity`: no row has more than k scores, or k is 0. One block a row; scores are read only for values and
// certificates.

#include "topk/cuda/write_row.cuh"

namespace tamis::topk_cuda {

inline constexpr int kIdentityThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kIdentityThreads) identity_kernel(const __grid_constant__ TopkParams p) {
  __shared__ CertificateStorage s;
  const std::int64_t row = blockIdx.x;
  const RowWindow<T> window = row_window<T>(p, row);
  write_whole_window<T, kIdentityThreads>(p, row, window);
  if (p.certificate == nullptr) return;
  const WindowItems<T, kIdentityThreads> items{window};
  const auto num_winners = static_cast<std::uint32_t>(min(p.k, static_cast<std::int64_t>(window.count)));
  write_certificate<kIdentityThreads>(p, row, items, num_winners, items, s);
}

}  // namespace tamis::topk_cuda
