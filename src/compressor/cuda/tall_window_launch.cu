#include <atomic>

#include "compressor/cuda/dispatch.cuh"
#include "compressor/cuda/launch.hpp"
#include "compressor/cuda/tall_window.cuh"
#include "core/cuda/gpu.hpp"

namespace tamis::compressor_cuda {
namespace {

template <int kSlice>
void launch(const StepParams& step, std::int64_t save_blocks, int cluster, int device, cudaStream_t stream) {
  dispatch_dtypes(step.p.input_dtype, step.p.state_dtype, [&](auto input, auto state) {
    constexpr auto kernel = tall_window_kernel<decltype(input), decltype(state), kSlice>;
    constexpr auto kBytes = static_cast<int>(sizeof(TallWindowStorage<kSlice>));
    static std::atomic<std::uint64_t> prepared{0};
    core::once_per_device(prepared, device, [&] {
      TAMIS_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    });
    core::Launch how{"tall_window_kernel", step.pool_blocks + save_blocks, TallWindowConfig<kSlice>::kThreads, kBytes,
                     stream};
    how.cluster = cluster;
    core::launch(how, kernel, step);
  });
}

}  // namespace

void launch_tall_window(const StepParams& step, std::int64_t save_blocks, int slice, int cluster, int device,
                        cudaStream_t stream) {
  if (slice == 64) launch<64>(step, save_blocks, cluster, device, stream);
  else launch<32>(step, save_blocks, cluster, device, stream);
}

}  // namespace tamis::compressor_cuda
