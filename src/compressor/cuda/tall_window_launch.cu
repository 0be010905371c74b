#include <algorithm>
#include <array>
#include <atomic>

#include "compressor/cuda/dispatch.cuh"
#include "compressor/cuda/launch.hpp"
#include "compressor/cuda/tall_window.cuh"

namespace tamis::compressor_cuda {
namespace {

constexpr int kMostBlocks = 16;  // of a cluster; more than 8 is up to the device

std::atomic<int>& most_blocks() {
  static std::atomic<int> blocks{kMostBlocks};
  return blocks;
}

// Clusters of so many blocks that fit on the device at once; 0 if it cannot have such clusters.
std::int64_t clusters_at_once(int cluster) {
  // The kernels for other dtypes take as much room.
  constexpr auto kKernel = tall_window_kernel<float, float>;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(kTallThreads);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config) == cudaSuccess) return clusters;
  static_cast<void>(cudaGetLastError());
  return 0;
}

void allow_large_clusters() {
  for (const DType input : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType state : {DType::kFloat32, DType::kBFloat16}) {
      dispatch_dtypes(input, state, [](auto input_value, auto state_value) {
        TAMIS_CUDA_CHECK(cudaFuncSetAttribute(tall_window_kernel<decltype(input_value), decltype(state_value)>,
                                              cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
      });
    }
  }
}

}  // namespace

TallLimits tall_limits(std::int64_t head_dim, const core::Gpu& gpu, int device) {
  if (gpu.compute_capability < 90) return {1, TallWindowConfig::kBlocksAnSm * gpu.num_sms};
  static std::atomic<std::uint64_t> prepared{0};
  // [device][blocks]: clusters at once, plus 1; 0 is not asked yet.
  static std::array<std::array<std::atomic<std::int32_t>, kMostBlocks + 1>, core::kMaxGpus> asked{};
  const std::int64_t most = std::min<std::int64_t>(most_blocks(), head_dim / TallWindowConfig::kSlice);
  for (int cluster = static_cast<int>(most); cluster > 1; cluster /= 2) {
    auto& known = asked[static_cast<std::size_t>(device)][static_cast<std::size_t>(cluster)];
    std::int32_t groups = known.load(std::memory_order_acquire) - 1;
    if (groups < 0) {
      const core::DeviceGuard guard(device);
      core::once_per_device(prepared, device, [] { allow_large_clusters(); });
      groups = static_cast<std::int32_t>(clusters_at_once(cluster));
      known.store(groups + 1, std::memory_order_release);
    }
    if (groups > 0) return {cluster, groups};
  }
  return {1, TallWindowConfig::kBlocksAnSm * gpu.num_sms};
}

void set_most_cluster_blocks(int blocks) { most_blocks() = std::min(blocks, kMostBlocks); }

void launch_tall_window(const StepParams& step, const StepGrid& grid) {
  dispatch_dtypes(step.p.input_dtype, step.p.state_dtype, [&](auto input, auto state) {
    core::Launch how{"tall_window_kernel", grid.blocks, kTallThreads, 0, grid.stream};
    how.cluster = grid.cluster;
    how.dependent = grid.dependent;
    core::launch(how, tall_window_kernel<decltype(input), decltype(state)>, step);
  });
}

}  // namespace tamis::compressor_cuda
