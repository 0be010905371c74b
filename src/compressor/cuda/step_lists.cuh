#pragma once

// The device plan: for each ratio of a model, the tokens of a step that complete an entry, ascending, then -1.
// Work split: a block a list; kEach tokens a thread at a time, so that their places are looked up side by side.
// Bound by:   latency: two dependent reads a token, a scan of 256 counts.
// Sync:       within the block.
// Definition: build_list() in compressor/step_lists.cpp.

#include <cstdint>

#include "compressor/params.hpp"
#include "tamis/compressor.hpp"

namespace tamis::compressor_cuda {

struct StepListsConfig {
  static constexpr int kThreads = 1024;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kEach = 8;
};

struct StepListsParams {
  compressor::CompressorParams p;  // without a ratio
  struct List {
    std::int64_t ratio;
    std::int32_t* tokens;
    std::int64_t capacity;
  } lists[kMaxCompressLists];
};

__global__ void __launch_bounds__(StepListsConfig::kThreads)
    step_lists_kernel(const __grid_constant__ StepListsParams params) {
  using Config = StepListsConfig;
  __shared__ std::int32_t counts[Config::kEach * Config::kWarps];  // then: how many stand in front
  __shared__ std::int32_t warp_totals[Config::kEach];
  const StepListsParams::List list = params.lists[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::int64_t written = 0;
  for (std::int64_t base = 0; base < params.p.tokens; base += Config::kThreads * Config::kEach) {
    std::uint32_t hits[Config::kEach];
#pragma unroll
    for (int e = 0; e < Config::kEach; ++e) {
      const std::int64_t token = base + e * Config::kThreads + static_cast<int>(threadIdx.x);
      bool completes = false;
      if (token < params.p.tokens) {
        const compressor::TokenPlace place = place_token(params.p, token);
        completes = place.valid && place.position % list.ratio == list.ratio - 1;
      }
      hits[e] = __ballot_sync(~0U, completes);
      if (lane == 0) counts[e * Config::kWarps + warp] = __popc(hits[e]);
    }
    __syncthreads();
    // Exclusive prefix sums: kEach warps scan the 32 counts of a round each, then add those of the rounds before.
    static_assert(Config::kWarps == 32, "a lane a count");
    std::int32_t before = 0;
    if (warp < Config::kEach) {
      const std::int32_t count = counts[warp * 32 + lane];
      std::int32_t sum = count;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const std::int32_t left = __shfl_up_sync(~0U, sum, step);
        if (lane >= step) sum += left;
      }
      before = sum - count;
      if (lane == 31) warp_totals[warp] = sum;
    }
    __syncthreads();
    if (warp < Config::kEach) {
      for (int e = 0; e < warp; ++e) before += warp_totals[e];
      counts[warp * 32 + lane] = before;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < Config::kEach; ++e) {
      const std::int64_t at = written + counts[e * Config::kWarps + warp] + __popc(hits[e] & ((1U << lane) - 1));
      if ((hits[e] >> lane & 1U) != 0 && at < list.capacity) {
        list.tokens[at] = static_cast<std::int32_t>(base + e * Config::kThreads + static_cast<int>(threadIdx.x));
      }
    }
    for (int e = 0; e < Config::kEach; ++e) written += warp_totals[e];
    __syncthreads();
  }
  for (std::int64_t i = written + threadIdx.x; i < list.capacity; i += Config::kThreads) list.tokens[i] = -1;
}

}  // namespace tamis::compressor_cuda
