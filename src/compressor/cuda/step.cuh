#pragma once

// Which tokens a team pools.

#include <cstdint>

#include "compressor/cuda/step_params.hpp"
#include "compressor/cuda/team.cuh"
#include "compressor/window.hpp"

namespace tamis::compressor_cuda {

using compressor::CompressorParams;
using compressor::PoolRow;
using compressor::TokenPlace;

/// Whether a chunk may have rows whose place in the ring holds rows that its entries pool: see ring.cuh.
__device__ inline bool may_replace_pooled_rows(const CompressorParams& p, const TokenPlace& place) {
  return p.state_ring != nullptr && place.chunk_end - place.chunk_begin > p.block_size - p.window();
}

/// Whether a team has anything to do for a token: it completes an entry, and that is written or decides about rows of
/// the ring.
__device__ inline bool is_pooled(const CompressorParams& p, std::int64_t token) {
  const std::int64_t slot = p.kv_slots[token];  // beside the reads of place_token(), not behind them
  const TokenPlace place = place_token(p, token);
  return place.valid && completes_entry(p, place.position) &&
         (writes_entry(p, slot, place.position) || may_replace_pooled_rows(p, place));
}

/// Tokens of one team, found by all of its threads at once: of the list or of the whole step, every num_groups-th.
/// Calls body(token), by the whole team, for each that is_pooled(). Between two calls there is a sync of the team.
/// @param found  [kWarps] in shared memory.
template <typename Threads, typename Body>
__device__ void for_pooled_tokens(const CompressorParams& p, std::int64_t group, std::int64_t num_groups,
                                  std::uint32_t* found, const Body& body) {
  const std::int64_t count = p.listed != nullptr ? p.num_listed : p.tokens;
  const auto token_at = [&](std::int64_t i) -> std::int64_t {
    if (p.listed == nullptr) return i;
    return is_listed(p, i) ? p.listed[i] : -1;
  };
  for (std::int64_t base = group; base < count; base += Threads::kThreads * num_groups) {
    const std::int64_t mine = base + Threads::rank() * num_groups;
    const std::int64_t token = mine < count ? token_at(mine) : -1;
    const std::uint32_t hits = __ballot_sync(~0U, token >= 0 && is_pooled(p, token));
    if (Threads::lane() == 0) found[Threads::warp()] = hits;
    Threads::sync();
    for (int w = 0; w < Threads::kWarps; ++w) {
      for (std::uint32_t left = found[w]; left != 0; left &= left - 1) {
        body(token_at(base + (w * 32 + __ffs(static_cast<int>(left)) - 1) * num_groups));
        Threads::sync();
      }
    }
    Threads::sync();  // found[] is written anew
  }
}

}  // namespace tamis::compressor_cuda
