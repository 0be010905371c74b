#include <atomic>

#include "core/cuda/gpu.hpp"
#include "topk/cuda/dispatch.cuh"
#include "topk/cuda/launch.hpp"
#include "topk/cuda/stream.cuh"
#include "topk/rules.hpp"

namespace tamis::topk_cuda {
namespace {

template <typename T>
void prepare_stream(int device) {
  static std::atomic<std::uint64_t> prepared{0};
  core::once_per_device(prepared, device, [&] {
    TAMIS_CUDA_CHECK(cudaFuncSetAttribute(stream_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(core::gpu(device).max_shared_bytes)));
    if (core::gpu(device).has_clusters) {
      // 16 blocks are more than every device must have; whether this one has them is asked in largest_cluster().
      TAMIS_CUDA_CHECK(cudaFuncSetAttribute(stream_kernel<T>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
  });
}

struct LaunchConfig {
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config{};

  LaunchConfig(std::int64_t rows, int blocks_per_row, std::uint32_t capacity, cudaStream_t stream) {
    config.gridDim = dim3(static_cast<unsigned>(rows * blocks_per_row));  // x, because y and z end at 65,535
    config.blockDim = dim3(kFilterThreads);
    config.dynamicSmemBytes = FilterStorage::bytes(capacity);
    config.stream = stream;
    if (blocks_per_row == 1) return;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(blocks_per_row), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

}  // namespace

std::int64_t filter_shared_bytes(std::uint32_t capacity) {
  return static_cast<std::int64_t>(FilterStorage::bytes(capacity));
}

int largest_cluster(int device) {
  if (!core::gpu(device).has_clusters) return 1;
  prepare_stream<float>(device);
  for (const int blocks : {8, 4, 2}) {
    const LaunchConfig launch(1, blocks, 8192, nullptr);
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, stream_kernel<float>, &launch.config) == cudaSuccess &&
        clusters > 0) {
      return blocks;
    }
    static_cast<void>(cudaGetLastError());
  }
  return 1;
}

const char* why_no_image() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, stream_kernel<float>);
  if (error == cudaSuccess) return nullptr;
  static_cast<void>(cudaGetLastError());
  return cudaGetErrorString(error);
}

void launch_stream(const TopkParams& p, std::uint32_t capacity, int blocks_per_row, int device, cudaStream_t stream) {
  dispatch_dtype(p.dtype, [&](auto score) {
    using T = decltype(score);
    prepare_stream<T>(device);
    const LaunchConfig launch(p.rows, blocks_per_row, capacity, stream);
    TAMIS_CUDA_CHECK(
        cudaLaunchKernelEx(&launch.config, stream_kernel<T>, p, capacity, static_cast<std::uint32_t>(blocks_per_row)));
  });
}

}  // namespace tamis::topk_cuda
