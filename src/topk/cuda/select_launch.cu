#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_segmented_radix_sort.cuh>

#include "core/cuda/cuda_check.hpp"
#include "core/cuda/launch.hpp"
#include "topk/cuda/dispatch.cuh"
#include "topk/cuda/launch.hpp"
#include "topk/cuda/select.cuh"

namespace tamis::topk_cuda {
namespace {

// CUB counts items and segments in 32 bits: more rows than these are sorted in turns.
std::int64_t rows_a_turn(std::int64_t rows, std::int64_t k) {
  constexpr std::int64_t kMostItems = std::int64_t{1} << 30;
  return std::clamp<std::int64_t>(kMostItems / std::max<std::int64_t>(1, k), 1, std::max<std::int64_t>(1, rows));
}

struct RowBegin {
  int k;
  __host__ __device__ int operator()(int row) const { return row * k; }
};

// Sorts the winners of `rows` rows; with temporary = null only sets its size.
cudaError_t sort_rows(void* temporary, std::size_t& bytes, const Composite* in, Composite* out, std::int64_t rows,
                      std::int64_t k, cudaStream_t stream) {
  const auto begins = thrust::make_transform_iterator(thrust::make_counting_iterator(0), RowBegin{static_cast<int>(k)});
  // CUB reports whatever error is pending as its own; one that the caller left behind must not fail this call.
  static_cast<void>(cudaGetLastError());
  return cub::DeviceSegmentedRadixSort::SortKeysDescending(temporary, bytes, in, out, static_cast<int>(rows * k),
                                                           static_cast<int>(rows), begins, begins + 1, 0, 64, stream);
}

}  // namespace

std::size_t select_workspace_bytes(std::int64_t rows, std::int64_t k) {
  return round_up_256(static_cast<std::size_t>(rows * k) * sizeof(Composite));
}

std::size_t cub_workspace_bytes(std::int64_t rows, std::int64_t k) {
  std::size_t temporary = 0;
  TAMIS_CUDA_CHECK(sort_rows(nullptr, temporary, nullptr, nullptr, rows_a_turn(rows, k), k, nullptr));
  return 2 * select_workspace_bytes(rows, k) + round_up_256(temporary);
}

void launch_select(const TopkParams& p, bool by_value, void* workspace, cudaStream_t stream) {
  const std::size_t array_bytes = select_workspace_bytes(p.rows, p.k);
  auto* found = static_cast<Composite*>(workspace);
  auto* sorted = reinterpret_cast<Composite*>(static_cast<char*>(workspace) + array_bytes);
  dispatch_dtype(p.dtype, [&](auto score) {
    core::launch({"select_kernel", p.rows, kSelectThreads, 0, stream}, select_kernel<decltype(score)>, p, found);
  });
  if (by_value) {
    std::size_t temporary = cub_workspace_bytes(p.rows, p.k) - 2 * array_bytes;
    const std::int64_t turn = rows_a_turn(p.rows, p.k);
    for (std::int64_t row = 0; row < p.rows; row += turn) {
      TAMIS_CUDA_CHECK(sort_rows(static_cast<char*>(workspace) + 2 * array_bytes, temporary, found + row * p.k,
                                 sorted + row * p.k, std::min(turn, p.rows - row), p.k, stream));
    }
  }
  dispatch_dtype(p.dtype, [&](auto score) {
    core::launch({"write_found_kernel", p.rows, kSelectThreads, 0, stream}, write_found_kernel<decltype(score)>, p,
                 static_cast<const Composite*>(by_value ? sorted : found));
  });
}

}  // namespace tamis::topk_cuda
