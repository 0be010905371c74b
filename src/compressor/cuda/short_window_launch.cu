#include "compressor/cuda/dispatch.cuh"
#include "compressor/cuda/launch.hpp"
#include "compressor/cuda/short_window.cuh"

namespace tamis::compressor_cuda {

const char* why_no_image() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, short_window_kernel<float, float, 128>);
  if (error == cudaSuccess) return nullptr;
  static_cast<void>(cudaGetLastError());
  return cudaGetErrorString(error);
}

void launch_short_window(const StepParams& step, const StepGrid& grid) {
  dispatch_dtypes(step.p.input_dtype, step.p.state_dtype, [&](auto input, auto state) {
    core::Launch how{"short_window_kernel", grid.blocks, kShortThreads, 0, grid.stream};
    how.dependent = grid.dependent;
    if (step.p.head_dim == 128) core::launch(how, short_window_kernel<decltype(input), decltype(state), 128>, step);
    else core::launch(how, short_window_kernel<decltype(input), decltype(state), 512>, step);
  });
}

}  // namespace tamis::compressor_cuda
