#pragma once

// A bar for a row from a sample of it: high enough that few scores reach it, low enough that k surely do. "Surely"
// means with all but a chance of about 1e-6 for scores in no particular order; a bar that was too high is noticed
// later, by counting, and costs a slow exact pass, never a winner.
//
// The window is cut into strata of equal length and one vector is read at a pseudo-random place of each, so that sorted
// and periodic rows are sampled as well as others. Samples are dealt to kGroups groups in turn, and of each group only
// the best one is kept: the q-th best of these is about the quantile at which q groups hit, and ranking 128 numbers
// takes one comparison of each with each. Composites, not scores, are ranked: equal scores are sampled by position.
// Where neighbours are alike (sorted rows, equal scores), a vector counts as one sample instead of four or eight;
// whether they are shows in the sampled vectors themselves. Blocks that share a row all take the whole sample, so that
// they need not talk.

#include <cstdint>

#include "topk/cuda/kth_best.cuh"
#include "topk/cuda/row.cuh"

namespace tamis::topk_cuda {

inline constexpr int kGroups = 128;
inline constexpr int kMostPerGroupLog2 = 3;  // vectors

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
  Composite chosen, chosen_if_alike;
};

// Which of the groups' best marks the bar: of kGroups groups with `per_group` samples each, about hit(k) hold one of
// the k best scores of the row. Five standard deviations more lose no winner; that more candidates than necessary pass,
// or more than fit, costs time only.
__device__ inline int chosen_group(float k, float count, float per_group) {
  const float enough = kGroups * (1.0F - __expf(per_group * __logf(1.0F - fminf(k / count, 0.999F))));
  const float deviation = sqrtf(enough * (1.0F - enough / kGroups)) + 0.1F;
  return min(kGroups - 1, static_cast<int>(enough + 5.0F * deviation + 3.0F));
}

/// A thread's part of the sample. The constructor only issues the loads, so that what follows it overlaps them.
template <typename T, int kThreads>
class Sample {
 public:
  using Format = ScoreFormat<T>;
  static constexpr int kEach = (kGroups << kMostPerGroupLog2) / kThreads;  // vectors a thread, at most

  /// The window holds more scores than a block keeps: at least kGroups vectors.
  __device__ Sample(const RowTiles<T>& tiles, std::uint32_t count, std::uint32_t k)
      : tiles_(tiles), count_(count), k_(k) {
    // Of the k best about 16 are to be sampled, as far as 8 vectors a group allow: the bar then lets two to three times
    // k through (with 2 of them six times). Of a large k, whose candidates hardly fit, 32.
    const std::uint64_t wanted_vectors = std::uint64_t{count / k} * ((k > 1024 ? 32 : 16) / Format::kPerVector);
    per_group_log2_ = 0;
    while (per_group_log2_ < kMostPerGroupLog2 && (kGroups << per_group_log2_) < wanted_vectors &&
           (2 * kGroups << per_group_log2_) <= tiles_.num_vectors) {
      ++per_group_log2_;
    }
    // Where more than one score in 16 wins, whole vectors would hit in every group.
    used_ = 16 * k > count ? 1 : Format::kPerVector;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (has(i)) vectors_[i] = load_vector(tiles_.vectors + place(i));
    }
  }

  /// All threads of the block call it together. `loaded` is called once the sample has arrived: copies that start
  /// earlier delay it. Holds barriers; storage is free after the caller's next one.
  template <typename F>
  __device__ Bar bar(SampleStorage& s, F loaded) const {
    const auto k = static_cast<float>(k_), count = static_cast<float>(count_);
    const int chosen = chosen_group(k, count, static_cast<float>(used_ << per_group_log2_));
    const int chosen_if_alike = chosen_group(k, count, static_cast<float>(1 << per_group_log2_));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * kThreads >= items()) break;
      Composite best = has(i) ? best_of(vectors_[i], place(i)) : 0;
      for (int step = 1; step < 1 << per_group_log2_; step *= 2)
        best = max(best, __shfl_xor_sync(kAllLanes, best, step));
      if (has(i)) s.best[item(i) >> per_group_log2_] = best;
    }
    loaded();
    __syncthreads();
    // Several threads share the comparisons of a group's best, two at a time; neighbours read neighbours, so banks do
    // not clash.
    constexpr int kSharers = kThreads / kGroups;
    const int member = threadIdx.x % kSharers;
    const Composite mine = s.best[threadIdx.x / kSharers];
    int better = 0;
#pragma unroll 4
    for (int i = 0; i < kGroups / kSharers / 2; ++i) {
      const auto two = reinterpret_cast<const ulonglong2*>(s.best)[i * kSharers + member];
      better += (two.x > mine ? 1 : 0) + (two.y > mine ? 1 : 0);
    }
#pragma unroll
    for (int step = 1; step < kSharers; step *= 2) better += __shfl_xor_sync(kAllLanes, better, step);
    if (member == 0 && better == chosen - 1) s.chosen = mine;
    if (member == 0 && better == chosen_if_alike - 1) s.chosen_if_alike = mine;
    __syncthreads();
    if (used_ == 1) return bar_of(s.chosen, tiles_);

    // Of the vectors whose best score reaches the higher of the two bars, do the others reach it, too? Asked of every
    // thread's first one. (Of the lower bar it would say little: in a row that is mostly zeros or masked it may be that
    // very score.)
    const std::uint32_t key = key_of(s.chosen_if_alike);
    float worst = Format::element(vectors_[0], 0), best = worst;
#pragma unroll
    for (int i = 1; i < Format::kPerVector; ++i) {
      worst = fminf(worst, Format::element(vectors_[0], i));
      best = fmaxf(best, Format::element(vectors_[0], i));
    }
    const int hit = __syncthreads_count(has(0) && key_of(best) >= key);
    const int alike = __syncthreads_count(has(0) && key_of(worst) >= key);
    constexpr int kEnoughToTell = 4;
    return bar_of(hit >= kEnoughToTell && 10 * alike >= 9 * hit ? s.chosen_if_alike : s.chosen, tiles_);
  }

 private:
  const RowTiles<T>& tiles_;
  std::uint32_t count_, k_;
  int per_group_log2_, used_;
  uint4 vectors_[kEach];

  // Item: a vector of the sample; group g owns items g << per_group_log2 and on.
  __device__ std::uint32_t items() const { return kGroups << per_group_log2_; }
  __device__ static std::uint32_t item(int i) { return i * kThreads + threadIdx.x; }
  __device__ bool has(int i) const { return item(i) < items(); }

  // A pseudo-random place in the item's stratum. Groups take strata in turn.
  __device__ std::uint32_t place(int i) const {
    const std::uint32_t group = item(i) >> per_group_log2_, turn = item(i) & ((1U << per_group_log2_) - 1);
    const std::uint32_t stratum = turn * kGroups + group;
    const int strata_log2 = 7 + per_group_log2_;
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
static_assert(kGroups == 1 << 7, "strata_log2 counts on it");

}  // namespace tamis::topk_cuda
