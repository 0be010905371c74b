// Pool, finish, save, each with a grid over all tokens whose blocks leave where their token completes nothing.
// Work split: save a warp for 256 channels of a token; pool a block for 128 channels of a token; finish a block a
// token. Bound by:   reading the rows once, for short steps by the launches. Sync:       between launches.

#include "bench/cuda/three_launches.hpp"
#include "compressor/cuda/any_window.cuh"
#include "compressor/rules.hpp"
#include "core/cuda/launch.hpp"

namespace tamis::bench {
namespace {

using compressor_cuda::StepParams;
using compressor_cuda::TokenPlace;

constexpr int kThreads = 128;
using Threads = compressor_cuda::Team<kThreads>;

__global__ void __launch_bounds__(kThreads) save_kernel(const __grid_constant__ StepParams step) {
  compressor_cuda::save_rows<float, float, true>(step, blockIdx.x, gridDim.x);
}

// step.entries: [tokens, d].
__global__ void __launch_bounds__(kThreads) pool_kernel(const __grid_constant__ StepParams step, int tiles) {
  __shared__ __align__(8) unsigned char storage[compressor::kTallRows * sizeof(compressor_cuda::PoolRow)];
  auto* rows = reinterpret_cast<compressor_cuda::PoolRow*>(storage);
  const std::int64_t token = blockIdx.x / tiles;
  const TokenPlace place = place_token(step.p, token);
  if (!place.valid || !completes_entry(step.p, place.position) ||
      !writes_entry(step.p, step.p.kv_slots[token], place.position))
    return;
  __shared__ std::uint32_t scratch[Threads::kWarps];
  compressor_cuda::find_rows<Threads>(step.p, token, place, rows, 0, nullptr, scratch);
  const int count = rows_of_entry(step.p, place.position);
  const std::int64_t c = blockIdx.x % tiles * kThreads + threadIdx.x;
  if (c < step.p.head_dim) {
    step.entries[token * step.p.head_dim + c] = compressor_cuda::pool_channel<float, float>(rows, count, c);
  }
}

__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ StepParams step) {
  const std::int64_t token = blockIdx.x;
  const TokenPlace place = place_token(step.p, token);
  if (!place.valid || !completes_entry(step.p, place.position) ||
      !writes_entry(step.p, step.p.kv_slots[token], place.position))
    return;
  compressor_cuda::finish_entry<Threads>(step, group_of(step.p, place.position), step.p.kv_slots[token],
                                         step.entries + token * step.p.head_dim);
}

}  // namespace

std::size_t three_launches_bytes(const CompressArgs& args) {
  return static_cast<std::size_t>(args.kv.size(0) * args.cache.head_dim) * sizeof(float);
}

void enqueue_three_launches(const CompressArgs& args, void* pooled, cudaStream_t stream) {
  StepParams step;
  step.p = compressor::checked_params(args);
  step.pool = false;  // whoever saves saves all: the launches are in order
  step.entries = static_cast<float*>(pooled);
  step.hadamard_factor = compressor_cuda::hadamard_factor(step.p.head_dim);
  const std::int64_t tokens = step.p.tokens;
  if (args.plan != CompressPlan::kNone) {
    const int tiles = static_cast<int>((step.p.head_dim + kThreads - 1) / kThreads);
    core::launch({"pool_kernel", tokens * tiles, kThreads, 0, stream}, pool_kernel, step, tiles);
    core::launch({"finish_kernel", tokens, kThreads, 0, stream}, finish_kernel, step);
  }
  // Last, since a long chunk goes around a ring: rows of this step are read from the inputs.
  const std::int64_t warps = tokens * step.p.coff * compressor_cuda::save_parts(step.p.head_dim);
  core::launch({"save_kernel", (warps + kThreads / 32 - 1) / (kThreads / 32), kThreads, 0, stream}, save_kernel, step);
}

}  // namespace tamis::bench
