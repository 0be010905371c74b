#pragma once

// What the kernels get, and the sizes that launchers and kernels agree on. Compiles without the CUDA compiler.

#include <cmath>
#include <cstdint>

#include "compressor/params.hpp"

namespace tamis::compressor_cuda {

struct StepParams {
  compressor::CompressorParams p;
  bool pool = true;              // false: no block pools
  std::int64_t pool_blocks = 0;  // the first of the grid; the others save
  std::int64_t pool_groups = 0;  // blocks, or clusters of blocks, among them
  float* entries = nullptr;      // workspace: [pool_blocks, d], where an entry does not fit in shared memory
  float hadamard_factor = 0;     // head_dim^-0.5
};

inline float hadamard_factor(std::int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

constexpr int short_threads(std::int64_t head_dim) { return static_cast<int>(head_dim / 2); }
inline constexpr std::int64_t kShortGroupsAnSm = 64;  // blocks that look for entries: several rounds of them
constexpr int tall_threads(int slice) { return 4 * slice; }
constexpr int tall_blocks_an_sm(int slice) { return slice == 64 ? 3 : 5; }  // what shared memory has room for
inline constexpr int kAnyThreads = 256;
inline constexpr std::int64_t kAnyGroupsAnSm = 8;
inline constexpr std::int64_t kAnySharedDims = 8192;  // entries of more channels are kept in the workspace
inline constexpr std::int64_t kSaveWarpsAnSm = 16;

}  // namespace tamis::compressor_cuda
