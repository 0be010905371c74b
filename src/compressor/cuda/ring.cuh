#pragma once

// Rows of a ring that a step both reads and replaces.
//
// A token q of the step is saved to a place of the ring that holds an older position t, the last one below the step's
// first with the same remainder. An entry that the step completes may pool t, from the state. Another block saves q,
// and neither waits for the other, so: whoever pools t saves q, after it has read t. By halves, since half A of a row
// belongs to the next entry and half B to its own. Each side works out from positions alone what the other does. In a
// ring of compress_ring_rows() this concerns only steps with more tokens of a request than the ring has rows beside a
// window.

#include <cstdint>

#include "compressor/cuda/step.cuh"

namespace tamis::compressor_cuda {

/// Position of the request's first real token of the step.
__device__ inline std::int64_t first_position(const CompressorParams& p, const TokenPlace& place) {
  std::int64_t i = place.chunk_begin;
  while (!is_token_of(p, i, place.request)) ++i;  // ends at the token of `place` at the latest
  return p.positions[i];
}

/// Position of the request's last real token of the step.
__device__ inline std::int64_t last_position(const CompressorParams& p, const TokenPlace& place) {
  std::int64_t i = place.chunk_end - 1;
  while (!is_token_of(p, i, place.request)) --i;
  return p.positions[i];
}

/// Whether an entry of this step pools what lies where a half (0: A, or the only one; 1: B) of this token's row goes,
/// and therefore saves it. The token is one that is saved, not replaced by a later one of the step. Only asked
/// where may_replace_pooled_rows().
__device__ inline bool is_saved_by_entry(const CompressorParams& p, const TokenPlace& place, int half) {
  const std::int64_t first = first_position(p, place);
  if (place.position < first) return false;  // positions that do not ascend
  const std::int64_t turns = core::quotient(place.position - first, p.block_size) + 1;
  const std::int64_t replaced = place.position - turns * p.block_size;
  if (replaced < 0) return false;
  // Positions from there to the token that completes the entry that pools it.
  const std::int64_t to_own_end = p.ratio - 1 - core::remainder(replaced, p.ratio);
  const std::int64_t distance = to_own_end + (p.coff == 2 && half == 0 ? p.ratio : 0);
  return distance >= first - replaced && distance <= last_position(p, place) - replaced;
}

/// The token of the step that is to be saved where `position` lies, a row of the state that the entry completed by
/// `token` pools; -1 if there is none.
__device__ inline std::int64_t find_replacing_token(const CompressorParams& p, std::int64_t token,
                                                    const TokenPlace& place, std::int64_t position) {
  const std::int64_t turns = core::quotient(last_position(p, place) - position, p.block_size);
  const std::int64_t wanted = position + turns * p.block_size;
  if (wanted <= place.position) return -1;  // none, or positions that do not ascend
  const auto is_it = [&](std::int64_t i) { return is_token_of(p, i, place.request) && p.positions[i] == wanted; };
  // Without padding in between it is as many tokens as positions further on.
  if (wanted - place.position < place.chunk_end - token && is_it(token + (wanted - place.position))) {
    return token + (wanted - place.position);
  }
  for (std::int64_t i = token + 1; i < place.chunk_end; ++i) {
    if (is_it(i)) return i;
  }
  return -1;
}

}  // namespace tamis::compressor_cuda
