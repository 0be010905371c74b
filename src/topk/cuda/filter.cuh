#pragma once

// One pass over a slice of a row: what reaches the bar becomes a candidate in shared memory. When candidates run out of
// room, the k best of them are kept and the bar rises to the k-th: later scores that rank below it cannot win any more.

#include <cstdint>

#include "core/cuda/shared_address.cuh"
#include "topk/cuda/kth_best.cuh"
#include "topk/cuda/row.cuh"
#include "topk/cuda/sample.cuh"
#include "topk/rules.hpp"

namespace tamis::topk_cuda {

using core::shared_address;

/// Winners a row that these kernels can hold apart from the candidates.
inline constexpr std::uint32_t kFilterMaxK = 4096;

/// Whether kernels with such blocks are built for this architecture: what topk_filter_threads() may choose there.
template <int kThreads>
__device__ constexpr bool is_built() {
#ifdef __CUDA_ARCH__
  return kThreads <= 512 || __CUDA_ARCH__ == 10 * kTopkWideBlocksOn;
#else
  return true;
#endif
}

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
  std::uint32_t next_tile;
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

/// A value that the compiler takes for unknown, so that it stays in a register and is not computed anew in every turn
/// of a loop.
__device__ inline std::uint32_t kept(std::uint32_t value) {
  asm("mov.u32 %0, %1;" : "=r"(value) : "r"(value));
  return value;
}
__device__ inline float kept(float value) { return __uint_as_float(kept(__float_as_uint(value))); }

/// A warp's tiles between global memory and registers: asynchronous copies into shared memory, which need neither
/// registers nor L1 while they are on their way. (L1 is what shared memory leaves of it: with 2 x 113 KiB taken, loads
/// into registers had room for 28 KiB a multiprocessor and reached half of the memory's speed.)
/// Each warp of the block begins with two tiles of its own; further ones are given to whichever warp asks first, so
/// that none falls behind.
template <typename T, int kThreads>
class TileStream {
 public:
  static constexpr int kVectors = RowTiles<T>::kVectors, kWarps = kThreads / 32;

  /// Tiles of [begin, end).
  __device__ TileStream(FilterStorage<kThreads>& s, const RowTiles<T>& tiles, std::uint32_t begin, std::uint32_t end)
      : slots_(&s.tiles[threadIdx.x / 32][0][0][threadIdx.x % 32]),
        tiles_(tiles),
        counter_(shared_address(&s.next_tile)),
        begin_(begin),
        end_(end),
        whole_end_(min(end, tiles.num_vectors / RowTiles<T>::kTileVectors)) {}

  /// Starts the first copies. A barrier must lie between it and ask().
  __device__ void start(FilterStorage<kThreads>& s) {
    if (threadIdx.x == 0) s.next_tile = begin_ + kTileSlots * kWarps;
    tile_[0] = begin_ + threadIdx.x / 32;
    tile_[1] = tile_[0] + kWarps;
    copy_again();
  }
  /// Asks for the tile after those.
  __device__ void ask() {
    if (threadIdx.x % 32 == 0) {
      asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(asked_) : "r"(counter_) : "memory");
    }
  }
  /// Starts the copies that are on their way again, after shared memory served something else.
  __device__ void copy_again() {
    slot_ = 0;
#pragma unroll
    for (int i = 0; i < kTileSlots; ++i) copy(tile_[i], i);
  }
  /// The tile that was started first.
  __device__ std::uint32_t tile() const { return tile_[0]; }
  __device__ bool done() const { return tile_[0] >= end_; }
  /// This lane's part of it. Its slot is then free.
  __device__ void take(uint4 (&part)[kVectors]) const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kTileSlots - 1) : "memory");
#pragma unroll
    for (int i = 0; i < kVectors; ++i) part[i] = slots_[(slot_ * kVectors + i) * 32];
  }
  /// Goes on to the next tile and starts a copy in the free slot; what was taken has been looked at by then.
  __device__ void advance() {
    const std::uint32_t tile = __shfl_sync(kAllLanes, asked_, 0);
    copy(tile, slot_);
    tile_[0] = tile_[1];
    tile_[1] = tile;
    slot_ ^= 1U;
    ask();
  }
  __device__ static void wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

 private:
  static_assert(kTileSlots == 2);
  uint4* slots_;
  const RowTiles<T>& tiles_;
  std::uint32_t counter_, begin_, end_, whole_end_, slot_ = 0, tile_[kTileSlots], asked_ = 0;

  __device__ void copy(std::uint32_t tile, std::uint32_t slot) const {
    uint4* to = slots_ + slot * (kVectors * 32);
    const std::uint32_t first = tile * RowTiles<T>::kTileVectors + threadIdx.x % 32;
    const uint4* from = tiles_.vectors + first;
    if (tile < whole_end_) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) copy(to + 32 * i, from + 32 * i);
    } else if (tile < end_) {
      // The row's end. Past it: NaN in every format, which reaches no bar.
#pragma unroll 1
      for (int i = 0; i < kVectors; ++i) {
        if (first + 32 * i < tiles_.num_vectors) copy(to + 32 * i, from + 32 * i);
        else to[32 * i] = make_uint4(0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU);
      }
    }
    // A group is closed in any case, so that groups count tiles.
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  __device__ static void copy(uint4* to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
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

/// Fills s.candidates with what reaches the bar of the scores of the tiles of a stream, and of head and tail where
/// told. s.num_candidates and s.bar are set before (with a barrier) and hold, after the last barrier in here, what was
/// found and how far the bar has risen. If num_candidates > capacity, candidates were lost; else they are at most
/// high_water().
/// @param stream  Started early, while the bar was sought.
template <typename T, int kThreads>
__device__ void filter_tiles(const RowWindow<T>& window, const RowTiles<T>& tiles, TileStream<T, kThreads>& stream,
                             bool with_head, bool with_tail, std::uint32_t k, std::uint32_t capacity,
                             FilterStorage<kThreads>& s) {
  using Format = ScoreFormat<T>;
  constexpr int kVectors = RowTiles<T>::kVectors;
  constexpr int kMostAttempts = 4;
  const std::uint32_t most = kept(high_water(k, capacity));
  Bar bar = s.bar;
  bool edges = true;
  const std::uint32_t counter = kept(shared_address(&s.num_candidates));
  const auto num_candidates = [counter] {
    std::uint32_t now;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(now) : "r"(counter));
    return now;
  };

  stream.ask();
  for (int attempt = 1;;) {
    const typename Format::Bar at_least = kept(Format::at_least(bar.key)), above = kept(Format::above(bar.key));
    if (edges && with_head && threadIdx.x < tiles.head) filter_edge(window, tiles, threadIdx.x, bar, capacity, s);
    if (edges && with_tail && threadIdx.x < tiles.tail) {
      filter_edge(window, tiles, window.count - tiles.tail + threadIdx.x, bar, capacity, s);
    }
    // The whole warp goes on or stops: lanes may see the counter at different times, and advance() needs all of them.
    while (!stream.done() && !__any_sync(kAllLanes, num_candidates() > most)) {
      const std::uint32_t tile = stream.tile();
      uint4 part[kVectors];
      stream.take(part);
      const auto reached = tile < bar.end_tile ? at_least : above;
      decltype(Format::largest(part[0])) largest[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) largest[i] = Format::largest(part[i]);
      const auto of_all =
          Format::larger(Format::larger(largest[0], largest[1]), Format::larger(largest[2], largest[3]));
      const bool hit = Format::reaches(of_all, reached);
      stream.advance();
      if (hit) {
        const std::uint32_t first = tiles.position_of_vector(tile * RowTiles<T>::kTileVectors + threadIdx.x % 32);
        keep_hits<T, kThreads>(part, largest, first, reached, capacity, s);
      }
    }
    TileStream<T, kThreads>::wait_all();  // the slots' memory may now serve the selection
    const bool all_done = __syncthreads_and(stream.done()) != 0;
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
      stream.start(s);
    } else if (!all_done) {
      stream.copy_again();
    }
    __syncthreads();
    if (all_done && !edges) return;
    if (edges) stream.ask();
  }
}

}  // namespace tamis::topk_cuda
