#pragma once

// Where the rows of an entry are: find_window() by many threads.

#include <cstdint>

#include "compressor/cuda/ring.cuh"
#include "compressor/cuda/step.cuh"

namespace tamis::compressor_cuda {

/// An entry at work, kept in shared memory: registers are short while its rows are pooled.
struct EntryAtWork {
  std::int64_t group, slot;
  int count;  // rows
  bool writes;
};

/// Finds the rows of the entry completed by `token`, by a team. Row k of rows[] is that of position window_begin() + k;
/// null pointers where it is left out. Returns whether some are to be replaced, as replacing[] says. Ends with a sync.
/// @param rows       [max(window(), capacity)] in shared memory; null pointers from the last row up to capacity, too.
/// @param replacing  [window()] in shared memory, or null: token whose row goes where a row of the state is, or -1.
/// @param scratch    [kWarps] in shared memory.
template <typename Threads>
__device__ bool find_rows(const CompressorParams& p, std::int64_t token, const TokenPlace& place, PoolRow* rows,
                          int capacity, std::int32_t* replacing, std::uint32_t* scratch) {
  const std::int64_t group = group_of(p, place.position);
  const int count = rows_of_entry(p, place.position);
  // 1. A row is that of the token so many places in front, where that is ours, else one of the state. What either takes
  //    is read at once.
  unsigned unbroken = static_cast<unsigned>(count);  // so many tokens in a row are ours
  for (int back = Threads::rank(); back < count; back += Threads::kThreads) {
    const std::int64_t i = token - back, position = place.position - back;
    bool ours = i >= place.chunk_begin;
    const std::int64_t position_there = ours ? p.positions[i] : -1;
    const std::int32_t request_there = ours ? p.token_to_request[i] : -1;
    const PoolRow of_state = back > 0 ? state_row(p, place.request, position, group) : PoolRow{};
    ours = ours && position_there == position && request_there == place.request;
    rows[count - 1 - back] = ours ? input_row(p, i, position, group) : of_state;
    if (!ours) unbroken = min(unbroken, static_cast<unsigned>(back));
  }
  for (int k = count + Threads::rank(); k < capacity; k += Threads::kThreads) rows[k] = {};
  unbroken = __reduce_min_sync(~0U, unbroken);
  if constexpr (Threads::kWarps > 1) {
    if (Threads::lane() == 0) scratch[Threads::warp()] = unbroken;
    Threads::sync();
    for (int w = 0; w < Threads::kWarps; ++w) unbroken = min(unbroken, scratch[w]);
  } else {
    Threads::sync();
  }
  // 2. Padding in between: one thread walks as the CPU does.
  if (unbroken < static_cast<unsigned>(count) && token - unbroken >= place.chunk_begin) {
    if (Threads::rank() == 0) {
      find_window(p, token, place, rows);
    }
    Threads::sync();
  }
  if (replacing != nullptr) {
    // In a ring all rows have a block or none, so that rows found are never moved to other places.
    bool some = false;
    for (int k = Threads::rank(); k < count; k += Threads::kThreads) {
      const bool of_state = rows[k].value != nullptr && rows[k].bias == nullptr;
      const std::int64_t position = place.position - (count - 1) + k;
      replacing[k] = of_state ? static_cast<std::int32_t>(find_replacing_token(p, token, place, position)) : -1;
      some = some || replacing[k] >= 0;
    }
    return Threads::any(some);
  }
  return false;
}

/// Finds the entry completed by `token`, and its rows by find_rows(), whose answer it returns. Ends with a sync.
/// @param finishes  Whether this team is going to finish the entry: what that takes is fetched meanwhile.
template <typename Threads>
__device__ bool find_entry(const CompressorParams& p, std::int64_t token, bool finishes, EntryAtWork& now,
                           PoolRow* rows, int capacity, std::int32_t* replacing, std::uint32_t* scratch) {
  const std::int64_t slot = p.kv_slots[token];
  const TokenPlace place = place_token(p, token);
  const std::int64_t group = group_of(p, place.position);
  const bool writes = writes_entry(p, slot, place.position);
  if (Threads::rank() == 0) {
    now = {group, slot, rows_of_entry(p, place.position), writes};
  }
  if (writes && finishes && Threads::warp() == 0) prefetch_factors(p, group);
  const bool may_replace = may_replace_pooled_rows(p, place);
  return find_rows<Threads>(p, token, place, rows, capacity, may_replace ? replacing : nullptr, scratch);
}

}  // namespace tamis::compressor_cuda
