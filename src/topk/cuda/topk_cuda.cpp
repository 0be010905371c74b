#include "topk/cuda/topk_cuda.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "core/cuda/gpu.hpp"
#include "topk/cuda/launch.hpp"

namespace tamis::topk_cuda {

std::string why_no_kernels(int device) {
  const core::Gpu& gpu = core::gpu(device);
  const core::DeviceGuard guard(device);
  const char* why = why_no_image();
  if (why == nullptr) return {};
  return core::concat("no kernel for ", gpu.name, " (sm_", gpu.compute_capability, ") in this binary, built for ",
                      TAMIS_CUDA_ARCHS, ": ", why);
}

TopkGpu topk_gpu(int device) {
  static std::array<TopkGpu, core::kMaxGpus> known;
  static std::array<std::once_flag, core::kMaxGpus> read;
  const core::Gpu& gpu = core::gpu(device);
  const auto at = static_cast<std::size_t>(device);
  std::call_once(read[at], [&] {
    const std::string why = why_no_kernels(device);
    TAMIS_CHECK(why.empty(), Status::kUnsupported, "topk: ", why);
    known[at] = {gpu.num_sms, gpu.max_shared_bytes, gpu.compute_capability};
  });
  return known[at];
}

TopkPlan make_plan(const TopkParams& p, TopkAlgorithm algorithm, const TopkGpu& gpu, std::optional<int> device) {
  TopkPlan plan;
  plan.algorithm = algorithm;
  plan.capacity = topk_capacity(std::min(p.k, p.width), gpu);
  switch (algorithm) {
    case TopkAlgorithm::kStream: plan.threads = topk_filter_threads(p.rows, plan.capacity, gpu); break;
    case TopkAlgorithm::kGrid:
      plan.slices = topk_grid_slices(p.rows, p.width, gpu);
      plan.threads = topk_filter_threads(p.rows * plan.slices, plan.capacity, gpu);
      plan.workspace_bytes = grid_workspace_bytes(p.rows, plan.slices, plan.capacity);
      break;
    case TopkAlgorithm::kSelect: plan.workspace_bytes = select_workspace_bytes(p.rows, p.k); break;
    case TopkAlgorithm::kCub: {
      std::optional<core::DeviceGuard> guard;  // CUB asks the current device
      if (device) guard.emplace(*device);
      plan.workspace_bytes = cub_workspace_bytes(p.rows, p.k);
      break;
    }
    default: break;
  }
  return plan;
}

void run_topk(const TopkParams& p, const TopkPlan& plan, void* workspace, int device, void* stream_handle) {
  if (p.rows == 0) return;  // a grid of zero blocks is a launch error
  const core::DeviceGuard guard(device);
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  switch (plan.algorithm) {
    case TopkAlgorithm::kIdentity: return launch_identity(p, stream);
    case TopkAlgorithm::kRegisters: return launch_registers(p, p.rows > core::gpu(device).num_sms, device, stream);
    case TopkAlgorithm::kStream: return launch_stream(p, plan.capacity, plan.threads, device, stream);
    case TopkAlgorithm::kGrid:
      return launch_grid(p, plan.capacity, plan.slices, plan.threads, workspace, device, stream);
    case TopkAlgorithm::kSelect: return launch_select(p, false, workspace, stream);
    case TopkAlgorithm::kCub: return launch_select(p, true, workspace, stream);
    default: core::fail(Status::kInternal, "topk: algorithm ", topk_algorithm_name(plan.algorithm), " has no kernel");
  }
}

}  // namespace tamis::topk_cuda
