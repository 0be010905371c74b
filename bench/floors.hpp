#pragma once

// What the machine can do at best, measured where it is needed: reading (a SIMD sum) and fused multiply-adds.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/timing.hpp"

namespace tamis::bench {

/// Sums with as many vector accumulators as hide the latency of an addition. Order of the additions is unspecified.
float sum_fp32(const float* values, std::size_t count);
/// The same over bf16 bits, widened on the way.
float sum_bf16(const std::uint16_t* bits, std::size_t count);

/// Floating-point operations per microsecond of so many threads that do nothing but independent fused multiply-adds in
/// registers (two operations each). Best of several samples, since a floor must not be too lenient; measured once for
/// each thread count and then remembered.
double fma_flops_per_us(int num_threads);

/// Reading so many bytes, shared between threads: the work that a floor by bytes is the time of. The bytes are read
/// over and over, so a set that fits a cache is read from it.
class ReadWork {
 public:
  ReadWork(std::int64_t bytes, int num_threads);
  Work work() const;

 private:
  std::vector<float> values_;
  int num_threads_;
};

}  // namespace tamis::bench
