#pragma once

// What backends get: checked arguments as plain pointers and strides, and the two questions that every backend asks of
// them (the window of a row, the page table of a row).

#include <algorithm>
#include <cstdint>

#include "ops/layouts.hpp"
#include "tamis/indexer.hpp"

namespace tamis::indexer {

inline constexpr std::int64_t kHeadDim = ops::kIndexerHeadDim;  // 128

/// What a score needs (IndexScoreArgs), checked. Strides are in elements of the array they belong to.
struct IndexScoreParams {
  IndexFormat format = IndexFormat::kFp8;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t max_columns = 0;

  const std::uint8_t* q = nullptr;
  std::int64_t q_row_bytes = 0;
  std::int64_t q_head_bytes = 0;
  const std::uint8_t* q_scale = nullptr;  // kMxfp4 only
  std::int64_t q_scale_row_stride = 0;
  std::int64_t q_scale_head_stride = 0;
  const float* weights = nullptr;
  std::int64_t weights_row_stride = 0;

  ConstPagedCache keys;
  bool paged = false;  // false: gathered keys, column j is slot j; max_pages is then the number of pages
  const std::int32_t* page_table = nullptr;
  std::int64_t num_tables = 0;
  std::int64_t max_pages = 0;
  std::int64_t page_table_stride = 0;
  const std::int32_t* row_to_table = nullptr;
  const std::int32_t* row_starts = nullptr;
  const std::int32_t* row_ends = nullptr;
};

/// Columns [start, end) of a row.
struct Window {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - start; }
};

/// The row's window, clamped: starts and ends come from outside and may be stale, negative or huge.
inline Window row_window(const IndexScoreParams& p, std::int64_t row) {
  const std::int64_t start =
      p.row_starts == nullptr ? 0 : std::clamp<std::int64_t>(p.row_starts[row], 0, p.max_columns);
  return {start, std::clamp<std::int64_t>(p.row_ends[row], start, p.max_columns)};
}

/// Number of the row's page table, -1 where it has none. Rows of gathered keys share "table" 0.
inline std::int64_t row_table(const IndexScoreParams& p, std::int64_t row) {
  if (!p.paged) return 0;
  const std::int64_t table = p.row_to_table == nullptr ? row : p.row_to_table[row];
  return table >= 0 && table < p.num_tables ? table : -1;
}

/// Page of the pool that holds entries [index * page_size, ...) of a table, -1 where the pool has no such page: table,
/// index or page number out of range. Gathered keys lie in the pages 0, 1, ... themselves.
inline std::int64_t table_page(const IndexScoreParams& p, std::int64_t table, std::int64_t index) {
  if (table < 0 || index < 0 || index >= p.max_pages) return -1;
  const std::int64_t page = p.paged ? p.page_table[table * p.page_table_stride + index] : index;
  return page >= 0 && page < p.keys.num_pages ? page : -1;
}

}  // namespace tamis::indexer
