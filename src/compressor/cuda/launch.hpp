#pragma once

// The launchers, one a kernel and a .cu file each. They take checked params, enqueue and return.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "compressor/cuda/step_params.hpp"
#include "core/cuda/gpu.hpp"
#include "tamis/compressor.hpp"

namespace tamis::compressor_cuda {

/// Null, or what the runtime says of running these kernels on the current device.
const char* why_no_image();

/// How many clusters of how many blocks can be at work at once.
struct TallLimits {
  int cluster = 1;
  std::int64_t groups = 1;
};
TallLimits tall_limits(std::int64_t head_dim, const core::Gpu& gpu, int device);

/// For tests: most blocks of a cluster from now on, at most 16. More than 8 is not portable, and under synccheck of
/// compute-sanitizer 2025.3 such a launch of this kernel fails (docs/design/2026-12-compressor-cuda.md).
void set_most_cluster_blocks(int blocks);

/// How the kernel of a step is launched, beside what it gets itself.
struct StepGrid {
  std::int64_t blocks = 0;  // step.pool_blocks that pool, the others save
  int cluster = 1;          // blocks that share an entry; pool_blocks and blocks are multiples of it
  bool dependent = false;   // as core::Launch has it
  int device = 0;
  cudaStream_t stream = nullptr;
};
void launch_short_window(const StepParams& step, const StepGrid& grid);
void launch_tall_window(const StepParams& step, const StepGrid& grid);
void launch_any_window(const StepParams& step, const StepGrid& grid);

void launch_step_lists(const compressor::CompressorParams& p, std::span<const CompressList> lists, cudaStream_t stream);

}  // namespace tamis::compressor_cuda
