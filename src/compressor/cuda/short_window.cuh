#pragma once

// C4: an entry pools at most 8 rows; all of them are in registers at once.
// Work split: a block an entry, a thread 2 neighbouring channels. The first blocks pool, the others save.
// Bound by:   reading the rows once, for few entries by the reads that depend on each other; then by exp, 24
//             instructions a channel and row.
// Sync:       within the block.
// Definition: compressor/reference.hpp.   Why this way: docs/design/2026-12-compressor-cuda.md.

#include <cstdint>

#include "compressor/cuda/entry_rows.cuh"
#include "compressor/cuda/finish_fast.cuh"
#include "compressor/cuda/save_rows.cuh"
#include "compressor/rules.hpp"

namespace tamis::compressor_cuda {

template <int kHeadDim>
struct ShortWindowConfig {
  static constexpr int kThreads = short_threads(kHeadDim);
  static constexpr int kBlocksAnSm = kHeadDim == 512 ? 2 : 8;  // 96 to 128 registers a thread
  static_assert(2 * kThreads == kHeadDim, "a pair of channels each");
};

template <int kHeadDim>
struct ShortWindowStorage {
  static constexpr int kWarps = ShortWindowConfig<kHeadDim>::kThreads / 32;
  PoolRow rows[kWarps][compressor::kShortRows];  // each warp finds them for itself: that takes less than a barrier
  std::int32_t replacing[kWarps][compressor::kShortRows];
  std::uint32_t found[kWarps];
  float entry[kHeadDim];
};

/// Two neighbouring numbers of an input or state row; which of the two is known when they are looked at.
template <typename TInput, typename TState>
struct RawRow {
  Raw<TInput, 2> input;
  Raw<TState, 2> state;
};
template <typename T>
struct RawRow<T, T> {
  union {
    Raw<T, 2> input;
    Raw<T, 2> state;
  };
};

/// The entry's values of channels c and c + 1.
template <typename TInput, typename TState>
__device__ Numbers<2> pool_pair(const PoolRow* rows, int count, int c) {
  constexpr int kRows = compressor::kShortRows;
  // 1. All loads, so that all are under way before the first is waited for.
  RawRow<TInput, TState> gates[kRows], values[kRows];
  Raw<float, 2> biases[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    if (k >= count) break;
    const PoolRow row = rows[k];
    if (row.value == nullptr) continue;
    if (row.bias != nullptr) {
      gates[k].input = load_raw<2>(reinterpret_cast<const TInput*>(row.gate) + c);
      values[k].input = load_raw<2>(reinterpret_cast<const TInput*>(row.value) + c);
      biases[k] = load_raw<2>(row.bias + c);
    } else {
      gates[k].state = load_raw<2>(reinterpret_cast<const TState*>(row.gate) + c);
      values[k].state = load_raw<2>(reinterpret_cast<const TState*>(row.value) + c);
    }
  }
  // 2. Gates and values as they count: a row of the inputs is rounded as if it had been saved and read back.
  Numbers<2> gate[kRows], value[kRows];
  bool counts[kRows];
  Numbers<2> largest = {{-INFINITY, -INFINITY}};
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    counts[k] = k < count && rows[k].value != nullptr;
    if (!counts[k]) continue;
    if (rows[k].bias != nullptr) {
      gate[k] = gates[k].input.value();
      value[k] = values[k].input.value();
      const Numbers<2> bias = biases[k].value();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        gate[k].at[i] = round_to<TState>(__fadd_rn(gate[k].at[i], bias.at[i]));
        value[k].at[i] = round_to<TState>(value[k].at[i]);
      }
    } else {
      gate[k] = gates[k].state.value();
      value[k] = values[k].state.value();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) largest.at[i] = fmaxf(largest.at[i], gate[k].at[i]);
  }
  // 3. Weights and the two sums, in the order of positions.
  Numbers<2> weights = {{0, 0}}, sums = {{0, 0}};
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    if (!counts[k]) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float weight = exp_not_positive(__fsub_rn(gate[k].at[i], largest.at[i]));
      weights.at[i] = __fadd_rn(weights.at[i], weight);
      sums.at[i] = __fadd_rn(sums.at[i], __fmul_rn(weight, value[k].at[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) sums.at[i] = __fdiv_rn(sums.at[i], weights.at[i]);
  return sums;
}

template <typename TInput, typename TState, int kHeadDim>
__global__ void __launch_bounds__(ShortWindowConfig<kHeadDim>::kThreads, ShortWindowConfig<kHeadDim>::kBlocksAnSm)
    short_window_kernel(const __grid_constant__ StepParams step) {
  using Config = ShortWindowConfig<kHeadDim>;
  using Threads = Team<Config::kThreads>;
  __shared__ __align__(16) unsigned char storage[sizeof(ShortWindowStorage<kHeadDim>)];
  auto& s = *reinterpret_cast<ShortWindowStorage<kHeadDim>*>(storage);
  const CompressorParams& p = step.p;
  const std::int64_t block = blockIdx.x;
  if (block >= step.pool_blocks) {
    save_rows<TInput, TState, true>(step, block - step.pool_blocks, gridDim.x - step.pool_blocks);
    return;
  }
  for_pooled_tokens<Threads>(p, block, step.pool_groups, s.found, [&](std::int64_t token) {
    const std::int64_t slot = p.kv_slots[token];
    const TokenPlace place = place_token(p, token);
    const std::int64_t group = group_of(p, place.position);
    const bool replaces = may_replace_pooled_rows(p, place);
    PoolRow* rows = s.rows[Threads::warp()];
    std::int32_t* replacing = s.replacing[Threads::warp()];
    const int count = find_rows<Team<32>>(p, token, place, rows, replaces ? replacing : nullptr, nullptr);
    const int c = 2 * Threads::rank();
    const auto pool = [&] {
      const Numbers<2> pooled = pool_pair<TInput, TState>(rows, count, c);
      s.entry[c] = pooled.at[0];
      s.entry[c + 1] = pooled.at[1];
    };
    // A thread saves the channels that it has read.
    const auto replace = [&] {
      for (int k = 0; replaces && k < count; ++k) {
        if (replacing[k] < 0) continue;
        const std::int64_t half = column_of(p, place.position - (count - 1) + k, group);
        for (int i = 0; i < 2; ++i) replace_pooled_row<TInput, TState>(p, replacing[k], rows[k], half, c + i);
      }
    };
    if (!writes_entry(p, slot, place.position)) return replace();
    if constexpr (kHeadDim == 128) {
      const WarpFinish finish(p, group, slot);
      pool();
      replace();
      Threads::sync();
      if (Threads::warp() == 0) finish.finish(step, s.entry);
    } else if (PairFinish<Threads, kHeadDim>::serves(p)) {
      const PairFinish<Threads, kHeadDim> finish(p, group, slot);
      pool();
      replace();
      Threads::sync();
      finish.finish(p, s.entry);
    } else {
      pool();
      replace();
      Threads::sync();
      finish_entry<Threads>(step, group, slot, s.entry);
    }
  });
}

}  // namespace tamis::compressor_cuda
