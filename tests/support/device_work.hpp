#pragma once

// Kernels that only tests need.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tamis::test {

/// Fills fp32 scores with normal numbers, a function of seed and element.
void launch_fill_normal(float* scores, std::int64_t count, std::uint32_t seed, cudaStream_t stream);

/// Blocks of 1,024 threads that hold their multiprocessors until *stop (host-mapped) is not 0.
void launch_hog(int blocks, const volatile int* stop, cudaStream_t stream);

/// Number of elements in which two int32 arrays differ is added to *differences.
void launch_count_differences(const std::int32_t* a, const std::int32_t* b, std::int64_t count,
                              unsigned long long* differences, cudaStream_t stream);

}  // namespace tamis::test
