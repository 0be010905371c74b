#pragma once

// C128: an entry pools at most 128 rows, which lie in shared memory.
// Work split: slices of kSlice channels, dealt to the blocks of a cluster, which share an entry (before sm_90: one
// block
//             takes all slices). Within a block four threads a channel, a quarter of the rows each. The first clusters
//             pool, the blocks of the others save.
// Bound by:   reading the rows once; for one entry by latency: places, rows, sums in order, norm.
// Sync:       within the block, and one barrier of the cluster an entry, after which one block of it, another one for
//             each entry, finishes. No cluster waits for another.
// Definition: compressor/reference.hpp.   Why this way: docs/design/2026-12-compressor-cuda.md.

#include <cooperative_groups.h>

#include <cstdint>

#include "compressor/cuda/entry_rows.cuh"
#include "compressor/cuda/finish_fast.cuh"
#include "compressor/cuda/save_rows.cuh"
#include "compressor/rules.hpp"
#include "core/cuda/copy_async.cuh"

namespace tamis::compressor_cuda {

template <int kSliceChannels>
struct TallWindowConfig {
  static constexpr int kSlice = kSliceChannels;
  static constexpr int kRows = compressor::kTallRows;
  static constexpr int kParts = 4;  // threads a channel
  static constexpr int kThreads = tall_threads(kSlice);
  static_assert(kThreads == kParts * kSlice);
  static constexpr int kPartRows = kRows / kParts;  // rows a thread
  static constexpr int kMaxHeadDim = 512;
  static constexpr int kBlocksAnSm = tall_blocks_an_sm(kSlice);
};

template <int kSlice>
struct TallWindowStorage {
  using Config = TallWindowConfig<kSlice>;
  // Rows as they come, of either dtype, at the pitch of fp32; then weights, and weights times values.
  float gates[Config::kRows][kSlice];
  float values[Config::kRows][kSlice];
  float largest[Config::kParts][kSlice];
  float sums[2][kSlice];
  PoolRow rows[Config::kRows];
  std::int32_t replacing[Config::kRows];
  std::uint32_t found[Config::kThreads / 32], scratch[Config::kThreads / 32];
  float entry[2][Config::kMaxHeadDim];  // by turns: a block may write the next one while another finishes this one
};

/// Begins to copy one slice of the rows, as two groups: gates, values.
template <typename TInput, typename TState, int kSlice>
__device__ void start_slice(TallWindowStorage<kSlice>& s, int count, int first_channel) {
  using Config = TallWindowConfig<kSlice>;
  constexpr int kChunks = kSlice * 4 / 16;  // of 16 bytes in a row of fp32
  constexpr int kStep = Config::kThreads / kChunks;
  const int at = static_cast<int>(threadIdx.x) % kChunks * 16, first = static_cast<int>(threadIdx.x) / kChunks;
  const auto start = [&](float(*tile)[kSlice], const std::byte* PoolRow::*part) {
#pragma unroll
    for (int k = first; k < Config::kRows; k += kStep) {
      if (k >= count) break;
      const PoolRow& row = s.rows[k];
      int bytes = sizeof(TState);
      if (sizeof(TInput) != sizeof(TState) && row.bias != nullptr) bytes = sizeof(TInput);
      if (row.*part == nullptr || at >= kSlice * bytes) continue;
      core::copy_async_16(reinterpret_cast<std::byte*>(tile[k]) + at, row.*part + first_channel * bytes + at);
    }
    core::copy_async_commit();
  };
  start(s.gates, &PoolRow::gate);
  start(s.values, &PoolRow::value);
}

/// Pools one slice; every thread below kSlice returns the value of its channel, the others nothing of use.
template <typename TInput, typename TState, int kSlice>
__device__ float pool_slice(TallWindowStorage<kSlice>& s, int count, int first_channel) {
  using Config = TallWindowConfig<kSlice>;
  const int c = static_cast<int>(threadIdx.x) % kSlice, part = static_cast<int>(threadIdx.x) / kSlice;
  const int first = part * Config::kPartRows;
  const auto raw = [&](const float(&row)[kSlice], bool input) {
    if (input) return to_float(reinterpret_cast<const TInput*>(row)[c]);
    return to_float(reinterpret_cast<const TState*>(row)[c]);
  };
  start_slice<TInput, TState>(s, count, first_channel);

  // 1. Which rows of the part count, and which of them are of the inputs, as bits; their biases, while the gates come.
  static_assert(Config::kPartRows == 32 && kSlice % 32 == 0,
                "a warp is in one part and has a lane for each of its rows");
  const int my_row = first + static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t counted = __ballot_sync(~0U, my_row < count && s.rows[my_row].value != nullptr);
  const std::uint32_t input = __ballot_sync(~0U, my_row < count && s.rows[my_row].bias != nullptr);
  float x[Config::kPartRows];
#pragma unroll
  for (int r = 0; r < Config::kPartRows; ++r) {
    x[r] = (input >> r & 1U) != 0 ? s.rows[first + r].bias[first_channel + c] : 0.0F;
  }
  core::copy_async_wait<1>();
  __syncthreads();

  // 2. Gates as they count, and the largest.
  float largest = -INFINITY;
#pragma unroll
  for (int r = 0; r < Config::kPartRows; ++r) {
    if ((counted >> r & 1U) == 0) continue;
    const bool of_input = (input >> r & 1U) != 0;
    const float gate = raw(s.gates[first + r], of_input);
    x[r] = of_input ? round_to<TState>(__fadd_rn(gate, x[r])) : gate;
    largest = fmaxf(largest, x[r]);
  }
  s.largest[part][c] = largest;
  __syncthreads();
  largest = fmaxf(fmaxf(s.largest[0][c], s.largest[1][c]), fmaxf(s.largest[2][c], s.largest[3][c]));

  // 3. Weights, over the gates, which all threads have read.
#pragma unroll
  for (int r = 0; r < Config::kPartRows; ++r) {
    x[r] = (counted >> r & 1U) != 0 ? exp_not_positive(__fsub_rn(x[r], largest)) : 0.0F;
    s.gates[first + r][c] = x[r];
  }
  core::copy_async_wait<0>();
  __syncthreads();

  // 4. Weights times values, over the values once all threads have read theirs. A row that does not count adds zeros,
  //    which leaves the sums as they are: they begin at +0.
#pragma unroll
  for (int r = 0; r < Config::kPartRows; ++r) {
    if ((counted >> r & 1U) == 0) continue;
    const bool of_input = (input >> r & 1U) != 0;
    const float value = raw(s.values[first + r], of_input);
    x[r] = __fmul_rn(x[r], of_input ? round_to<TState>(value) : value);
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < Config::kPartRows; ++r) s.values[first + r][c] = x[r];
  __syncthreads();

  // 5. Both sums in the order of positions, a thread each.
  if (part < 2) {
    const float(*terms)[kSlice] = part == 0 ? s.gates : s.values;
    float sum = 0;
#pragma unroll 32
    for (int k = 0; k < Config::kRows; ++k) sum = __fadd_rn(sum, terms[k][c]);
    s.sums[part][c] = sum;
  }
  __syncthreads();
  return part == 0 ? __fdiv_rn(s.sums[1][c], s.sums[0][c]) : 0.0F;
}

template <typename TInput, typename TState, int kSlice>
__global__ void __launch_bounds__(TallWindowConfig<kSlice>::kThreads, TallWindowConfig<kSlice>::kBlocksAnSm)
    tall_window_kernel(const __grid_constant__ StepParams step) {
  using Config = TallWindowConfig<kSlice>;
  using Threads = Team<Config::kThreads>;
  extern __shared__ uint4 dynamic_shared[];
  auto& s = *reinterpret_cast<TallWindowStorage<kSlice>*>(dynamic_shared);
  const CompressorParams& p = step.p;
  const std::int64_t block = blockIdx.x;
  if (block >= step.pool_blocks) {
    save_rows<TInput, TState, true>(step, block - step.pool_blocks, gridDim.x - step.pool_blocks);
    return;
  }
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks()), mine = static_cast<int>(cluster.block_rank());
#else
  constexpr int blocks = 1, mine = 0;
#endif
  const int head_dim = static_cast<int>(p.head_dim);
  const bool fast = PairFinish<Threads, Config::kMaxHeadDim>::serves(p);
  std::uint32_t turn = 0;
#if __CUDA_ARCH__ >= 900
  bool any_written = false;
#endif
  for_pooled_tokens<Threads>(p, block / blocks, step.pool_groups, s.found, [&](std::int64_t token) {
    const std::int64_t slot = p.kv_slots[token];
    const TokenPlace place = place_token(p, token);
    const std::int64_t group = group_of(p, place.position);
    const bool replaces = may_replace_pooled_rows(p, place);
    const int count = find_rows<Threads>(p, token, place, s.rows, replaces ? s.replacing : nullptr, s.scratch);
    const bool writes = writes_entry(p, slot, place.position);
#if __CUDA_ARCH__ >= 900
    // Another block's shared memory may be written to once that block has begun.
    const bool first_entry = blocks > 1 && writes && !any_written;
    if (first_entry) cluster.barrier_arrive();
    any_written |= writes;
#endif
    const int finisher = static_cast<int>(turn % static_cast<unsigned>(blocks));
    float* entry = s.entry[turn % 2];
    // Only the block that finishes needs what an entry is multiplied with.
    const PairFinish<Threads, Config::kMaxHeadDim> fast_finish(p, group, slot, writes && mine == finisher);
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) entry = cluster.map_shared_rank(entry, finisher);
#endif
    for (int slice = mine * kSlice; slice < head_dim; slice += blocks * kSlice) {
      if (writes) {
        const float pooled = pool_slice<TInput, TState>(s, count, slice);
#if __CUDA_ARCH__ >= 900
        if (first_entry && slice == mine * kSlice) cluster.barrier_wait();
#endif
        if (Threads::rank() < kSlice) entry[slice + Threads::rank()] = pooled;
      }
      for (int i = Threads::rank(); replaces && i < count * kSlice; i += Config::kThreads) {
        const int k = i / kSlice, c = slice + i % kSlice;
        if (s.replacing[k] < 0) continue;
        const std::int64_t half = column_of(p, place.position - (count - 1) + k, group);
        replace_pooled_row<TInput, TState>(p, s.replacing[k], s.rows[k], half, c);
      }
      Threads::sync();  // the tiles are written anew
    }
    if (!writes) return;
    // Counted only now: between two turns of one finisher, hence of one buffer, there is a barrier of the cluster.
    const float* finished = s.entry[turn++ % 2];
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) cluster.sync();
#endif
    if (mine != finisher) return;
    if (fast) fast_finish.finish(p, finished);
    else finish_entry<Threads>(step, group, slot, const_cast<float*>(finished));
  });
#if __CUDA_ARCH__ >= 900
  // A block's shared memory is there as long as others may write to it.
  if (blocks > 1 && any_written) cluster.sync();
#endif
}

}  // namespace tamis::compressor_cuda
