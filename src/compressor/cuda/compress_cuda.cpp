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

int tall_slice(CompressAlgorithm algorithm) { return algorithm == CompressAlgorithm::kTallWindow ? 64 : 32; }

std::int64_t blocks_for(std::int64_t items, std::int64_t each) { return (items + each - 1) / each; }

// Blocks that share an entry.
int cluster_of(const CompressorParams& p, int slice, const core::Gpu& gpu) {
  constexpr std::int64_t kMostPortable = 8;
  if (gpu.compute_capability < 90) return 1;
  return static_cast<int>(std::min(kMostPortable, p.head_dim / slice));
}

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
  plan.rule = &compressor::compressor_cuda_rule({p.window(), p.head_dim, entries, is_aligned(p)}, forced);
  const std::int64_t sms = gpu.num_sms;
  switch (plan.rule->algorithm) {
    case CompressAlgorithm::kShortWindow: plan.pool_groups = pool_groups(p, entries, kShortGroupsAnSm * sms); break;
    case CompressAlgorithm::kTallWindow:
    case CompressAlgorithm::kTallSlices: {
      const int slice = tall_slice(plan.rule->algorithm);
      const std::int64_t resident = tall_blocks_an_sm(slice) * sms / cluster_of(p, slice, gpu);
      plan.pool_groups = pool_groups(p, entries, std::max<std::int64_t>(1, resident));
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
  if (plan.workspace_bytes > 0) step.entries = static_cast<float*>(workspace);
  // Enough warps to have all loads under way that the memory takes; a warp saves a token at a time.
  const std::int64_t most_save_blocks = kSaveWarpsAnSm * gpu.num_sms;
  const auto save_blocks = [&](int threads) { return blocks_for(std::min(p.tokens, most_save_blocks), threads / 32); };
  switch (plan.rule->algorithm) {
    case CompressAlgorithm::kShortWindow:
      step.pool_blocks = step.pool_groups;
      return launch_short_window(step, save_blocks(short_threads(p.head_dim)), stream);
    case CompressAlgorithm::kTallWindow:
    case CompressAlgorithm::kTallSlices: {
      const int slice = tall_slice(plan.rule->algorithm), cluster = cluster_of(p, slice, gpu);
      step.pool_blocks = step.pool_groups * cluster;
      const std::int64_t saving = blocks_for(save_blocks(tall_threads(slice)), cluster) * cluster;
      return launch_tall_window(step, saving, slice, cluster, device, stream);
    }
    case CompressAlgorithm::kAnyWindow:
      step.pool_blocks = step.pool_groups;
      return launch_any_window(step, save_blocks(kAnyThreads), device, stream);
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
