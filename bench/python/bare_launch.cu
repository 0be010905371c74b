// Host time of a bare kernel launch, from C++: what bench/python/overhead.py compares a call from Python with.

#include <cuda_runtime.h>

#include <chrono>

__global__ void empty_kernel() {}

// Median over `repeats` of the mean host microseconds of `launches` launches into an empty stream; -1 if CUDA fails.
extern "C" double bare_launch_us(int launches, int repeats) {
  double best[64];
  if (repeats < 1 || repeats > 64) return -1;
  for (int r = 0; r < repeats; ++r) {
    if (cudaDeviceSynchronize() != cudaSuccess) return -1;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < launches; ++i) empty_kernel<<<1, 32>>>();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    double us = took.count() / launches;
    int at = r;
    for (; at > 0 && best[at - 1] > us; --at) best[at] = best[at - 1];
    best[at] = us;
  }
  return cudaGetLastError() == cudaSuccess ? best[repeats / 2] : -1;
}
