// Host time of a bare kernel launch, from C++: what bench/python/overhead.py compares a call from Python with.

#include <cuda_runtime.h>

#include <chrono>

__global__ void empty_kernel() {}

// Mean host microseconds of `launches` launches into an empty stream; -1 if CUDA fails.
extern "C" double bare_launch_us(int launches) {
  if (cudaDeviceSynchronize() != cudaSuccess) return -1;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < launches; ++i) empty_kernel<<<1, 32>>>();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return cudaGetLastError() == cudaSuccess ? took.count() / launches : -1;
}
