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

#include "topk/cuda/kth_best.cuh"
#include "topk/cuda/row.cuh"

namespace tamis::topk_cuda {

inline constexpr int kSampleThreads = 512;
inline constexpr int kGroups = 128;
inline constexpr int kLanesPerGroup = kSampleThreads / kGroups;
static_assert(kLanesPerGroup == 4, "the best of a group is found by two shuffles");
inline constexpr int kMostRoundsLog2 = 3;

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
  alignas(16) Composite best[kGroups];
  Composite chosen;
};

// Which of the groups' best marks the bar: of kGroups groups with `per_group` samples each, about hit(k) hold one of the
// k best scores of the row. Six standard deviations more lose no winner; that more candidates than necessary pass, or more
// than fit, costs time only.
__device__ inline int chosen_group(float k, float count, float per_group) {
  const float enough = kGroups * (1.0F - __expf(per_group * __logf(1.0F - fminf(k / count, 0.999F))));
  const float deviation = sqrtf(enough * (1.0F - enough / kGroups)) + 0.1F;
  return min(kGroups - 1, static_cast<int>(enough + 6.0F * deviation + 3.0F));
}

/// A thread's part of the sample. The constructor only issues the first loads, so that what follows it overlaps them.
template <typename T>
class Sample {
 public:
  using Format = ScoreFormat<T>;

  /// The window holds more scores than a block keeps.
  __device__ Sample(const RowTiles<T>& tiles, std::uint32_t count, std::uint32_t k) : tiles_(tiles) {
    // Of the k best about kWantedHits are to be sampled: the bar then lets two to six times k through.
    constexpr float kWantedHits = 2.0F;
    const float wanted = kWantedHits * static_cast<float>(count) / static_cast<float>(k);
    rounds_log2_ = 0;
    while (rounds_log2_ < kMostRoundsLog2 && (2 * kSampleThreads << rounds_log2_) <= tiles_.num_vectors &&
           static_cast<float>(kSampleThreads * Format::kPerVector << rounds_log2_) < wanted) {
      ++rounds_log2_;
    }
    // Where more than one score in 16 wins, whole vectors would hit in every group.
    used_ = 16 * k > count ? 1 : Format::kPerVector;
    first_ = load_vector(tiles_.vectors + vector_of_round(0));
    second_ = rounds_log2_ > 0 ? load_vector(tiles_.vectors + vector_of_round(1)) : first_;
  }

  /// All threads of the block call it together. Holds two barriers; storage is free after the caller's next one.
  __device__ Bar bar(std::uint32_t count, std::uint32_t k, SampleStorage& s) const {
    // Too short to give every thread a vector of its own: no bar. What then does not fit takes the exact pass.
    if (tiles_.num_vectors < kSampleThreads) return {kNoKey, 0};
    const int chosen = chosen_group(static_cast<float>(k), static_cast<float>(count),
                                    static_cast<float>(kLanesPerGroup * used_ << rounds_log2_));
    Composite best = best_of(first_, vector_of_round(0));
    if (rounds_log2_ > 0) best = max(best, best_of(second_, vector_of_round(1)));
#pragma unroll 1
    for (int round = 2; round < 1 << rounds_log2_; round += 2) {
      const uint4 a = load_vector(tiles_.vectors + vector_of_round(round));
      const uint4 b = load_vector(tiles_.vectors + vector_of_round(round + 1));
      best = max(best, best_of(a, vector_of_round(round)));
      best = max(best, best_of(b, vector_of_round(round + 1)));
    }
    best = max(best, __shfl_xor_sync(kAllLanes, best, 1));
    best = max(best, __shfl_xor_sync(kAllLanes, best, 2));
    const int group = threadIdx.x / kLanesPerGroup, member = threadIdx.x % kLanesPerGroup;
    if (member == 0) s.best[group] = best;
    __syncthreads();

    // The members of a group share the comparisons of its best, two at a time; neighbours read neighbours, so banks do
    // not clash.
    int better = 0;
#pragma unroll 4
    for (int i = 0; i < kGroups / kLanesPerGroup / 2; ++i) {
      const auto two = reinterpret_cast<const ulonglong2*>(s.best)[i * kLanesPerGroup + member];
      better += (two.x > best ? 1 : 0) + (two.y > best ? 1 : 0);
    }
    better += __shfl_xor_sync(kAllLanes, better, 1);
    better += __shfl_xor_sync(kAllLanes, better, 2);
    if (member == 0 && better == chosen - 1) s.chosen = best;
    __syncthreads();
    return bar_of(s.chosen, tiles_);
  }

 private:
  const RowTiles<T>& tiles_;
  int rounds_log2_, used_;
  uint4 first_, second_;

  // A pseudo-random place in this thread's stratum of a round.
  __device__ std::uint32_t vector_of_round(int round) const {
    const std::uint32_t stratum =
        round * kSampleThreads + threadIdx.x % kLanesPerGroup * kGroups + threadIdx.x / kLanesPerGroup;
    const int strata_log2 = 9 + rounds_log2_;
    const std::uint64_t at = static_cast<std::uint64_t>(tiles_.num_vectors) * stratum;
    const auto begin = static_cast<std::uint32_t>(at >> strata_log2);
    const auto end = static_cast<std::uint32_t>((at + tiles_.num_vectors) >> strata_log2);
    const std::uint32_t random = (stratum + 1) * 0x9E3779B1U;  // multiplicative hashing: the high bits are mixed
    return begin + __umulhi(random, end - begin);
  }

  // The best of a vector's scores that are used, of equal ones the first.
  __device__ Composite best_of(const uint4& v, std::uint32_t vector) const {
    float largest = Format::element(v, 0);
    std::uint32_t at = 0;
    if (used_ > 1) {
#pragma unroll
      for (int i = 1; i < Format::kPerVector; ++i) largest = fmaxf(largest, Format::element(v, i));
#pragma unroll
      for (int i = Format::kPerVector - 1; i >= 0; --i) at = Format::element(v, i) == largest ? i : at;
    }
    return composite_of(key_of(largest), tiles_.position_of_vector(vector) + at);
  }
};
static_assert(kSampleThreads == 1 << 9, "strata_log2 counts on it");

}  // namespace tamis::topk_cuda
