#pragma once

// Which tokens a team pools.

#include <cstdint>

#include "compressor/cuda/step_params.hpp"
#include "compressor/cuda/team.cuh"
#include "compressor/window.hpp"
#include "core/cuda/prefetch.cuh"

namespace tamis::compressor_cuda {

using compressor::CompressorParams;
using compressor::PoolRow;
using compressor::TokenPlace;

/// Whether a chunk may have rows whose place in the ring holds rows that its entries pool: see ring.cuh.
__device__ inline bool may_replace_pooled_rows(const CompressorParams& p, const TokenPlace& place) {
  return p.state_ring != nullptr && place.chunk_end - place.chunk_begin > p.block_size - p.window();
}

/// The first thing a kernel does. It may have been launched while what came before it is still at work
/// (core::Launch::dependent): nothing may be read before this. Whoever is launched so behind it may begin, too; it has
/// to wait in the same way.
__device__ inline void begin_dependent() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// What a block of the grid does: the index among those that pool, or -1 and the index among those that save.
struct BlockRole {
  std::int64_t pools, saves;
};
__device__ inline BlockRole block_role(const StepParams& step) {
  const std::int64_t block = blockIdx.x, after_first = block - step.first_pool_block;
  if (after_first < 0) return {-1, block};
  if (after_first >= step.pool_blocks) return {-1, block - step.pool_blocks};
  return {after_first, -1};
}

/// Starts to fetch what find_rows() reads of the block table.
__device__ inline void prefetch_blocks(const CompressorParams& p, std::int64_t request, std::int64_t position) {
  if (p.state_table == nullptr || request < 0 || request >= p.requests) return;
  const std::int64_t last = core::quotient(position, p.block_size);
  if (last >= p.max_blocks) return;
  const std::int32_t* row = p.state_table + request * p.state_table_stride;
  const std::int64_t first = core::quotient(compressor::window_begin(p, position), p.block_size);
  core::prefetch(row + first);
  core::prefetch(row + last);
}

/// Starts to fetch norm weights and angles, by a warp: into the cache, since registers are short while rows are pooled.
/// @param position  The entry's own.
__device__ inline void prefetch_factors(const CompressorParams& p, std::int64_t position) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kLine = 32, kAngleLines = ops::kRopeDims / kLine;  // floats of 128 bytes
  for (int line = lane - kAngleLines; line * kLine < p.head_dim; line += 32) {
    const float* angles = p.cos_sin + position * p.cos_sin_stride;
    const float* at = line < 0 ? angles + (line + kAngleLines) * kLine : p.norm_weight + line * kLine;
    core::prefetch(at);
  }
}

/// Whether a team has anything to do for a token: it completes an entry, and that is written or decides about rows of
/// the ring.
__device__ inline bool is_pooled(const CompressorParams& p, std::int64_t token) {
  // Read side by side: none of them behind what another one says.
  const std::int64_t slot = p.kv_slots[token], position = p.positions[token];
  const std::int32_t request = p.token_to_request[token];
  if (position < 0 || !completes_entry(p, position)) return false;
  prefetch_blocks(p, request, position);
  const TokenPlace place = place_token(p, token);
  return place.valid && (writes_entry(p, slot, position) || may_replace_pooled_rows(p, place));
}

/// What for_pooled_tokens() keeps in shared memory.
template <typename Threads>
struct PooledTokens {
  std::int64_t tokens[Threads::kThreads];
  int found[Threads::kWarps];
};

/// Tokens of one team, found by all of its threads at once: of the list or of the whole step, every num_groups-th.
/// Calls body(tokens, count), by the whole team, for all that are pooled, up to kBatch of them at a time. Between two
/// calls there is a sync of the team.
template <int kBatch, typename Threads, typename Body>
__device__ void for_pooled_tokens(const CompressorParams& p, std::int64_t group, std::int64_t num_groups,
                                  PooledTokens<Threads>& s, const Body& body) {
  const std::int64_t count = p.listed != nullptr ? p.num_listed : p.tokens;
  const auto token_at = [&](std::int64_t i) -> std::int64_t {
    if (p.listed == nullptr) return i;
    return is_listed(p, i) ? p.listed[i] : -1;
  };
  for (std::int64_t base = group; base < count; base += Threads::kThreads * num_groups) {
    const std::int64_t mine = base + Threads::rank() * num_groups;
    const std::int64_t token = mine < count ? token_at(mine) : -1;
    const bool pooled = token >= 0 && is_pooled(p, token);
    const std::uint32_t hits = __ballot_sync(~0U, pooled);
    if (Threads::lane() == 0) s.found[Threads::warp()] = __popc(hits);
    Threads::sync();
    int before = __popc(hits & ((1U << Threads::lane()) - 1)), all = 0;
    for (int w = 0; w < Threads::kWarps; ++w) {
      if (w < Threads::warp()) before += s.found[w];
      all += s.found[w];
    }
    if (pooled) s.tokens[before] = token;
    Threads::sync();
    for (int first = 0; first < all; first += kBatch) {
      body(s.tokens + first, min(kBatch, all - first));
      Threads::sync();
    }
  }
}

}  // namespace tamis::compressor_cuda
