#pragma once

// One pass over a slice of a row: what reaches the bar becomes a candidate in shared memory. When candidates run out of
// room, the k best of them are kept and the bar rises to the k-th: later scores that rank below it cannot win any more.

#include <cstdint>

#include "topk/cuda/kth_best.cuh"
#include "topk/cuda/row.cuh"
#include "topk/cuda/sample.cuh"

namespace tamis::topk_cuda {

/// Winners a row that these kernels can hold apart from the candidates.
inline constexpr std::uint32_t kFilterMaxK = 4096;

/// Tiles that a warp has on their way or is looking at.
inline constexpr int kTileSlots = 2;

/// Dynamic shared memory of the kernels that filter: fixed part, then `capacity` candidates.
template <int kThreads>
struct FilterStorage {
  union {
    // While scores stream in. Every lane copies and reads only its own vectors.
    uint4 tiles[kThreads / 32][kTileSlots][4][32];
    // Otherwise.
    struct {
      Bins<4 * kThreads> bins;
      union {
        Composite winners[kFilterMaxK];
        Candidate kept[kFilterMaxK];
        std::uint32_t bucketed[kFilterMaxK];
      };
    };
  };
  SelectStorage select;
  SampleStorage sample;
  std::uint32_t num_candidates;  // asked for; above the capacity some were lost
  std::uint32_t num_winners;
  Bar bar;
  alignas(16) Candidate candidates[1];  // capacity of them

  static std::size_t bytes(std::uint32_t capacity) { return sizeof(FilterStorage) + capacity * sizeof(Candidate); }
};

template <int kThreads>
__device__ __noinline__ Composite kth_candidate(FilterStorage<kThreads>& s, std::uint32_t k) {
  const ArrayItems<kThreads> items{s.candidates, s.num_candidates};
  return kth_best<kThreads>(items, k, items.count, s.bins, s.select);
}

// Keeps the k best candidates, num_candidates > k, in no particular order. Returns the k-th. Ends with a barrier.
template <int kThreads>
__device__ __noinline__ Composite keep_k_best(FilterStorage<kThreads>& s, std::uint32_t k) {
  const std::uint32_t count = s.num_candidates;
  const Composite last = kth_candidate(s, k);
  if (threadIdx.x == 0) s.num_winners = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const Candidate c = s.candidates[i];
    if (composite_of_candidate(c) >= last) s.kept[atomicAdd(&s.num_winners, 1U)] = c;
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) s.candidates[i] = s.kept[i];
  if (threadIdx.x == 0) s.num_candidates = k;
  __syncthreads();
  return last;
}

// A lane's part of a tile.
template <typename T>
struct TileVectors {
  uint4 v[RowTiles<T>::kVectors];
};

/// A warp's tiles between global memory and registers: asynchronous copies into shared memory, which need neither
/// registers nor L1 while they are on their way. (L1 is what shared memory leaves of it: with 2 x 113 KiB taken, loads
/// into registers had room for 28 KiB a multiprocessor and reached half of the memory's speed.)
template <typename T, int kThreads>
class TileStream {
 public:
  static constexpr int kVectors = RowTiles<T>::kVectors, kWarps = kThreads / 32;

  /// Tiles first, first + kWarps, ... below end.
  __device__ TileStream(FilterStorage<kThreads>& s, const RowTiles<T>& tiles, std::uint32_t first, std::uint32_t end)
      : slots_(&s.tiles[threadIdx.x / 32][0][0][threadIdx.x % 32]), tiles_(tiles), next_(first), end_(end) {}

  /// Starts the first copies, or starts them again after shared memory served something else.
  __device__ void start(std::uint32_t tile) {
    next_ = tile;
    slot_ = 0;
#pragma unroll
    for (int i = 0; i < kTileSlots; ++i) copy_next(i);
  }
  /// The tile that was started first. Its slot is then free.
  __device__ TileVectors<T> take() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kTileSlots - 1) : "memory");
    TileVectors<T> out;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) out.v[i] = slots_[(slot_ * kVectors + i) * 32];
    return out;
  }
  /// Starts the next copy in the slot of the tile that was taken. The tile's values have been looked at by then.
  __device__ void refill() {
    copy_next(slot_);
    slot_ = (slot_ + 1) % kTileSlots;
  }
  __device__ static void wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

 private:
  uint4* slots_;
  const RowTiles<T>& tiles_;
  std::uint32_t next_, end_;
  int slot_ = 0;

  __device__ static void copy(uint4* to, const uint4* from) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
        "l"(from)
        : "memory");
  }
  // A group is closed in any case, so that groups count tiles.
  __device__ void copy_next(int slot) {
    uint4* to = slots_ + slot * kVectors * 32;
    if (next_ < end_) {
      const std::uint32_t first = next_ * RowTiles<T>::kTileVectors + threadIdx.x % 32;
      const uint4* from = tiles_.vectors + first;
      if ((next_ + 1) * RowTiles<T>::kTileVectors <= tiles_.num_vectors) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) copy(to + 32 * i, from + 32 * i);
      } else {
        // Past the row's end: NaN in every format, which reaches no bar.
        for (int i = 0; i < kVectors; ++i) {
          if (first + 32 * i < tiles_.num_vectors) copy(to + 32 * i, from + 32 * i);
          else to[32 * i] = make_uint4(0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU);
        }
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    next_ += kWarps;
  }
};

/// {score, position} at shared address `to`, which moves on, if the score reaches the bar. In assembly, since the
/// compiler makes a branch of it.
__device__ inline void append_if(bool reaches, std::uint32_t& to, float score, std::uint32_t position) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p st.shared.v2.b32 [%0], {%3, %2}; @p add.u32 %0, %0, 8; }"
               : "+r"(to)
               : "r"(reaches ? 1U : 0U), "r"(__float_as_uint(score)), "r"(position)
               : "memory");
}

// Adds the scores of a lane's part of a tile that reach the bar; some do. `first_position`: of its first vector.
template <typename T, int kThreads, typename Largest>
__device__ void keep_hits(const uint4 (&v)[RowTiles<T>::kVectors], const Largest& largest, std::uint32_t first_position,
                          typename ScoreFormat<T>::Bar bar, std::uint32_t capacity, FilterStorage<kThreads>& s) {
  using Format = ScoreFormat<T>;
  constexpr int kVectors = RowTiles<T>::kVectors;
  std::uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) count += Format::count(v[i], bar);
  // One atomic a lane; order does not matter, since winners are ordered by position in the end.
  const std::uint32_t slot = atomicAdd(&s.num_candidates, count);
  if (slot + count > capacity) {
    // Up to the capacity every place is written: the bar may be raised by what is there.
    std::uint32_t at = slot;
    for (int i = 0; i < kVectors; ++i) {
      for (int j = 0; j < Format::kPerVector; ++j) {
        const float score = Format::element(v[i], j);
        if (!Format::reaches_one(score, bar)) continue;
        if (at < capacity) {
          s.candidates[at] = candidate_of(score, first_position + 32 * Format::kPerVector * i + j);
        }
        ++at;
      }
    }
    return;
  }
  auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(&s.candidates[slot]));
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!Format::reaches(largest[i], bar)) continue;
#pragma unroll
    for (int j = 0; j < Format::kPerVector; ++j) {
      const float score = Format::element(v[i], j);
      append_if(Format::reaches_one(score, bar), to, score, first_position + 32 * Format::kPerVector * i + j);
    }
  }
}

// Scores before the first and after the last whole vector, a thread each.
template <typename T, int kThreads>
__device__ void filter_edge(const RowWindow<T>& window, const RowTiles<T>& tiles, std::uint32_t position, Bar bar,
                            std::uint32_t capacity, FilterStorage<kThreads>& s) {
  const float score = window.score(position);
  const std::uint32_t key = key_of(score);
  const bool equal = key == bar.key && bar.key > kNanKey && tiles.tile_of(position) < bar.end_tile;
  if (key <= max(bar.key, kNanKey) && !equal) return;
  const std::uint32_t slot = atomicAdd(&s.num_candidates, 1U);
  if (slot < capacity) s.candidates[slot] = candidate_of(score, position);
}

/// Candidates at which a block stops to keep only the best: early enough for what all warps may still add at ordinary
/// densities, and so that k more fit beside them.
__device__ inline std::uint32_t high_water(std::uint32_t k, std::uint32_t capacity) {
  return min(capacity / 4 * 3, capacity - k);
}

/// Fills s.candidates with what reaches the bar of the scores of tiles [begin, end), and of head and tail where told.
/// s.num_candidates and s.bar are set before (with a barrier) and hold, after the last barrier in here, what was found
/// and how far the bar has risen. If num_candidates > capacity, candidates were lost; else they are at most
/// high_water().
/// @param stream  Started at tile begin + warp: early, while the bar was sought.
template <typename T, int kThreads>
__device__ void filter_tiles(const RowWindow<T>& window, const RowTiles<T>& tiles, TileStream<T, kThreads>& stream,
                             std::uint32_t begin, std::uint32_t end, bool with_head, bool with_tail, std::uint32_t k,
                             std::uint32_t capacity, FilterStorage<kThreads>& s) {
  using Format = ScoreFormat<T>;
  constexpr int kVectors = RowTiles<T>::kVectors;
  constexpr int kMostAttempts = 4;
  const std::uint32_t most = high_water(k, capacity);
  std::uint32_t tile = begin + threadIdx.x / 32;
  Bar bar = s.bar;
  bool edges = true;
  const volatile std::uint32_t& num_candidates = s.num_candidates;

  for (int attempt = 1;;) {
    const auto at_least = Format::at_least(bar.key), above = Format::above(bar.key);
    if (edges && with_head && threadIdx.x < tiles.head) filter_edge(window, tiles, threadIdx.x, bar, capacity, s);
    if (edges && with_tail && threadIdx.x < tiles.tail) {
      filter_edge(window, tiles, window.count - tiles.tail + threadIdx.x, bar, capacity, s);
    }
    while (tile < end && num_candidates <= most) {
      const TileVectors<T> taken = stream.take();
      const auto reached = tile < bar.end_tile ? at_least : above;
      decltype(Format::largest(taken.v[0])) largest[kVectors], of_all;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) largest[i] = Format::largest(taken.v[i]);
      of_all = Format::larger(Format::larger(largest[0], largest[1]), Format::larger(largest[2], largest[3]));
      const bool hit = Format::reaches(of_all, reached);
      stream.refill();
      if (hit) {
        const std::uint32_t first = tiles.position_of_vector(tile * RowTiles<T>::kTileVectors + threadIdx.x % 32);
        keep_hits<T, kThreads>(taken.v, largest, first, reached, capacity, s);
      }
      tile += kThreads / 32;
    }
    TileStream<T, kThreads>::wait_all();  // the slots' memory may now serve the selection
    const bool all_done = __syncthreads_and(tile >= end) != 0;
    const std::uint32_t found = s.num_candidates;
    __syncthreads();
    if (found > capacity && attempt++ == kMostAttempts) return;
    if (found > most) {
      if (threadIdx.x == 0) s.num_candidates = min(found, capacity);
      __syncthreads();
      bar = bar_of(keep_k_best(s, k), tiles);
      if (threadIdx.x == 0) s.bar = bar;
    }
    // A burst of good scores that did not fit, such as the end of an ascending row: again, with the bar that it gave.
    edges = found > capacity;
    if (edges) {
      if (threadIdx.x == 0) s.num_candidates = 0;
      tile = begin + threadIdx.x / 32;
    }
    __syncthreads();
    if (all_done && !edges) return;
    stream.start(tile);
  }
}

}  // namespace tamis::topk_cuda
