#pragma once

// What the kernels get, and the sizes that launchers and kernels agree on. Compiles without the CUDA compiler.

#include <cmath>
#include <cstdint>

#include "compressor/params.hpp"

namespace tamis::compressor_cuda {

struct StepParams {
  compressor::CompressorParams p;
  bool pool = true;                   // false: no block pools
  std::int64_t first_pool_block = 0;  // the blocks in front of those that pool, or else behind them, save
  std::int64_t pool_blocks = 0;
  std::int64_t pool_groups = 0;  // teams among them: blocks, clusters of blocks, or warps, each with an entry at a time
  float* entries = nullptr;      // workspace: [pool_blocks, d], where an entry does not fit in shared memory
  float hadamard_factor = 0;     // head_dim^-0.5
  bool cache_aligned = false;    // entries of the cache begin at multiples of 4 bytes
  int save_run = 1;              // neighbouring tokens of which a warp saves a part: at most 32
};

inline float hadamard_factor(std::int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

inline constexpr int kShortThreads = 128;
constexpr int short_teams(std::int64_t head_dim) { return head_dim == 128 ? 4 : 1; }  // a block
inline constexpr std::int64_t kShortBlocksAnSm = 4;  // as many as are at work at once: each goes through its entries
inline constexpr int kTallThreads = 256;
// Clusters for a step that completes few entries on average, though it could complete many: those that find nothing
// cost time, too (64 tokens without an entry: 2.9 us with 16, see "One step got slower" in the design note).
inline constexpr std::int64_t kTallFewGroups = 16;
inline constexpr int kAnyThreads = 256;
inline constexpr std::int64_t kAnyGroupsAnSm = 8;
inline constexpr std::int64_t kAnySharedDims = 8192;  // entries of more channels are kept in the workspace
inline constexpr std::int64_t kSavePart = 256;        // channels of a row that a warp saves at a time
inline constexpr std::int64_t kSaveWarpsAnSm = 16;
/// Warps for one half of a row, or for a row that has no halves.
constexpr std::int64_t save_parts(std::int64_t head_dim) { return (head_dim + kSavePart - 1) / kSavePart; }

}  // namespace tamis::compressor_cuda
