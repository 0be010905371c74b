// Reads its input and does nothing with it: the least time that a pass over the input takes on this GPU.
// Work split: tiles of kThreads * kVectors neighbouring vectors; a block takes every gridDim.x-th tile.
// Bound by:   reading.
// Sync:       none; threads share nothing.

#include <algorithm>
#include <limits>

#include "bench/cuda/read_floor.hpp"

namespace tamis::bench {
namespace {

// A fold of the input that hardly ever comes up. The store that depends on it keeps the loads alive.
constexpr std::uint32_t kImprobable = 0x9E3779B9U;

// Read once, so no place in L1 is needed.
__device__ uint4 load_vector(const uint4* from) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from));
  return v;
}

__device__ std::uint32_t fold(const uint4& v) { return v.x ^ v.y ^ v.z ^ v.w; }

template <int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads)
    read_floor_kernel(const uint4* __restrict__ data, std::int64_t num_vectors, std::uint32_t* sink) {
  constexpr std::int64_t kTile = std::int64_t{kThreads} * kVectors;
  std::uint32_t folded = 0;
  for (std::int64_t tile = blockIdx.x * kTile; tile < num_vectors; tile += gridDim.x * kTile) {
    uint4 v[kVectors];  // all in flight before the first is used
    if (tile + kTile <= num_vectors) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) v[i] = load_vector(data + tile + i * kThreads + threadIdx.x);
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const std::int64_t at = tile + i * kThreads + threadIdx.x;
        v[i] = at < num_vectors ? load_vector(data + at) : uint4{0, 0, 0, 0};
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) folded ^= fold(v[i]);
  }
  if (folded == kImprobable) *sink = folded;
}

struct ReadGrid {
  void (*kernel)(const uint4*, std::int64_t, std::uint32_t*);
  int threads, vectors;
  int blocks_per_sm;  // 0: a block for every tile
};

template <int kThreads, int kVectors>
constexpr ReadGrid read_grid(int blocks_per_sm) {
  return {read_floor_kernel<kThreads, kVectors>, kThreads, kVectors, blocks_per_sm};
}

// Long inputs want blocks that stay; short ones small tiles, so that all multiprocessors have some. Eight vectors take
// 49 registers a thread, so 1024 threads are resident; four leave room for 2048.
const ReadGrid kReadGrids[] = {
    read_grid<1024, 8>(1), read_grid<512, 8>(1), read_grid<512, 8>(2), read_grid<512, 4>(2), read_grid<512, 4>(4),
    read_grid<1024, 8>(0), read_grid<512, 8>(0), read_grid<512, 4>(0), read_grid<512, 2>(0), read_grid<512, 1>(0),
    read_grid<256, 2>(0),  read_grid<256, 1>(0), read_grid<128, 1>(0),
};
// Starting blocks for every tile of a long input only costs time.
constexpr std::int64_t kMostTilesPerSm = 64;

// Blocks of a grid over so many vectors; 0 if it need not be tried.
std::int64_t blocks_of(const ReadGrid& grid, std::int64_t num_vectors, int num_sms) {
  const std::int64_t tile = std::int64_t{grid.threads} * grid.vectors;
  const std::int64_t num_tiles = (num_vectors + tile - 1) / tile;
  const std::int64_t resident = std::int64_t{grid.blocks_per_sm} * num_sms;
  if (resident == 0) return num_tiles <= kMostTilesPerSm * num_sms ? num_tiles : 0;
  return num_tiles > resident ? resident : 0;  // with fewer tiles it is the grid of a block for every tile
}

}  // namespace

double read_floor_us(const GpuTimer& timer, const GpuCopies& copies, int num_sms) {
  const std::int64_t num_vectors = (copies.input_bytes + 15) / 16;
  GpuBytes sink(sizeof(std::uint32_t));
  auto* sink_data = reinterpret_cast<std::uint32_t*>(sink.data());
  double best_us = std::numeric_limits<double>::infinity();
  for (const ReadGrid& grid : kReadGrids) {
    const std::int64_t blocks = blocks_of(grid, num_vectors, num_sms);
    if (blocks == 0) continue;
    const GpuWork read = [&](std::int64_t copy, cudaStream_t stream) {
      const auto* data = reinterpret_cast<const uint4*>(copies.data + copy * copies.stride_bytes);
      grid.kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(grid.threads), 0, stream>>>(data, num_vectors,
                                                                                                     sink_data);
      TAMIS_CUDA_CHECK(cudaGetLastError());
    };
    best_us = std::min(best_us, timer.time(read, copies.count).us);
  }
  return best_us;
}

}  // namespace tamis::bench
