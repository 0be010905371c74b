#pragma once

// One pass over a slice of a row: what reaches the bar becomes a candidate in shared memory. When candidates run out of
// room, the k best of them are kept and the bar rises to the k-th: later scores that rank below it cannot win any more.

#include <cstdint>

#include "topk/cuda/kth_best.cuh"
#include "topk/cuda/row.cuh"
#include "topk/cuda/sample.cuh"

namespace tamis::topk_cuda {

inline constexpr int kFilterThreads = kSampleThreads;
inline constexpr int kFilterWarps = kFilterThreads / 32;
/// Winners a row that these kernels can hold apart from the candidates.
inline constexpr std::uint32_t kFilterMaxK = 4096;

/// Tiles that a warp has on their way or is looking at.
inline constexpr int kTileSlots = 2;

/// Dynamic shared memory of the kernels that filter: fixed part, then `capacity` candidates.
struct FilterStorage {
  union {
    // While scores stream in. Every lane copies and reads only its own vectors.
    uint4 tiles[kFilterWarps][kTileSlots][4][32];
    // Otherwise.
    struct {
      std::uint32_t bins[kBins];
      union {
        Composite winners[kFilterMaxK];
        std::uint32_t bucketed[kFilterMaxK];
      };
    };
  };
  SelectStorage select;
  SampleStorage sample;
  std::uint32_t num_candidates;  // asked for; above the capacity some were lost
  std::uint32_t num_winners;
  Bar bar;
  alignas(16) Composite candidates[1];  // capacity of them

  static std::size_t bytes(std::uint32_t capacity) { return sizeof(FilterStorage) + capacity * sizeof(Composite); }
};

/// Candidates that are at least `last`, in no particular order, as s.winners; s.num_winners counts them. Begin with a
/// barrier since the last use; ends with one.
__device__ inline void collect_winners(FilterStorage& s, Composite last) {
  const std::uint32_t count = s.num_candidates;
  if (threadIdx.x == 0) s.num_winners = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += kFilterThreads) {
    if (s.candidates[i] >= last) s.winners[atomicAdd(&s.num_winners, 1U)] = s.candidates[i];
  }
  __syncthreads();
}

__device__ __noinline__ inline Composite kth_candidate(FilterStorage& s, std::uint32_t k) {
  const std::uint32_t count = s.num_candidates;
  return kth_best<kFilterThreads>(ArrayItems<kFilterThreads>{s.candidates, count}, k, count, s.bins, s.select);
}

// Keeps the k best candidates, num_candidates > k, in no particular order. Returns the k-th. Ends with a barrier.
__device__ __noinline__ inline Composite keep_k_best(FilterStorage& s, std::uint32_t k) {
  const Composite last = kth_candidate(s, k);
  collect_winners(s, last);
  for (std::uint32_t i = threadIdx.x; i < k; i += kFilterThreads) s.candidates[i] = s.winners[i];
  if (threadIdx.x == 0) s.num_candidates = k;
  __syncthreads();
  return last;
}

// A lane's part of a tile.
template <typename T>
struct TileVectors {
  uint4 v[RowTiles<T>::kVectors];

  /// Vector i for an i that only run time knows: registers have no addresses, so they are all looked at.
  __device__ uint4 at(int i) const {
    static_assert(RowTiles<T>::kVectors == 4);
    const auto choose = [&](std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
      return (i & 2) != 0 ? ((i & 1) != 0 ? d : c) : ((i & 1) != 0 ? b : a);
    };
    return {choose(v[0].x, v[1].x, v[2].x, v[3].x), choose(v[0].y, v[1].y, v[2].y, v[3].y),
            choose(v[0].z, v[1].z, v[2].z, v[3].z), choose(v[0].w, v[1].w, v[2].w, v[3].w)};
  }
};

/// A warp's tiles between global memory and registers: asynchronous copies into shared memory, which need neither
/// registers nor L1 while they are on their way. (L1 is what shared memory leaves of it: with 2 x 113 KiB taken, loads
/// into registers had room for 28 KiB a multiprocessor and reached half of the memory's speed.)
template <typename T>
class TileStream {
 public:
  static constexpr int kVectors = RowTiles<T>::kVectors;

  /// Tiles first, first + kFilterWarps, ... below end.
  __device__ TileStream(FilterStorage& s, const RowTiles<T>& tiles, std::uint32_t first, std::uint32_t end)
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

  // Past the row's end: NaN in every format, which reaches no bar. A group is closed in any case, so that groups count
  // tiles.
  __device__ void copy_next(int slot) {
    const std::uint32_t first = next_ * RowTiles<T>::kTileVectors + threadIdx.x % 32;
    const std::uint32_t end = next_ < end_ ? tiles_.num_vectors : 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint32_t vector = first + 32 * i;
      uint4* to = slots_ + (slot * kVectors + i) * 32;
      if (vector < end) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
                     "l"(tiles_.vectors + vector)
                     : "memory");
      } else {
        *to = make_uint4(0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    next_ += kFilterWarps;
  }
};

// Adds the scores of a lane's part of a tile that reach the bar. `vectors`: bit i for a vector that holds such.
template <typename T>
__device__ void keep_hits(const TileVectors<T>& tile, std::uint32_t vectors, std::uint32_t first_position,
                          typename ScoreFormat<T>::Bar bar, std::uint32_t capacity, FilterStorage& s) {
  using Format = ScoreFormat<T>;
#pragma unroll 1
  do {
    const int i = __ffs(static_cast<int>(vectors)) - 1;
    vectors &= vectors - 1;
    const uint4 v = tile.at(i);
    const std::uint32_t hits = Format::hits(v, bar);
    // One atomic a vector that hits; order does not matter, since winners are ordered by position in the end.
    std::uint32_t slot = atomicAdd(&s.num_candidates, static_cast<std::uint32_t>(__popc(hits)));
    const std::uint32_t first = first_position + 32 * Format::kPerVector * i;
#pragma unroll
    for (int j = 0; j < Format::kPerVector; ++j) {
      if ((hits >> j & 1U) != 0) {
        if (slot < capacity) s.candidates[slot] = composite_of(key_of_number(Format::element(v, j)), first + j);
        ++slot;
      }
    }
  } while (vectors != 0);
}

// Scores before the first and after the last whole vector, a thread each.
template <typename T>
__device__ void filter_edge(const RowWindow<T>& window, const RowTiles<T>& tiles, std::uint32_t position, Bar bar,
                            std::uint32_t capacity, FilterStorage& s) {
  const Composite c = window.composite(position);
  const bool equal = key_of(c) == bar.key && bar.key > kNanKey && tiles.tile_of(position) < bar.end_tile;
  if (key_of(c) <= bar.key && !equal) return;
  const std::uint32_t slot = atomicAdd(&s.num_candidates, 1U);
  if (slot < capacity) s.candidates[slot] = c;
}

/// Candidates at which a block stops to keep only the best: early enough for what all warps may still add at ordinary
/// densities, and so that k more fit beside them.
__device__ inline std::uint32_t high_water(std::uint32_t k, std::uint32_t capacity) {
  return min(capacity / 4 * 3, capacity - k);
}

/// Fills s.candidates with what reaches the bar of the scores of tiles [begin, end), and of head and tail where told.
/// s.num_candidates and s.bar are set before (with a barrier) and hold, after the last barrier in here, what was found and
/// how far the bar has risen. If num_candidates > capacity, candidates were lost; else they are at most high_water().
/// @param stream  Started at tile begin + warp: early, while the bar was sought.
template <typename T>
__device__ void filter_tiles(const RowWindow<T>& window, const RowTiles<T>& tiles, TileStream<T>& stream,
                             std::uint32_t begin, std::uint32_t end, bool with_head, bool with_tail, std::uint32_t k,
                             std::uint32_t capacity, FilterStorage& s) {
  using Format = ScoreFormat<T>;
  constexpr int kVectors = RowTiles<T>::kVectors;
  const std::uint32_t most = high_water(k, capacity);
  std::uint32_t tile = begin + threadIdx.x / 32;
  Bar bar = s.bar;
  const volatile std::uint32_t& num_candidates = s.num_candidates;

  if (with_head && threadIdx.x < tiles.head) filter_edge(window, tiles, threadIdx.x, bar, capacity, s);
  if (with_tail && threadIdx.x < tiles.tail) {
    filter_edge(window, tiles, window.count - tiles.tail + threadIdx.x, bar, capacity, s);
  }
  for (;;) {
    const auto at_least = Format::at_least(bar.key), above = Format::above(bar.key);
    while (tile < end && num_candidates <= most) {
      const TileVectors<T> taken = stream.take();
      const auto reached = tile < bar.end_tile ? at_least : above;
      decltype(Format::largest(taken.v[0])) largest[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) largest[i] = Format::largest(taken.v[i]);
      std::uint32_t vectors = 0;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) vectors |= Format::reaches(largest[i], reached) ? 1U << i : 0U;
      stream.refill();
      if (vectors != 0) {
        const std::uint32_t first =
            tiles.position_of_vector(tile * RowTiles<T>::kTileVectors + threadIdx.x % 32);
        keep_hits(taken, vectors, first, reached, capacity, s);
      }
      tile += kFilterWarps;
    }
    TileStream<T>::wait_all();  // the slots' memory may now serve the selection
    const bool all_done = __syncthreads_and(tile >= end) != 0;
    const std::uint32_t found = s.num_candidates;
    __syncthreads();
    if (found > capacity) return;
    if (found > most) {
      bar = bar_of(keep_k_best(s, k), tiles);
      if (threadIdx.x == 0) s.bar = bar;
      __syncthreads();
    }
    if (all_done) return;
    stream.start(tile);
  }
}

}  // namespace tamis::topk_cuda
