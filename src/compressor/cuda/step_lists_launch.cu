#include "compressor/cuda/launch.hpp"
#include "compressor/cuda/step_lists.cuh"
#include "core/cuda/launch.hpp"

namespace tamis::compressor_cuda {

void launch_step_lists(const compressor::CompressorParams& p, std::span<const CompressList> lists,
                       cudaStream_t stream) {
  StepListsParams params{p, {}};
  for (std::size_t i = 0; i < lists.size(); ++i) {
    params.lists[i] = {lists[i].compress_ratio, static_cast<std::int32_t*>(lists[i].tokens.data()),
                       lists[i].tokens.size(0)};
  }
  core::launch({"step_lists_kernel", static_cast<std::int64_t>(lists.size()), StepListsConfig::kThreads, 0, stream},
               step_lists_kernel, params);
}

}  // namespace tamis::compressor_cuda
