#include <atomic>

#include "core/cuda/gpu.hpp"
#include "core/cuda/launch.hpp"
#include "topk/cuda/dispatch.cuh"
#include "topk/cuda/grid.cuh"
#include "topk/cuda/launch.hpp"

namespace tamis::topk_cuda {
namespace {

std::size_t header_bytes(std::int64_t rows, int slices) {
  return round_up_256(static_cast<std::size_t>(rows * slices) * sizeof(SliceHeader));
}

}  // namespace

std::size_t grid_workspace_bytes(std::int64_t rows, int slices, std::uint32_t capacity) {
  return header_bytes(rows, slices) + static_cast<std::size_t>(rows * slices) * capacity * sizeof(Candidate);
}

void launch_grid(const TopkParams& p, std::uint32_t capacity, int slices, int threads, void* workspace, int device,
                 cudaStream_t stream) {
  const GridWorkspace arrays{
      static_cast<SliceHeader*>(workspace),
      reinterpret_cast<Candidate*>(static_cast<char*>(workspace) + header_bytes(p.rows, slices))};
  const auto num_slices = static_cast<std::uint32_t>(slices);
  dispatch_dtype(p.dtype, [&](auto score) {
    dispatch_threads(threads, [&](auto num_threads) {
      constexpr auto filter_kernel = grid_filter_kernel<decltype(score), num_threads.value>;
      constexpr auto finish_kernel = grid_finish_kernel<decltype(score), num_threads.value>;
      static std::atomic<std::uint64_t> prepared{0};
      core::once_per_device(prepared, device, [&] {
        const auto most = static_cast<int>(core::gpu(device).max_shared_bytes);
        TAMIS_CUDA_CHECK(cudaFuncSetAttribute(filter_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
        TAMIS_CUDA_CHECK(cudaFuncSetAttribute(finish_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
      });
      const std::size_t shared = FilterStorage<num_threads.value>::bytes(capacity);
      core::launch({"grid_filter_kernel", p.rows * slices, num_threads.value, shared, stream}, filter_kernel, p,
                   capacity, num_slices, arrays);
      core::Launch finish{"grid_finish_kernel", p.rows, num_threads.value, shared, stream};
      finish.dependent = core::gpu(device).compute_capability >= 90;
      core::launch(finish, finish_kernel, p, capacity, num_slices, arrays);
    });
  });
}

}  // namespace tamis::topk_cuda
