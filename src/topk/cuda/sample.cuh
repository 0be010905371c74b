#pragma once

// A bar for a row from a sample of it: high enough that few scores reach it, low enough that k surely do. "Surely"
// means with all but a chance of about 1e-8 for scores in no particular order; a bar that was too high is noticed
// later, by counting, and costs a slow exact pass, never a winner.
//
// The window is cut into strata of equal length and one vector is read at a pseudo-random place of each, so that sorted
// and periodic rows are sampled as well as others. Samples are dealt to kGroups groups in turn, and of each group only
// the best one is kept: the q-th best of these is about the quantile at which q groups hit, and ranking 128 numbers
// takes one comparison of each with each. Composites, not scores, are ranked: equal scores are sampled by position.

#include <cstdint>

#include "topk/cuda/kth_largest.cuh"
#include "topk/cuda/row.cuh"

namespace tamis::topk_cuda {

inline constexpr int kSampleThreads = 512;
inline constexpr int kGroups = 128;
inline constexpr int kLanesPerGroup = kSampleThreads / kGroups;
static_assert(kLanesPerGroup == 4, "the best of a group is found by two shuffles");

/// What a score must reach to become a candidate: a key above `key`, or this key in a tile before `end_tile`. The set
/// of scores that reach a bar is closed upwards: with a position it holds all better ones.
struct Bar {
  std::uint32_t key, end_tile;
};

template <typename T>
__device__ Bar bar_of(Composite c, const RowTiles<T>& tiles) {
  return {key_of(c), tiles.tile_of(position_of(c)) + 1};
}

struct SampleStorage {
  Composite best[kGroups];
  Composite chosen;
};

// Which of the groups' best marks the bar: of kGroups groups with `per_group` samples each, about hit(x) hold one of
// the x best scores of the row. Aims at six standard deviations above hit(k), which loses no winner, unless that would
// come near hit(capacity), where too many candidates pass; then both chances are made equal.
__device__ inline int chosen_group(float k, float capacity, float count, float per_group) {
  const auto hit = [&](float x) {
    return kGroups * (1.0F - __expf(per_group * __logf(1.0F - fminf(x / count, 0.999F))));
  };
  const auto deviation = [](float groups) { return sqrtf(groups * (1.0F - groups / kGroups)) + 0.1F; };
  const float enough = hit(k), many = hit(0.9F * capacity);
  const float sigma_enough = deviation(enough), sigma_many = deviation(many);
  const float even = (enough * sigma_many + many * sigma_enough) / (sigma_enough + sigma_many);
  return min(kGroups - 1, max(1, static_cast<int>(fminf(enough + 6.0F * sigma_enough + 3.0F, even))));
}

/// @param capacity  More candidates than this cannot be kept at once.
/// All threads of the block call it; the window holds at least 2,048 vectors' worth of scores or so (capacity scores
/// do).
template <typename T>
__device__ Bar sample_bar(const RowWindow<T>& window, const RowTiles<T>& tiles, std::uint32_t k, std::uint32_t capacity,
                          SampleStorage& s) {
  using Format = ScoreFormat<T>;
  // Samples so that the k-th and the capacity-th best can be told apart: r = capacity / k,
  // samples * k / count >= (6 / (sqrt(r) - 1))^2, at least 6.
  const float ratio = sqrtf(static_cast<float>(capacity) / static_cast<float>(k)) - 1.0F;
  const float wanted_hits = fmaxf(6.0F, 36.0F / (ratio * ratio));
  const float wanted = wanted_hits * static_cast<float>(window.count) / static_cast<float>(k);
  int rounds_log2 = 0;
  while (rounds_log2 < 3 && static_cast<float>(kSampleThreads * Format::kPerVector << rounds_log2) < wanted)
    ++rounds_log2;
  // Where more than one score in 16 wins, whole vectors would hit in every group.
  const int used = 16 * k > window.count ? 1 : Format::kPerVector;

  const int group = threadIdx.x / kLanesPerGroup, member = threadIdx.x % kLanesPerGroup;
  const int strata_log2 = 9 + rounds_log2;
  Composite best = 0;
#pragma unroll 2
  for (int round = 0; round < 1 << rounds_log2; ++round) {
    const auto stratum = static_cast<std::uint32_t>(round * kSampleThreads + member * kGroups + group);
    const auto begin =
        static_cast<std::uint32_t>((static_cast<std::uint64_t>(tiles.num_vectors) * stratum) >> strata_log2);
    const auto end =
        static_cast<std::uint32_t>((static_cast<std::uint64_t>(tiles.num_vectors) * (stratum + 1)) >> strata_log2);
    std::uint32_t random = (stratum + 1) * 0x9E3779B1U;  // a multiplicative hash, folded
    random = (random ^ random >> 15) * 0x85EBCA77U;
    const std::uint32_t vector = begin + __umulhi(random ^ random >> 13, max(end, begin + 1) - begin);
    const uint4 v = load_vector(tiles.vectors + vector);
#pragma unroll
    for (int i = 0; i < Format::kPerVector; ++i) {
      if (i < used) best = max(best, composite_of(key_of(Format::element(v, i)), tiles.position_of_vector(vector) + i));
    }
  }
  best = max(best, __shfl_xor_sync(0xFFFFFFFFU, best, 1));
  best = max(best, __shfl_xor_sync(0xFFFFFFFFU, best, 2));
  if (member == 0) s.best[group] = best;
  const int chosen = chosen_group(static_cast<float>(k), static_cast<float>(capacity), static_cast<float>(window.count),
                                  static_cast<float>(kLanesPerGroup * used << rounds_log2));
  __syncthreads();

  // The members of a group share the comparisons of its best; neighbours read neighbours, so banks do not clash.
  int better = 0;
#pragma unroll 8
  for (int i = 0; i < kGroups / kLanesPerGroup; ++i) better += s.best[i * kLanesPerGroup + member] > best ? 1 : 0;
  better += __shfl_xor_sync(0xFFFFFFFFU, better, 1);
  better += __shfl_xor_sync(0xFFFFFFFFU, better, 2);
  if (member == 0 && better == chosen - 1) s.chosen = best;
  __syncthreads();
  return bar_of(s.chosen, tiles);
}

}  // namespace tamis::topk_cuda
