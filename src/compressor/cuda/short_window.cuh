#pragma once

// C4: an entry pools at most 8 rows; all of them are in registers at once.
// Work split: a team of threads an entry, a thread 4 neighbouring channels: a block, or a warp of an indexer. Other
//             blocks save.
// Bound by:   reading the rows once, for few entries by the reads that depend on each other; close behind by
//             instructions, of which exp takes the half.
// Sync:       within the team.
// Definition: compressor/reference.hpp.   Why this way: docs/design/2026-12-compressor-cuda.md.

#include <cstdint>
#include <type_traits>

#include "compressor/cuda/entry_rows.cuh"
#include "compressor/cuda/finish_fast.cuh"
#include "compressor/cuda/pool_block.cuh"
#include "compressor/cuda/save_rows.cuh"
#include "compressor/rules.hpp"

namespace tamis::compressor_cuda {

template <int kHeadDim>
struct ShortWindowConfig {
  static constexpr int kEach = 4;  // channels a thread
  static constexpr int kTeams = short_teams(kHeadDim);
  static constexpr int kBlocksAnSm = kShortBlocksAnSm;  // 128 registers a thread
  using Threads = Team<kShortThreads / kTeams>;
  static_assert(Threads::kThreads * kEach == kHeadDim);
  static_assert(compressor::kShortRows == kSumRows, "a window is one block of rows");
};

template <int kHeadDim>
using ShortWindowFinish = std::conditional_t<kHeadDim == 128, WarpFinish,
                                             PairFinish<typename ShortWindowConfig<kHeadDim>::Threads, kHeadDim>>;

/// Of one team.
template <int kHeadDim>
struct ShortWindowStorage {
  using Threads = typename ShortWindowConfig<kHeadDim>::Threads;
  struct Entry {
    alignas(16) float values[kHeadDim];
    PoolRow rows[compressor::kShortRows];
    std::int32_t replacing[compressor::kShortRows];
    EntryAtWork now;
    bool replaces;
  };
  Entry entries[Threads::kWarps];
  PooledTokens<Threads> pooled;
};

/// Saves what goes where the entry's rows lay, by the thread that has read these channels. Rare, and out of line to
/// keep its registers out of pooling.
template <typename TInput, typename TState, int kHeadDim>
__device__ __noinline__ void replace_channels(const CompressorParams& p,
                                              const typename ShortWindowStorage<kHeadDim>::Entry& entry, int c) {
  const EntryAtWork& now = entry.now;
  for (int k = 0; k < now.count; ++k) {
    if (entry.replacing[k] < 0) continue;
    const std::int64_t half = column_of(p, now.group - now.count + p.ratio + k, now.group);
    for (int i = 0; i < ShortWindowConfig<kHeadDim>::kEach; ++i) {
      replace_pooled_row<TInput, TState>(p, entry.replacing[k], entry.rows[k], half, c + i);
    }
  }
}

template <typename TInput, typename TState, int kHeadDim>
__global__ void __launch_bounds__(kShortThreads, ShortWindowConfig<kHeadDim>::kBlocksAnSm)
    short_window_kernel(const __grid_constant__ StepParams step) {
  using Config = ShortWindowConfig<kHeadDim>;
  using Threads = typename Config::Threads;
  using Storage = ShortWindowStorage<kHeadDim>;
  __shared__ __align__(16) unsigned char storage[Config::kTeams * sizeof(Storage)];
  const CompressorParams& p = step.p;
  begin_dependent();
  const BlockRole role = block_role(step);
  if (role.pools < 0) {
    save_rows<TInput, TState, true>(step, role.saves, gridDim.x - step.pool_blocks);
    return;
  }
  const int team = static_cast<int>(threadIdx.x) / Threads::kThreads;
  const std::int64_t pool_group = role.pools * Config::kTeams + team;
  if (pool_group >= step.pool_groups) return;  // more than one team a block: they share no barrier
  Storage& s = reinterpret_cast<Storage*>(storage)[team];
  for_pooled_tokens<Threads::kWarps>(p, pool_group, step.pool_groups, s.pooled, [&](const auto* tokens, int count) {
    // Each warp looks up an entry, then the team goes through them.
    if (Threads::warp() < count) {
      auto& mine = s.entries[Threads::warp()];
      const bool replaces = find_entry<Team<32>>(p, tokens[Threads::warp()], true, mine.now, mine.rows, kSumRows,
                                                 mine.replacing, nullptr);
      if (Threads::lane() == 0) mine.replaces = replaces;
    }
    Threads::sync();
    const int c = Config::kEach * Threads::rank();
    for (int e = 0; e < count; ++e) {
      auto& entry = s.entries[e];
      if (entry.now.writes) {
        PoolBlock<TInput, TState, Config::kEach> window;
        window.read(entry.rows, c);
        Numbers<Config::kEach> weights = {}, sums = {};
        window.sum(window.largest(), weights, sums);
#pragma unroll
        for (int i = 0; i < Config::kEach; ++i) {
          sums.at[i] = __fdiv_rn(__fadd_rn(0.0F, sums.at[i]), weights.at[i]);  // the sum of blocks: of one
        }
        store_numbers(sums, entry.values + c);
      }
      if (entry.replaces) replace_channels<TInput, TState, kHeadDim>(p, entry, c);
    }
    Threads::sync();
    for (int e = 0; e < count; ++e) {
      auto& entry = s.entries[e];
      if (!entry.now.writes) continue;
      using Finish = ShortWindowFinish<kHeadDim>;
      if (Finish::serves(step)) Finish(p, entry.now.group, entry.now.slot).finish(step, entry.values);
      else finish_entry<Threads>(step, entry.now.group, entry.now.slot, entry.values);
    }
  });
}

}  // namespace tamis::compressor_cuda
