#pragma once

// One row of a call as a block sees it: its window, clamped, and how the window splits into aligned vectors and tiles.

#include <cstdint>

#include "topk/cuda/keys.cuh"
#include "topk/params.hpp"

namespace tamis::topk_cuda {

template <typename T>
struct RowWindow {
  const T* scores;      // first score of the window
  std::uint32_t count;  // scores in the window

  __device__ float score(std::uint32_t position) const { return ScoreFormat<T>::widen(scores[position]); }
  __device__ std::uint32_t key(std::uint32_t position) const { return key_of(score(position)); }
  __device__ Composite composite(std::uint32_t position) const { return composite_of(key(position), position); }
};

// Lengths come from outside and may be stale or negative: every block of a row clamps them alike.
template <typename T>
__device__ RowWindow<T> row_window(const TopkParams& p, std::int64_t row) {
  const auto bound = [&](const void* array, std::int64_t absent) -> std::int64_t {
    return array != nullptr ? static_cast<const std::int32_t*>(array)[row] : absent;
  };
  const std::int64_t start = min(max(bound(p.row_starts, 0), std::int64_t{0}), p.width);
  const std::int64_t end = min(max(bound(p.row_ends, p.width), start), p.width);
  return {static_cast<const T*>(p.scores) + row * p.row_stride + start, static_cast<std::uint32_t>(end - start)};
}

/// A window as: `head` scores up to the first 16-byte boundary, `num_vectors` whole vectors, `tail` scores.
/// A tile is what a warp takes at once: kVectors vectors a lane.
template <typename T>
struct RowTiles {
  static constexpr int kVectors = 4;
  static constexpr std::uint32_t kTileVectors = 32 * kVectors;
  static constexpr std::uint32_t kTileScores = kTileVectors * ScoreFormat<T>::kPerVector;

  const uint4* vectors;
  std::uint32_t head, num_vectors, tail, num_tiles;

  __device__ explicit RowTiles(const RowWindow<T>& window) {
    const auto address = reinterpret_cast<std::uintptr_t>(window.scores);
    head = min(window.count, static_cast<std::uint32_t>((16 - address % 16) % 16 / sizeof(T)));
    vectors = reinterpret_cast<const uint4*>(window.scores + head);
    num_vectors = (window.count - head) / ScoreFormat<T>::kPerVector;
    tail = window.count - head - num_vectors * ScoreFormat<T>::kPerVector;
    num_tiles = (num_vectors + kTileVectors - 1) / kTileVectors;
  }
  /// Tile of a position; the head counts as tile 0. The tail may lie one past the last tile.
  __device__ std::uint32_t tile_of(std::uint32_t position) const {
    return position < head ? 0 : (position - head) / kTileScores;
  }
  __device__ std::uint32_t position_of_vector(std::uint32_t vector) const {
    return head + vector * ScoreFormat<T>::kPerVector;
  }
};

// Scores are read once, so they need no place in L1.
__device__ inline uint4 load_vector(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

}  // namespace tamis::topk_cuda
