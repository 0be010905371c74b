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

/// Dynamic shared memory of the kernels that filter: fixed part, then `capacity` candidates.
struct FilterStorage {
  std::uint32_t bins[kBins];
  union {
    Composite winners[kFilterMaxK];
    struct {
      std::uint32_t bucketed[kFilterMaxK], ordered[kFilterMaxK];
    } positions;
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

// Past the row's end: NaN in every format, which reaches no bar.
template <typename T>
__device__ TileVectors<T> load_tile(const RowTiles<T>& tiles, std::uint32_t tile, std::uint32_t end_tile) {
  TileVectors<T> out;
  const std::uint32_t first = tile * RowTiles<T>::kTileVectors + threadIdx.x % 32;
  const std::uint32_t end = tile < end_tile ? tiles.num_vectors : 0;
#pragma unroll
  for (int i = 0; i < RowTiles<T>::kVectors; ++i) {
    const std::uint32_t vector = first + 32 * i;
    out.v[i] = vector < end ? load_vector(tiles.vectors + vector)
                            : make_uint4(0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU);
  }
  return out;
}

template <typename T>
__device__ void filter_tile(const TileVectors<T>& tile, const RowTiles<T>& tiles, std::uint32_t index,
                            typename ScoreFormat<T>::Bar bar, std::uint32_t capacity, FilterStorage& s) {
  using Format = ScoreFormat<T>;
  constexpr int kVectors = RowTiles<T>::kVectors;
  decltype(Format::largest(tile.v[0])) largest[kVectors], of_all = Format::largest(tile.v[0]);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    largest[i] = Format::largest(tile.v[i]);
    of_all = Format::larger(of_all, largest[i]);
  }
  if (!Format::reaches(of_all, bar)) return;

  std::uint32_t vectors = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) vectors |= Format::reaches(largest[i], bar) ? 1U << i : 0U;
#pragma unroll 1
  do {
    const int i = __ffs(static_cast<int>(vectors)) - 1;
    vectors &= vectors - 1;
    const uint4 v = tile.at(i);
    const std::uint32_t hits = Format::hits(v, bar);
    // One atomic a vector that hits; order does not matter, since winners are ordered by position in the end.
    std::uint32_t slot = atomicAdd(&s.num_candidates, static_cast<std::uint32_t>(__popc(hits)));
    const std::uint32_t first = tiles.position_of_vector(index * RowTiles<T>::kTileVectors + threadIdx.x % 32 + 32 * i);
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

/// Fills s.candidates with what reaches the bar of the scores of tiles [begin, end), and of head and tail where told.
/// s.num_candidates and s.bar are set before (with a barrier) and hold, after the last barrier in here, what was found
/// and how far the bar has risen. If num_candidates > capacity, candidates were lost.
/// @param a, b  The first two tiles of this warp, begin + warp and one stride on: loaded early, while the bar was
/// sought.
template <typename T>
__device__ void filter_tiles(const RowWindow<T>& window, const RowTiles<T>& tiles, std::uint32_t begin,
                             std::uint32_t end, bool with_head, bool with_tail, TileVectors<T> a, TileVectors<T> b,
                             std::uint32_t k, std::uint32_t capacity, FilterStorage& s) {
  using Format = ScoreFormat<T>;
  // Stops early enough for what all warps may still add at ordinary densities.
  const std::uint32_t high_water = capacity - min(capacity / 4, (capacity - k) / 2);
  std::uint32_t tile = begin + threadIdx.x / 32;
  Bar bar = s.bar;
  const volatile std::uint32_t& num_candidates = s.num_candidates;

  if (with_head && threadIdx.x < tiles.head) filter_edge(window, tiles, threadIdx.x, bar, capacity, s);
  if (with_tail && threadIdx.x < tiles.tail) {
    filter_edge(window, tiles, window.count - tiles.tail + threadIdx.x, bar, capacity, s);
  }
  for (;;) {
    const auto at_least = Format::at_least(bar.key), above = Format::above(bar.key);
    // Two tiles a turn, so that one is on its way while the other is looked at.
    while (tile < end && num_candidates <= high_water) {
      filter_tile(a, tiles, tile, tile < bar.end_tile ? at_least : above, capacity, s);
      a = load_tile(tiles, tile + 2 * kFilterWarps, end);
      filter_tile(b, tiles, tile + kFilterWarps, tile + kFilterWarps < bar.end_tile ? at_least : above, capacity, s);
      b = load_tile(tiles, tile + 3 * kFilterWarps, end);
      tile += 2 * kFilterWarps;
    }
    const bool all_done = __syncthreads_and(tile >= end) != 0;
    const std::uint32_t found = s.num_candidates;
    __syncthreads();
    if (found > capacity) return;
    if (found > high_water) {
      bar = bar_of(keep_k_best(s, k), tiles);
      if (threadIdx.x == 0) s.bar = bar;
      __syncthreads();
    }
    if (all_done) return;
    a = load_tile(tiles, tile, end);
    b = load_tile(tiles, tile + kFilterWarps, end);
  }
}

}  // namespace tamis::topk_cuda
