#include <atomic>

#include "compressor/cuda/any_window.cuh"
#include "compressor/cuda/dispatch.cuh"
#include "compressor/cuda/launch.hpp"
#include "core/cuda/gpu.hpp"

namespace tamis::compressor_cuda {

void launch_any_window(const StepParams& step, const StepGrid& grid) {
  constexpr std::size_t kMostBytes =
      AnyWindowStorage::bytes(2 * compressor::kMaxRatio, AnyWindowConfig::kSharedDims);  // 88 KiB, which all GPUs have
  dispatch_dtypes(step.p.input_dtype, step.p.state_dtype, [&](auto input, auto state) {
    constexpr auto kernel = any_window_kernel<decltype(input), decltype(state)>;
    static std::atomic<std::uint64_t> prepared{0};
    core::once_per_device(prepared, grid.device, [&] {
      TAMIS_CUDA_CHECK(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMostBytes)));
    });
    core::Launch how{"any_window_kernel", grid.blocks, AnyWindowConfig::kThreads,
                     AnyWindowStorage::bytes(step.p.window(), step.p.head_dim), grid.stream};
    how.dependent = grid.dependent;
    core::launch(how, kernel, step);
  });
}

}  // namespace tamis::compressor_cuda
