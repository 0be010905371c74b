#pragma once

// Where the rows of an entry are: find_window() by a warp.

#include <cstdint>

#include "compressor/cuda/ring.cuh"
#include "compressor/cuda/step.cuh"

namespace tamis::compressor_cuda {

/// Finds the rows of the entry completed by `token`. Row k of rows[] is that of position window_begin() + k; null
/// pointers where it is left out. Returns how many there are. Called by a whole warp, in shared memory; the caller
/// syncs.
/// @param replacing  [rows] or null: token whose row goes where a row of the state is, -1 if there is none.
__device__ inline int find_rows(const CompressorParams& p, std::int64_t token, const TokenPlace& place, PoolRow* rows,
                                std::int32_t* replacing) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t group = group_of(p, place.position);
  const int count = static_cast<int>(place.position - window_begin(p, place.position)) + 1;
  // 1. Tokens of this step, `back` tokens and positions before this one: how far does that go?
  int unbroken = count;
  for (int back = lane; back < count; back += 32) {
    const std::int64_t i = token - back;
    const bool ours =
        i >= place.chunk_begin && is_token_of(p, i, place.request) && p.positions[i] == place.position - back;
    if (!ours) {
      unbroken = back;
      break;
    }
  }
  unbroken = static_cast<int>(__reduce_min_sync(~0U, static_cast<unsigned>(unbroken)));
  const bool padded = unbroken < count && token - unbroken >= place.chunk_begin;
  // 2. With padding in between, one lane walks as the CPU does.
  if (padded) {
    if (lane == 0) {
      const compressor::PoolWindow found = find_window(p, token, place, rows);
      for (std::int64_t k = 0; k < count - found.all_rows; ++k) rows[k] = {};
    }
    __syncwarp();
  }
  for (int back = lane; back < count; back += 32) {
    const int k = count - 1 - back;
    const std::int64_t position = place.position - back;
    if (!padded) {
      rows[k] =
          back < unbroken ? input_row(p, token - back, position, group) : state_row(p, place.request, position, group);
    }
    if (replacing != nullptr) {
      // In a ring all rows have a block or none, so that rows found are never moved to other places.
      const bool of_state = rows[k].value != nullptr && rows[k].bias == nullptr;
      replacing[k] = of_state ? static_cast<std::int32_t>(find_replacing_token(p, token, place, position)) : -1;
    }
  }
  return count;
}

}  // namespace tamis::compressor_cuda
