#pragma once

// Algorithms `stream` (one block a row) and `cluster` (a thread-block cluster of 2 to 16 blocks a row).
//   Every block: a bar from a sample of the whole row (the same in all blocks, so they need not talk), one pass over
//   its slice of the row, candidates in its shared memory. The first block then reads the others' candidates through
//   distributed shared memory, selects and writes.
// Work split: slices of whole tiles. Rows of at most `capacity` scores are done by the first block alone.
// Bound by:   reading the scores once.
// Sync:       blocks of a row share a cluster, so the hardware runs them together; rows share nothing.
// Definition: topk/reference.hpp.   Why this way: docs/design/2026-12-topk-cuda.md.

#include <cooperative_groups.h>

#include <cstdint>

#include "topk/cuda/finish_row.cuh"

namespace tamis::topk_cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TAMIS_TOPK_CLUSTERS 1
#else
#define TAMIS_TOPK_CLUSTERS 0
#endif

#if TAMIS_TOPK_CLUSTERS
// Adds the candidates of the cluster's other blocks to those of the first. Called by all blocks, after filter_tiles();
// another cluster barrier must follow in the others, so that they stay while the first block reads.
__device__ inline void gather_candidates(std::uint32_t k, std::uint32_t capacity, std::uint32_t rank,
                                         std::uint32_t num_blocks, FilterStorage& s) {
  const auto cluster = cooperative_groups::this_cluster();
  cluster.barrier_wait();  // all blocks have started
  // Counts travel before the barrier, so that the first block need not ask for them.
  if (threadIdx.x == 0) cluster.map_shared_rank(&s, 0)->reports[rank] = {s.num_candidates, s.bar.key};
  cluster.sync();
  if (rank == 0) {
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const BlockReport report = lane < num_blocks ? s.reports[lane] : BlockReport{0, 0};
    const std::uint32_t count = report.num_candidates;
    std::uint32_t bar_key = __reduce_max_sync(kAllLanes, report.bar_key);
    const bool lost = __any_sync(kAllLanes, count > capacity) != 0;
    const std::uint32_t total = __reduce_add_sync(kAllLanes, count);
    if (lost || total <= capacity) {
      // Warp w copies from block w.
      const std::uint32_t before = __reduce_add_sync(kAllLanes, lane < warp ? count : 0);
      const std::uint32_t mine = __shfl_sync(kAllLanes, count, warp);
      if (!lost && warp > 0 && warp < num_blocks) {
        const Candidate* from = cluster.map_shared_rank(&s, warp)->candidates;
#pragma unroll 4
        for (std::uint32_t i = lane; i < mine; i += 32) s.candidates[before + i] = from[i];
      }
      if (threadIdx.x == 0) {
        s.num_candidates = lost ? capacity + 1 : total;
        s.bar.key = bar_key;
      }
      __syncthreads();
    } else {
      // They do not fit at once: block by block, keeping the k best whenever the next one's would not fit. A block
      // leaves at most high_water(), capacity - k or less.
      for (std::uint32_t b = 1; b < num_blocks; ++b) {
        const std::uint32_t more = __shfl_sync(kAllLanes, count, b), have = s.num_candidates;
        __syncthreads();
        if (have + more > capacity) bar_key = max(bar_key, key_of(keep_k_best(s, k)));
        const std::uint32_t from = s.num_candidates;
        const FilterStorage* other = cluster.map_shared_rank(&s, b);
        for (std::uint32_t i = threadIdx.x; i < more; i += kFilterThreads)
          s.candidates[from + i] = other->candidates[i];
        __syncthreads();
        if (threadIdx.x == 0) s.num_candidates = from + more;
        __syncthreads();
      }
      if (threadIdx.x == 0) s.bar.key = bar_key;
      __syncthreads();
    }
  }
  cluster.barrier_arrive();
}
#endif

template <typename T>
__global__ void __launch_bounds__(kFilterThreads, 2)
    stream_kernel(const __grid_constant__ TopkParams p, std::uint32_t capacity, std::uint32_t num_blocks) {
  extern __shared__ uint4 dynamic_shared[];
  FilterStorage& s = *reinterpret_cast<FilterStorage*>(dynamic_shared);
  const std::int64_t row = blockIdx.x / num_blocks;
  const std::uint32_t rank = blockIdx.x % num_blocks;
  const RowWindow<T> window = row_window<T>(p, row);
  const auto k = static_cast<std::uint32_t>(p.k);
  const bool clustered = TAMIS_TOPK_CLUSTERS != 0 && num_blocks > 1 && window.count > capacity;
#if TAMIS_TOPK_CLUSTERS
  // Waited for before another block's memory is written. Nothing was written yet, so nothing has to be ordered.
  if (clustered) asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif

  // 1. Short windows. All blocks of a cluster agree, so none waits for another.
  if (window.count <= capacity) {
    if (rank != 0) return;
    if (window.count <= k && p.order != TopkOrder::kByValue && p.certificate == nullptr) {
      write_whole_window<T, kFilterThreads>(p, row, window);
      return;
    }
    take_whole_window(window, s);
  } else {
    // 2. My slice, and its first tiles on their way while the bar is sought.
    const RowTiles<T> tiles(window);
    const Sample<T> sample(tiles, window.count, k);
    const auto slice = [&](std::uint32_t of) {
      return static_cast<std::uint32_t>(static_cast<std::uint64_t>(tiles.num_tiles) * of / num_blocks);
    };
    const std::uint32_t begin = slice(rank), end = slice(rank + 1), mine = begin + threadIdx.x / 32;
    TileStream<T> tile_stream(s, tiles, mine, end);
    tile_stream.start(mine);
    if (threadIdx.x == 0) s.num_candidates = 0;
    const Bar bar = sample.bar(s.sample);
    if (threadIdx.x == 0) s.bar = bar;
    __syncthreads();

    // 3. One pass.
    filter_tiles(window, tiles, tile_stream, begin, end, rank == 0, rank + 1 == num_blocks, k, capacity, s);

    // 4. The first block finishes.
#if TAMIS_TOPK_CLUSTERS
    if (clustered) gather_candidates(k, capacity, rank, num_blocks, s);
    if (clustered && rank != 0) cooperative_groups::this_cluster().barrier_wait();  // the first block has read
#endif
    if (rank != 0) return;
  }
  finish_row(p, row, window, capacity, s);
#if TAMIS_TOPK_CLUSTERS
  if (clustered) cooperative_groups::this_cluster().barrier_wait();
#endif
}

}  // namespace tamis::topk_cuda
