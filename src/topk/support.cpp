#include "topk/support.hpp"

#include <algorithm>

#include "core/check.hpp"
#include "core/gpu_list.hpp"
#include "topk/params.hpp"
#ifdef TAMIS_HAS_CUDA
#include "core/cuda/gpu.hpp"
#include "topk/cuda/topk_cuda.hpp"
#endif

namespace tamis {
namespace {

#ifdef TAMIS_HAS_CUDA
// Asks the runtime, which may also fail on the way; that is a reason like any other.
std::optional<TopkGpu> ask_gpu(int device, std::string& why) {
  std::string driver;
  if (core::num_gpus(&driver) == 0) {
    why = core::concat("no CUDA device: ", driver);
    return std::nullopt;
  }
  try {
    why = topk_cuda::why_no_kernels(device);
    if (!why.empty()) return std::nullopt;
    return topk_cuda::topk_gpu(device);
  } catch (const Error& error) {
    why = error.what();
    return std::nullopt;
  }
}
#endif

// Why no call on this GPU can take the rule's algorithm; empty if some can.
std::string never_served(const TopkCudaRule& rule, const TopkGpu& gpu) {
  if (rule.max_k == kTopkFilterK && topk_filter_max_k(gpu) == 0) {
    return core::concat("a block of this GPU may have ", gpu.max_shared_bytes,
                        " bytes of shared memory, too few for the candidates");
  }
  return {};
}

}  // namespace

std::optional<TopkGpu> find_topk_gpu([[maybe_unused]] int device, std::string& why) {
#ifdef TAMIS_HAS_CUDA
  return ask_gpu(device, why);
#else
  why = core::kNoCudaInBuild;
  return std::nullopt;
#endif
}

TopkCudaLayout topk_cuda_layout(const TopkCase& c, TopkAlgorithm algorithm, const TopkGpu& gpu) {
  TopkCudaLayout layout;
  const std::uint32_t capacity = topk_capacity(std::min(c.k, c.width), gpu);
  switch (algorithm) {
    case TopkAlgorithm::kGrid:
      layout.blocks_per_row = topk_grid_slices(c.rows, c.width, gpu);
      layout.capacity = capacity;
      break;
    case TopkAlgorithm::kStream: layout.capacity = capacity; break;
    default: break;
  }
#ifdef TAMIS_HAS_CUDA
  TopkParams p;
  p.rows = c.rows;
  p.width = c.width;
  p.k = c.k;
  p.order = c.order;
  try {
    if (c.rows == 0) layout.workspace_bytes = 0;
    else layout.workspace_bytes = topk_cuda::make_plan(p, algorithm, gpu).workspace_bytes;
  } catch (const Error&) {
    layout.workspace_bytes.reset();  // CUB asks the device
  }
#endif
  return layout;
}

std::vector<TopkSupport> topk_support(Device device) {
  std::vector<TopkSupport> list;
  if (device.kind == Device::Kind::kCpu) {
    for (const TopkRule& rule : topk_rules()) list.push_back({rule.algorithm, true, {}});
    return list;
  }
  TAMIS_CHECK(device.kind == Device::Kind::kCuda, Status::kInvalidArgument, "topk_support: device has kind ",
              static_cast<int>(device.kind), ", must be kCpu or kCuda");
  std::string why;
  const std::optional<TopkGpu> gpu = find_topk_gpu(device.index, why);
  for (const TopkCudaRule& rule : topk_cuda_rules()) {
    const std::string missing = gpu ? never_served(rule, *gpu) : why;
    const auto same = [&](const TopkSupport& entry) { return entry.algorithm == rule.algorithm; };
    if (std::none_of(list.begin(), list.end(), same)) list.push_back({rule.algorithm, missing.empty(), missing});
  }
  return list;
}

}  // namespace tamis
