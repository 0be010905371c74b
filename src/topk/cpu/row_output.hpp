#pragma once

// How one row's winners become numbers in the caller's memory: mapping, index width, the -1 tail. Shared by topk() and
// by operations that select without storing scores.

#include <cstdint>
#include <cstring>
#include <limits>

#include "tamis/tensor.hpp"
#include "tamis/topk.hpp"

namespace tamis::topk_cpu {

/// Element `index` of an array that may start at any byte. Compiles to one load.
template <typename T>
T load_at(const void* base, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void store_at(void* base, std::int64_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

/// Position relative to the row's start -> what the caller reads (TopkMapping), for one row. -1 where there is nothing.
struct RowMap {
  TopkMapping mapping = TopkMapping::kNone;
  const void* pages = nullptr;     // kPageTable: this row's table, [max_pages] int32; null when the row has none
  std::int64_t max_pages = 0;      // kPageTable
  std::int64_t page_size = 1;      // kPageTable, >= 1
  std::int64_t page_start = 0;     // kPageTable: added to the position before translation
  std::int64_t ragged_offset = 0;  // kRagged

  std::int64_t operator()(std::int64_t position) const {
    switch (mapping) {
      case TopkMapping::kNone: return position;
      case TopkMapping::kRagged:
        // Stale offsets of padding rows may be anything.
        if (std::int64_t sum = 0; !__builtin_add_overflow(position, ragged_offset, &sum)) return sum;
        return -1;
      case TopkMapping::kPageTable: break;
    }
    const std::int64_t entry = position + page_start;
    if (pages == nullptr || entry < 0) return -1;
    const std::int64_t page_index = entry / page_size;
    if (page_index >= max_pages) return -1;
    const auto page = static_cast<std::int64_t>(load_at<std::int32_t>(pages, page_index));
    std::int64_t slot = 0;
    if (page < 0 || __builtin_mul_overflow(page, page_size, &slot) ||
        __builtin_add_overflow(slot, entry % page_size, &slot)) {
      return -1;
    }
    return slot;
  }
};

/// Writes out[0, k) as `Index`: the mapped positions, then -1. A number that does not fit `Index` becomes -1.
/// positions = nullptr stands for 0, 1, 2, ...
template <typename Index>
void write_row_indices(void* out, const std::uint32_t* positions, std::int64_t num_winners, std::int64_t k,
                       const RowMap& map) {
  for (std::int64_t i = 0; i < num_winners; ++i) {
    const std::int64_t mapped = map(positions != nullptr ? static_cast<std::int64_t>(positions[i]) : i);
    const bool fits = mapped >= std::numeric_limits<Index>::min() && mapped <= std::numeric_limits<Index>::max();
    store_at<Index>(out, i, fits ? static_cast<Index>(mapped) : Index{-1});
  }
  for (std::int64_t i = num_winners; i < k; ++i) store_at<Index>(out, i, Index{-1});
}

/// The same for an index dtype known at run time: kInt32 or kInt64.
inline void write_row_indices(DType dtype, void* out, const std::uint32_t* positions, std::int64_t num_winners,
                              std::int64_t k, const RowMap& map) {
  if (dtype == DType::kInt64) write_row_indices<std::int64_t>(out, positions, num_winners, k, map);
  else write_row_indices<std::int32_t>(out, positions, num_winners, k, map);
}

}  // namespace tamis::topk_cpu
