#pragma once

// C4: an entry pools at most 8 rows; all of them are in registers at once.
// Work split: kHeadDim / 4 threads an entry, 4 neighbouring channels each; an indexer's entry is a warp's, a main one a
//             block's. The first blocks pool, the others save.
// Bound by:   reading the rows once; then by exp, about 25 instructions a channel and row.
// Sync:       within the threads of an entry.
// Definition: compressor/reference.hpp.   Why this way: docs/design/2026-12-compressor-cuda.md.

#include <cstdint>

#include "compressor/cuda/entry_rows.cuh"
#include "compressor/cuda/finish_entry.cuh"
#include "compressor/cuda/save_rows.cuh"
#include "compressor/rules.hpp"

namespace tamis::compressor_cuda {

template <int kHeadDim>
struct ShortWindowConfig {
  static constexpr int kTeamThreads = kHeadDim / 4;  // a quad of channels each
  static constexpr int kThreads = kShortThreads;
  static constexpr int kTeams = kThreads / kTeamThreads;
  static_assert(kThreads % kTeamThreads == 0 && (kTeamThreads == 32 || kTeams == 1), "a team is a warp or the block");
};

template <int kHeadDim>
struct ShortWindowStorage {
  PoolRow rows[compressor::kShortRows];
  std::int32_t replacing[compressor::kShortRows];
  std::uint32_t found[ShortWindowConfig<kHeadDim>::kTeamThreads / 32];
  alignas(16) float entry[kHeadDim];
};

/// Four neighbouring numbers of an input or state row; which of the two is known when they are looked at.
template <typename TInput, typename TState>
struct RawRow {
  RawQuad<TInput> input;
  RawQuad<TState> state;
};
template <typename T>
struct RawRow<T, T> {
  union {
    RawQuad<T> input;
    RawQuad<T> state;
  };
};

/// The entry's value of the quad of channels at c.
template <typename TInput, typename TState>
__device__ Quad pool_quad(const PoolRow* rows, int count, int c) {
  constexpr int kRows = compressor::kShortRows;
  // 1. All loads, so that all are under way before the first is waited for.
  RawRow<TInput, TState> gates[kRows], values[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    if (k >= count) break;
    const PoolRow row = rows[k];
    if (row.value == nullptr) continue;
    if (row.bias != nullptr) {
      gates[k].input = load_quad(reinterpret_cast<const TInput*>(row.gate) + c);
      values[k].input = load_quad(reinterpret_cast<const TInput*>(row.value) + c);
    } else {
      gates[k].state = load_quad(reinterpret_cast<const TState*>(row.gate) + c);
      values[k].state = load_quad(reinterpret_cast<const TState*>(row.value) + c);
    }
  }
  // 2. Gates and values as they count: a row of the inputs is rounded as if it had been saved and read back.
  Quad gate[kRows], value[kRows];
  bool counts[kRows];
  Quad largest = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    counts[k] = k < count && rows[k].value != nullptr;
    if (!counts[k]) continue;
    if (rows[k].bias != nullptr) {
      gate[k] = gates[k].input.value();
      value[k] = values[k].input.value();
      const Quad bias = load_quad(rows[k].bias + c).value();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        gate[k].at[i] = round_to<TState>(__fadd_rn(gate[k].at[i], bias.at[i]));
        value[k].at[i] = round_to<TState>(value[k].at[i]);
      }
    } else {
      gate[k] = gates[k].state.value();
      value[k] = values[k].state.value();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) largest.at[i] = fmaxf(largest.at[i], gate[k].at[i]);
  }
  // 3. Weights and the two sums, in the order of positions.
  Quad weights = {{0, 0, 0, 0}}, sums = {{0, 0, 0, 0}};
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    if (!counts[k]) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight = exp_not_positive(__fsub_rn(gate[k].at[i], largest.at[i]));
      weights.at[i] = __fadd_rn(weights.at[i], weight);
      sums.at[i] = __fadd_rn(sums.at[i], __fmul_rn(weight, value[k].at[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums.at[i] = __fdiv_rn(sums.at[i], weights.at[i]);
  return sums;
}

template <typename TInput, typename TState, int kHeadDim>
__global__ void __launch_bounds__(ShortWindowConfig<kHeadDim>::kThreads)
    short_window_kernel(const __grid_constant__ StepParams step) {
  using Config = ShortWindowConfig<kHeadDim>;
  using Threads = Team<Config::kTeamThreads>;
  __shared__ __align__(16) unsigned char storage[Config::kTeams][sizeof(ShortWindowStorage<kHeadDim>)];
  const CompressorParams& p = step.p;
  const std::int64_t block = blockIdx.x;
  if (block >= step.pool_blocks) {
    save_rows<TInput, TState, true>(step, block - step.pool_blocks, gridDim.x - step.pool_blocks);
    return;
  }
  const int team = static_cast<int>(threadIdx.x) / Config::kTeamThreads;
  auto& s = *reinterpret_cast<ShortWindowStorage<kHeadDim>*>(storage[team]);
  const std::int64_t group = block * Config::kTeams + team;
  if (group >= step.pool_groups) return;
  for_pooled_tokens<Threads>(p, group, step.pool_groups, s.found, [&](std::int64_t token) {
    const TokenPlace place = place_token(p, token);
    const bool replaces = may_replace_pooled_rows(p, place);
    const int count = static_cast<int>(place.position - window_begin(p, place.position)) + 1;
    if (Threads::warp() == 0) find_rows(p, token, place, s.rows, replaces ? s.replacing : nullptr);
    Threads::sync();
    const int c = 4 * Threads::rank();
    const bool writes = writes_entry(p, token, place.position);
    if (writes) store_quad(pool_quad<TInput, TState>(s.rows, count, c), s.entry + c);
    if (replaces) {
      // A thread saves the channels that it has read.
      for (int k = 0; k < count; ++k) {
        if (s.replacing[k] < 0) continue;
        const std::int64_t half = column_of(p, place.position - (count - 1) + k, group_of(p, place.position));
        for (int i = 0; i < 4; ++i) {
          replace_pooled_row<TInput, TState>(p, s.replacing[k], s.rows[k], half, c + i);
        }
      }
    }
    Threads::sync();
    if (writes) finish_entry<Threads>(step, group_of(p, place.position), p.kv_slots[token], s.entry);
  });
}

}  // namespace tamis::compressor_cuda
