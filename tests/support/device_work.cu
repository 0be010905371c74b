#include "device_work.hpp"

namespace tamis::test {
namespace {

__device__ std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352DU;
  x = (x ^ x >> 15) * 0x846CA68BU;
  return x ^ x >> 16;
}

__global__ void fill_normal_kernel(float* scores, std::int64_t count, std::uint32_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint32_t a = mixed(static_cast<std::uint32_t>(i) ^ seed),
                        b = mixed(a + static_cast<std::uint32_t>(i >> 32) + 1);
    const float u = (static_cast<float>(a >> 8) + 1.0F) * 0x1p-24F, angle = static_cast<float>(b >> 8) * 0x1p-23F;
    scores[i] = sqrtf(-2.0F * logf(u)) * cospif(angle);
  }
}

__global__ void __launch_bounds__(1024) hog_kernel(const volatile int* stop) {
  while (*stop == 0) __nanosleep(1000);
}

__global__ void count_differences_kernel(const std::int32_t* a, const std::int32_t* b, std::int64_t count,
                                         unsigned long long* differences) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    if (a[i] != b[i]) atomicAdd(differences, 1ULL);
  }
}

}  // namespace

void launch_fill_normal(float* scores, std::int64_t count, std::uint32_t seed, cudaStream_t stream) {
  fill_normal_kernel<<<1024, 256, 0, stream>>>(scores, count, seed);
}

void launch_hog(int blocks, const volatile int* stop, cudaStream_t stream) {
  constexpr int kShared = 200 * 1024;  // leaves no room for a block of ours beside it
  static_cast<void>(cudaFuncSetAttribute(hog_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  hog_kernel<<<blocks, 1024, kShared, stream>>>(stop);
}

void launch_count_differences(const std::int32_t* a, const std::int32_t* b, std::int64_t count,
                              unsigned long long* differences, cudaStream_t stream) {
  count_differences_kernel<<<512, 256, 0, stream>>>(a, b, count, differences);
}

}  // namespace tamis::test
