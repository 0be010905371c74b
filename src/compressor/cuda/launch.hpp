#pragma once

// The launchers, one a kernel and a .cu file each. They take checked params, enqueue and return.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "compressor/cuda/step_params.hpp"
#include "tamis/compressor.hpp"

namespace tamis::compressor_cuda {

/// Null, or what the runtime says of running these kernels on the current device.
const char* why_no_image();

/// The grid has step.pool_blocks that pool and save_blocks that save.
void launch_short_window(const StepParams& step, std::int64_t save_blocks, cudaStream_t stream);
/// @param slice    Channels that a block pools at a time: 32 or 64.
/// @param cluster  Blocks that share an entry; pool_blocks and save_blocks are multiples of it.
void launch_tall_window(const StepParams& step, std::int64_t save_blocks, int slice, int cluster, int device,
                        cudaStream_t stream);
void launch_any_window(const StepParams& step, std::int64_t save_blocks, int device, cudaStream_t stream);

void launch_step_lists(const compressor::CompressorParams& p, std::span<const CompressList> lists, cudaStream_t stream);

}  // namespace tamis::compressor_cuda
