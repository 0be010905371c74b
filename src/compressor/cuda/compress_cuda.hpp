#pragma once

// The compressor on CUDA, as the entries see it. Host types only: this header compiles without a CUDA toolkit.

#include <cstddef>
#include <cstdint>
#include <span>

#include "compressor/params.hpp"
#include "compressor/rules.hpp"
#include "tamis/compressor.hpp"

namespace tamis::compressor_cuda {

/// How a step is laid out over the device. A function of shapes, dtypes, alignment and device.
struct StepPlan {
  const compressor::CompressorCudaRule* rule = nullptr;
  std::int64_t pool_groups = 0;  // teams that pool an entry each at a time: blocks, clusters of blocks, or warps
  int cluster = 1;               // blocks
  std::size_t workspace_bytes = 0;
};

/// @throws Error kDeviceError without such a device; kUnsupported if this binary has no kernel for it, or a forced
///         algorithm cannot serve the step.
StepPlan make_plan(const compressor::CompressorParams& p, CompressAlgorithm forced, int device);

/// Enqueues a checked step on `stream` of `device` and returns; tokens > 0.
/// @param pool  False: state is saved, nothing else is looked at.
void run(const compressor::CompressorParams& p, const StepPlan& plan, bool pool, void* workspace, int device,
         void* stream);

/// Enqueues the lists of a step; `p` holds positions, requests and their ranges.
void build_lists(const compressor::CompressorParams& p, std::span<const CompressList> lists, int device, void* stream);

bool is_capturing(int device, void* stream);

}  // namespace tamis::compressor_cuda
