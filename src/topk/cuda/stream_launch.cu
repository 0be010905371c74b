#include <atomic>

#include "core/cuda/gpu.hpp"
#include "core/cuda/launch.hpp"
#include "topk/cuda/dispatch.cuh"
#include "topk/cuda/launch.hpp"
#include "topk/cuda/stream.cuh"
#include "topk/rules.hpp"

namespace tamis::topk_cuda {

static_assert(sizeof(FilterStorage<512>) <= topk_filter_shared_bytes(512) &&
                  sizeof(FilterStorage<1024>) <= topk_filter_shared_bytes(1024),
              "the rules count on it");

const char* why_no_image() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, stream_kernel<float, 512>);
  if (error == cudaSuccess) return nullptr;
  static_cast<void>(cudaGetLastError());
  return cudaGetErrorString(error);
}

void launch_stream(const TopkParams& p, std::uint32_t capacity, int threads, int device, cudaStream_t stream) {
  dispatch_dtype(p.dtype, [&](auto score) {
    dispatch_threads(threads, [&](auto num_threads) {
      constexpr auto kernel = stream_kernel<decltype(score), num_threads.value>;
      static std::atomic<std::uint64_t> prepared{0};
      core::once_per_device(prepared, device, [&] {
        TAMIS_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(core::gpu(device).max_shared_bytes)));
      });
      core::launch(
          {"stream_kernel", p.rows, num_threads.value, FilterStorage<num_threads.value>::bytes(capacity), stream},
          kernel, p, capacity);
    });
  });
}

}  // namespace tamis::topk_cuda
