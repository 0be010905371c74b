#pragma once

#include "core/cuda/launch.hpp"

namespace tamis::compressor_cuda {

/// The threads that work on one entry together: a warp, or a block.
template <int kTeamThreads>
struct Team {
  static constexpr int kThreads = kTeamThreads;
  static constexpr int kWarps = kThreads / 32;

  __device__ static int rank() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int warp() { return rank() / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static void sync() {
    if constexpr (kThreads == 32) __syncwarp();
    else __syncthreads();
  }
  /// A sync that also says whether a condition held in any thread.
  __device__ static bool any(bool condition) {
    if constexpr (kThreads != 32) return __syncthreads_or(condition) != 0;
    const bool held = __any_sync(~0U, condition);
    __syncwarp();
    return held;
  }
};

}  // namespace tamis::compressor_cuda
