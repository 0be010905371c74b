#pragma once

// Any shape, stride and alignment: one block an entry, one channel a thread at a time.
// Work split: channels are dealt to the threads of the block. Other blocks save.
// Bound by:   reading the rows; gates are read twice, once for the maximum.
// Sync:       within the block.
// Definition: compressor/reference.hpp.

#include <cstdint>

#include "compressor/cuda/entry_rows.cuh"
#include "compressor/cuda/finish_entry.cuh"
#include "compressor/cuda/save_rows.cuh"

namespace tamis::compressor_cuda {

struct AnyWindowConfig {
  static constexpr int kThreads = kAnyThreads;
  static constexpr std::int64_t kSharedDims = kAnySharedDims;
};

/// Dynamic shared memory: rows, who replaces them, the entry.
struct AnyWindowStorage {
  PoolRow* rows;
  std::int32_t* replacing;
  float* entry;

  static constexpr std::size_t bytes(std::int64_t window, std::int64_t head_dim) {
    const std::int64_t dims = head_dim <= AnyWindowConfig::kSharedDims ? head_dim : 0;
    return static_cast<std::size_t>(window) * (sizeof(PoolRow) + sizeof(std::int32_t)) +
           static_cast<std::size_t>(dims) * sizeof(float);
  }
};

template <typename TInput, typename TState>
__device__ float pool_channel(const PoolRow* rows, int count, std::int64_t c) {
  const auto gate_of = [&](const PoolRow& row) {
    if (row.bias == nullptr) return to_float(reinterpret_cast<const TState*>(row.gate)[c]);
    return round_to<TState>(__fadd_rn(to_float(reinterpret_cast<const TInput*>(row.gate)[c]), row.bias[c]));
  };
  const auto value_of = [&](const PoolRow& row) {
    if (row.bias == nullptr) return to_float(reinterpret_cast<const TState*>(row.value)[c]);
    return round_to<TState>(to_float(reinterpret_cast<const TInput*>(row.value)[c]));
  };
  float largest = -INFINITY;
#pragma unroll 4
  for (int k = 0; k < count; ++k) {
    if (rows[k].value != nullptr) largest = fmaxf(largest, gate_of(rows[k]));
  }
  float weights = 0, sum = 0;
  for (int first = 0; first < count; first += compressor::kSumRows) {
    float block_weights = 0, block_sum = 0;
#pragma unroll
    for (int i = 0; i < compressor::kSumRows; ++i) {
      const int k = first + i;
      if (k >= count || rows[k].value == nullptr) continue;
      const float weight = exp_not_positive(__fsub_rn(gate_of(rows[k]), largest));
      block_weights = __fadd_rn(block_weights, weight);
      block_sum = __fmaf_rn(weight, value_of(rows[k]), block_sum);
    }
    weights = __fadd_rn(weights, block_weights);
    sum = __fadd_rn(sum, block_sum);
  }
  return __fdiv_rn(sum, weights);
}

template <typename TInput, typename TState>
__global__ void __launch_bounds__(AnyWindowConfig::kThreads)
    any_window_kernel(const __grid_constant__ StepParams step) {
  using Threads = Team<AnyWindowConfig::kThreads>;
  extern __shared__ __align__(8) unsigned char dynamic_shared[];
  __shared__ PooledTokens<Threads> pooled;
  __shared__ std::uint32_t scratch[Threads::kWarps];
  __shared__ EntryAtWork now;
  const CompressorParams& p = step.p;
  begin_dependent();
  const BlockRole role = block_role(step);
  if (role.pools < 0) {
    save_rows<TInput, TState, false>(step, role.saves, gridDim.x - step.pool_blocks);
    return;
  }
  auto* rows = reinterpret_cast<PoolRow*>(dynamic_shared);
  auto* replacing = reinterpret_cast<std::int32_t*>(rows + p.window());
  float* entry = step.entries != nullptr ? step.entries + role.pools * p.head_dim
                                         : reinterpret_cast<float*>(replacing + p.window());
  for_pooled_tokens<1>(p, role.pools, step.pool_groups, pooled, [&](const auto* tokens, int) {
    const bool replaces = find_entry<Threads>(p, tokens[0], true, now, rows, 0, replacing, scratch);
    const int count = now.count;
    for (std::int64_t c = Threads::rank(); c < p.head_dim; c += Threads::kThreads) {
      if (now.writes) entry[c] = pool_channel<TInput, TState>(rows, count, c);
      for (int k = 0; replaces && k < count; ++k) {
        if (replacing[k] < 0) continue;
        const std::int64_t half = column_of(p, now.group - count + p.ratio + k, now.group);
        replace_pooled_row<TInput, TState>(p, replacing[k], rows[k], half, c);
      }
    }
    Threads::sync();
    if (now.writes) finish_entry<Threads>(step, now.group, now.slot, entry);
  });
}

}  // namespace tamis::compressor_cuda
