#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/cuda/gpu_timing.hpp"

namespace tamis::bench {

/// Copies of an input on the GPU: copy i is at data + i * stride_bytes.
struct GpuCopies {
  const std::byte* data;      // at a 16-byte boundary, as every copy
  std::int64_t input_bytes;   // of one copy
  std::int64_t stride_bytes;  // input_bytes and padding, which may be read
  std::int64_t count;
};

/// Time of a kernel that only reads one copy, in rotation as the work that it is the floor of. Several grids are tried
/// and the fastest counts, since a floor must not be too lenient.
double read_floor_us(const GpuTimer& timer, const GpuCopies& copies, int num_sms);

}  // namespace tamis::bench
