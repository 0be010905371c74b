#pragma once

// Top-k on CUDA, as the entry sees it. Host types only: this header compiles without a CUDA toolkit.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "topk/params.hpp"
#include "topk/rules.hpp"

namespace tamis::topk_cuda {

/// How a call is laid out over blocks and workspace. A function of shapes, k, dtype, order, algorithm and GPU.
struct TopkPlan {
  TopkAlgorithm algorithm = TopkAlgorithm::kIdentity;
  int slices = 1;              // of a row; grid
  int threads = 0;             // a block; stream, grid
  std::uint32_t capacity = 0;  // candidates a block holds; stream, grid
  std::size_t workspace_bytes = 0;
};

/// What the rules need to know of a device.
/// @throws Error kDeviceError without such a device; kUnsupported if this binary has no kernel for it.
TopkGpu topk_gpu(int device);

/// Why the device cannot run these kernels; empty if it can.
std::string why_no_kernels(int device);

/// @param device  Where the call runs; absent: an algorithm that asks the device asks the current one.
TopkPlan make_plan(const TopkParams& p, TopkAlgorithm algorithm, const TopkGpu& gpu, std::optional<int> device = {});

/// Enqueues a checked call on `stream` of `device` and returns. `workspace` has plan.workspace_bytes, 64-byte aligned.
void run_topk(const TopkParams& p, const TopkPlan& plan, void* workspace, int device, void* stream);

}  // namespace tamis::topk_cuda
