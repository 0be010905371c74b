#pragma once

// C128: an entry pools at most 128 rows, two blocks of kSumRows of them a warp, in registers.
// Work split: slices of 32 channels, dealt to the blocks of a cluster, which share an entry (before sm_90: one block
//             takes all slices). The blocks of other clusters save.
// Bound by:   reading the rows once; for one entry by latency: places, rows, exp, two barriers, norm.
// Sync:       within the block. The slices of an entry are sent to one block of the cluster, which waits for them and
//             finishes; blocks take turns at that. No cluster waits for another.
// Definition: compressor/reference.hpp.   Why this way: docs/design/2026-12-compressor-cuda.md.

#include <cooperative_groups.h>

#include <climits>
#include <cstdint>

#include "compressor/cuda/entry_rows.cuh"
#include "compressor/cuda/finish_fast.cuh"
#include "compressor/cuda/pool_block.cuh"
#include "compressor/cuda/save_rows.cuh"
#include "compressor/rules.hpp"
#include "core/cuda/cluster.cuh"

namespace tamis::compressor_cuda {

struct TallWindowConfig {
  static constexpr int kSlice = 32;  // channels: one a lane
  static constexpr int kThreads = kTallThreads;
  static constexpr int kRows = compressor::kTallRows;
  static constexpr int kParts = kRows / kSumRows;
  static constexpr int kPartsEach = kParts / (kThreads / 32);  // parts a warp
  static constexpr int kMaxHeadDim = 512;
  static constexpr int kBlocksAnSm = 1024 / kThreads;  // 64 registers a thread
};

struct TallWindowStorage {
  using Config = TallWindowConfig;
  PoolRow rows[Config::kRows];
  std::int32_t replacing[Config::kRows];
  EntryAtWork now;
  int largest[Config::kSlice];  // ordered_bits() of the largest gate
  float weights[Config::kParts][Config::kSlice], sums[Config::kParts][Config::kSlice];
  PooledTokens<Team<kTallThreads>> pooled;
  std::uint32_t scratch[Config::kThreads / 32];
  float entry[Config::kMaxHeadDim];  // that this block finishes
  std::uint64_t received;            // barrier that counts its bytes
};

/// Numbers ordered like integers; its own inverse.
__device__ inline int ordered_bits(int bits) { return bits ^ (bits >> 31 & INT_MAX); }

/// Pools one slice; every thread of the first warp returns the value of its channel, the others nothing of use. Begins
/// after a sync with s.largest at INT_MIN, and leaves it so.
template <typename TInput, typename TState>
__device__ float pool_slice(TallWindowStorage& s, int first_channel) {
  using Config = TallWindowConfig;
  constexpr int kPartsEach = Config::kPartsEach;
  const int rank = static_cast<int>(threadIdx.x), first_part = rank / 32 * kPartsEach, c = rank % 32;
  PoolBlock<TInput, TState, 1> parts[kPartsEach];
#pragma unroll
  for (int i = 0; i < kPartsEach; ++i) parts[i].read(s.rows + (first_part + i) * kSumRows, first_channel + c);
  Numbers<1> largest = parts[0].largest();
#pragma unroll
  for (int i = 1; i < kPartsEach; ++i) largest.at[0] = fmaxf(largest.at[0], parts[i].largest().at[0]);
  atomicMax(&s.largest[c], ordered_bits(__float_as_int(largest.at[0])));
  __syncthreads();
  largest.at[0] = __int_as_float(ordered_bits(s.largest[c]));
#pragma unroll
  for (int i = 0; i < kPartsEach; ++i) {
    Numbers<1> weights = {}, sums = {};
    parts[i].sum(largest, weights, sums);
    s.weights[first_part + i][c] = weights.at[0];
    s.sums[first_part + i][c] = sums.at[0];
  }
  __syncthreads();
  if (rank >= Config::kSlice) return 0.0F;
  s.largest[rank] = INT_MIN;
  // Blocks without rows add +0, which leaves the sums as they are: they begin at +0.
  float all_weights = 0, all_sums = 0;
#pragma unroll
  for (int k = 0; k < Config::kParts; ++k) {
    all_weights = __fadd_rn(all_weights, s.weights[k][rank]);
    all_sums = __fadd_rn(all_sums, s.sums[k][rank]);
  }
  return __fdiv_rn(all_sums, all_weights);
}

/// Saves what goes where the entry's rows of one slice lay. Rare, and out of line to keep its registers out of pooling.
template <typename TInput, typename TState>
__device__ __noinline__ void replace_slice(const CompressorParams& p, const TallWindowStorage& s, int first_channel) {
  for (int i = static_cast<int>(threadIdx.x); i < s.now.count * TallWindowConfig::kSlice; i += kTallThreads) {
    const int k = i / TallWindowConfig::kSlice;
    if (s.replacing[k] < 0) continue;
    const std::int64_t position = s.now.group - s.now.count + p.ratio + k;
    replace_pooled_row<TInput, TState>(p, s.replacing[k], s.rows[k], column_of(p, position, s.now.group),
                                       first_channel + i % TallWindowConfig::kSlice);
  }
}

template <typename TInput, typename TState>
__global__ void __launch_bounds__(TallWindowConfig::kThreads, TallWindowConfig::kBlocksAnSm)
    tall_window_kernel(const __grid_constant__ StepParams step) {
  using Config = TallWindowConfig;
  using Threads = Team<Config::kThreads>;
  constexpr int kSlice = Config::kSlice;
  __shared__ __align__(16) unsigned char storage[sizeof(TallWindowStorage)];
  auto& s = *reinterpret_cast<TallWindowStorage*>(storage);
  const CompressorParams& p = step.p;
  begin_dependent();
  const BlockRole role = block_role(step);
  if (role.pools < 0) {
    save_rows<TInput, TState, true>(step, role.saves, gridDim.x - step.pool_blocks);
    return;
  }
#if __CUDA_ARCH__ >= 900
  // No block waits for one that left: those that find no entry send nothing, and the others receive all they wait for.
  const auto cluster = cooperative_groups::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks()), mine = static_cast<int>(cluster.block_rank());
#else
  constexpr int blocks = 1, mine = 0;
#endif
  if (Threads::rank() < kSlice) s.largest[Threads::rank()] = INT_MIN;  // for_pooled_tokens() syncs
#if __CUDA_ARCH__ >= 900
  if (Threads::rank() == 0) core::init_barrier(&s.received);
#endif
  std::uint32_t written = 0;  // entries
  for_pooled_tokens<1>(p, role.pools / blocks, step.pool_groups, s.pooled, [&](const auto* tokens, int) {
    const int turn = static_cast<int>(written % static_cast<unsigned>(blocks));  // also: the block that finishes
    const bool replaces =
        find_entry<Threads>(p, tokens[0], mine == turn, s.now, s.rows, Config::kRows, s.replacing, s.scratch);
#if __CUDA_ARCH__ >= 900
    // Entries go around: before a block's entry is written to, it has begun, or finished the one before.
    const bool first_turn = blocks > 1 && s.now.writes && turn == 0;
    if (first_turn && written == 0) core::arrive_in_cluster<false>();
    else if (first_turn) core::arrive_in_cluster<true>();
#endif
    for (int slice = mine * kSlice; slice < static_cast<int>(p.head_dim); slice += blocks * kSlice) {
      if (s.now.writes) {
        const float pooled = pool_slice<TInput, TState>(s, slice);
#if __CUDA_ARCH__ >= 900
        if (first_turn && slice == mine * kSlice) core::wait_for_cluster();
        if (blocks > 1 && Threads::rank() < kSlice) {
          core::store_and_count(core::address_in_block(&s.entry[slice + Threads::rank()], turn), pooled,
                                core::address_in_block(&s.received, turn));
        }
#endif
        if (blocks == 1 && Threads::rank() < kSlice) s.entry[slice + Threads::rank()] = pooled;
      }
      if (replaces) replace_slice<TInput, TState>(p, s, slice);
      Threads::sync();  // sums are written anew
    }
    if (!s.now.writes) return;
    [[maybe_unused]] const std::uint32_t round = written++ / static_cast<unsigned>(blocks);
    if (mine != turn) return;
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
      if (Threads::rank() == 0) core::expect_bytes(&s.received, static_cast<std::uint32_t>(p.head_dim) * 4);
      core::wait_for_phase(&s.received, round % 2);
    }
#endif
    using Finish = PairFinish<Threads, Config::kMaxHeadDim>;
    if (Finish::serves(step)) Finish(p, s.now.group, s.now.slot).finish(step, s.entry);
    else finish_entry<Threads>(step, s.now.group, s.now.slot, s.entry);
  });
}

}  // namespace tamis::compressor_cuda
