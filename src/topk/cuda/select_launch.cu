#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_segmented_radix_sort.cuh>

#include "core/cuda/cuda_check.hpp"
#include "topk/cuda/dispatch.cuh"
#include "topk/cuda/launch.hpp"
#include "topk/cuda/select.cuh"

namespace tamis::topk_cuda {
namespace {

constexpr std::size_t round_up_256(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

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
  return cub::DeviceSegmentedRadixSort::SortKeysDescending(temporary, bytes, in, out, static_cast<int>(rows * k),
                                                           static_cast<int>(rows), begins, begins + 1, 0, 64, stream);
}

struct CubWorkspace {
  std::size_t array_bytes, temporary_bytes = 0;
  CubWorkspace(std::int64_t rows, std::int64_t k) : array_bytes(round_up_256(static_cast<std::size_t>(rows * k) * 8)) {
    TAMIS_CUDA_CHECK(sort_rows(nullptr, temporary_bytes, nullptr, nullptr, rows_a_turn(rows, k), k, nullptr));
  }
};

}  // namespace

void launch_select(const TopkParams& p, cudaStream_t stream) {
  dispatch_dtype(p.dtype, [&](auto score) {
    select_kernel<decltype(score)><<<static_cast<unsigned>(p.rows), kSelectThreads, 0, stream>>>(p, nullptr);
    TAMIS_CUDA_CHECK(cudaGetLastError());
  });
}

std::size_t cub_workspace_bytes(std::int64_t rows, std::int64_t k) {
  const CubWorkspace sizes(rows, k);
  return 2 * sizes.array_bytes + round_up_256(sizes.temporary_bytes);
}

void launch_cub(const TopkParams& p, void* workspace, cudaStream_t stream) {
  CubWorkspace sizes(p.rows, p.k);
  auto* found = static_cast<Composite*>(workspace);
  auto* sorted = reinterpret_cast<Composite*>(static_cast<char*>(workspace) + sizes.array_bytes);
  void* temporary = static_cast<char*>(workspace) + 2 * sizes.array_bytes;
  dispatch_dtype(p.dtype, [&](auto score) {
    using T = decltype(score);
    const auto grid = static_cast<unsigned>(p.rows);
    select_kernel<T><<<grid, kSelectThreads, 0, stream>>>(p, found);
    TAMIS_CUDA_CHECK(cudaGetLastError());
    const std::int64_t turn = rows_a_turn(p.rows, p.k);
    for (std::int64_t row = 0; row < p.rows; row += turn) {
      TAMIS_CUDA_CHECK(sort_rows(temporary, sizes.temporary_bytes, found + row * p.k, sorted + row * p.k,
                                 std::min(turn, p.rows - row), p.k, stream));
    }
    write_sorted_kernel<T><<<grid, kSelectThreads, 0, stream>>>(p, sorted);
    TAMIS_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace tamis::topk_cuda
