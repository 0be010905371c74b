#include "compressor/cuda/compress_cuda.hpp"

#include <algorithm>
#include <array>
#include <mutex>

#include "compressor/cuda/launch.hpp"
#include "compressor/cuda/step_params.hpp"
#include "core/cuda/gpu.hpp"

namespace tamis::compressor_cuda {

using compressor::CompressorParams;

namespace {

// The device, once it is known that this binary has kernels for it.
const core::Gpu& gpu_with_kernels(int device) {
  static std::array<std::once_flag, core::kMaxGpus> asked;
  const core::Gpu& gpu = core::gpu(device);
  std::call_once(asked[static_cast<std::size_t>(device)], [&] {
    const core::DeviceGuard guard(device);
    const char* why = why_no_image();
    TAMIS_CHECK(why == nullptr, Status::kUnsupported, "compress: no kernel for ", gpu.name, " (sm_",
                gpu.compute_capability, ") in this binary, built for ", TAMIS_CUDA_ARCHS, ": ", why);
  });
  return gpu;
}

bool is_aligned(const void* data, std::int64_t stride, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * dtype_bytes(dtype) % 16 == 0;
}

// Rows of inputs and state can be read 16 bytes at a time.
bool is_aligned(const CompressorParams& p) {
  return is_aligned(p.kv, p.kv_stride, p.input_dtype) && is_aligned(p.gate, p.gate_stride, p.input_dtype) &&
         is_aligned(p.ape, p.ape_stride, DType::kFloat32) && is_aligned(p.state, p.row_stride, p.state_dtype) &&
         is_aligned(p.state, p.block_stride, p.state_dtype);
}

std::int64_t blocks_for(std::int64_t items, std::int64_t each) { return (items + each - 1) / each; }

// Teams that look for entries side by side; with a list, each takes its share of that.
std::int64_t pool_groups(const CompressorParams& p, std::int64_t entries, std::int64_t most) {
  if (p.listed != nullptr) return std::min(entries, most);
  return compressor::spread_groups(p.tokens, entries, most, p.ratio);
}

}  // namespace

StepPlan make_plan(const CompressorParams& p, CompressAlgorithm forced, int device) {
  const core::Gpu& gpu = gpu_with_kernels(device);
  const std::int64_t entries =
      p.listed != nullptr ? p.num_listed : compress_list_capacity(p.tokens, p.requests, p.ratio);
  StepPlan plan;
  plan.rule = &compressor::compressor_cuda_rule({p.window(), p.head_dim, is_aligned(p)}, forced);
  const std::int64_t sms = gpu.num_sms;
  switch (plan.rule->algorithm) {
    case CompressAlgorithm::kShortWindow:
      plan.pool_groups = pool_groups(p, entries, kShortBlocksAnSm * short_teams(p.head_dim) * sms);
      break;
    case CompressAlgorithm::kTallWindow: {
      const TallLimits limits = tall_limits(p.head_dim, gpu, device);
      plan.cluster = limits.cluster;
      const std::int64_t likely = 2 * (p.tokens / p.ratio);  // entries: twice those of an average step
      plan.pool_groups = pool_groups(p, entries, std::min(limits.groups, std::max(kTallFewGroups, likely)));
      break;
    }
    case CompressAlgorithm::kAnyWindow:
      plan.pool_groups = pool_groups(p, entries, kAnyGroupsAnSm * sms);
      if (p.head_dim > kAnySharedDims) {
        plan.workspace_bytes = static_cast<std::size_t>(plan.pool_groups * p.head_dim) * sizeof(float);
      }
      break;
    case CompressAlgorithm::kAuto: break;  // no rule has it
  }
  return plan;
}

void run(const CompressorParams& p, const StepPlan& plan, bool pool, void* workspace, int device, void* stream_handle) {
  const core::Gpu& gpu = core::gpu(device);
  const core::DeviceGuard guard(device);
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  StepParams step;
  step.p = p;
  step.pool = pool && plan.pool_groups > 0;
  step.pool_groups = step.pool ? plan.pool_groups : 0;
  step.hadamard_factor = hadamard_factor(p.head_dim);
  step.cache_aligned = reinterpret_cast<std::uintptr_t>(p.cache.data) % 4 == 0 && p.cache.page_stride_bytes % 4 == 0 &&
                       p.head_dim % 4 == 0;
  if (plan.workspace_bytes > 0) step.entries = static_cast<float*>(workspace);
  const std::int64_t teams = plan.rule->algorithm == CompressAlgorithm::kShortWindow ? short_teams(p.head_dim) : 1;
  step.pool_blocks = blocks_for(step.pool_groups, teams) * plan.cluster;
  // Blocks that save: as many as there is something to do for, and enough warps to have all loads under way that the
  // memory takes. Few of them go first, since they end soon; many go behind those that pool, to fill their gaps.
  const auto grid_of = [&](int threads) {
    const std::int64_t most_warps = kSaveWarpsAnSm * gpu.num_sms;
    const auto items = [&] { return blocks_for(p.tokens, step.save_run) * p.coff * save_parts(p.head_dim); };
    while (items() > most_warps && step.save_run < 32) step.save_run *= 2;
    std::int64_t saving = blocks_for(std::min(items(), most_warps), threads / 32);
    saving = blocks_for(saving, plan.cluster) * plan.cluster;
    if (saving <= gpu.num_sms) step.first_pool_block = saving;
    return StepGrid{step.pool_blocks + saving, plan.cluster, gpu.compute_capability >= 90, device, stream};
  };
  switch (plan.rule->algorithm) {
    case CompressAlgorithm::kShortWindow: return launch_short_window(step, grid_of(kShortThreads));
    case CompressAlgorithm::kTallWindow: return launch_tall_window(step, grid_of(kTallThreads));
    case CompressAlgorithm::kAnyWindow: return launch_any_window(step, grid_of(kAnyThreads));
    case CompressAlgorithm::kAuto: break;  // no rule has it
  }
}

void build_lists(const CompressorParams& p, std::span<const CompressList> lists, int device, void* stream) {
  if (lists.empty()) return;  // a grid of zero blocks is a launch error
  gpu_with_kernels(device);
  const core::DeviceGuard guard(device);
  launch_step_lists(p, lists, static_cast<cudaStream_t>(stream));
}

bool is_capturing(int device, void* stream) {
  core::gpu(device);  // or says that there is none
  const core::DeviceGuard guard(device);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  TAMIS_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace tamis::compressor_cuda
