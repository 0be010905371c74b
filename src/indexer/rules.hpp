#pragma once

// How a call is cut into work for the CPU's threads. No choice here changes a result (cpu/score.hpp).

#include <algorithm>
#include <cstdint>

namespace tamis::indexer {

/// Columns of one piece of work of index_logits(), and of one worker in a step of a column split: 16 or 4 segments.
inline constexpr std::int64_t kLogitsColumns = 4096;
inline constexpr std::int64_t kSplitColumns = 1024;
/// Such pieces in a step for each worker: with one, a worker that is a little late would hold up all others.
inline constexpr std::int64_t kSplitChunksPerWorker = 4;

/// More workers than this are never taken: num_threads may be any number, and each worker has a share of the workspace.
inline constexpr int kMaxWorkers = 1024;

/// Rows that meet a decoded segment of keys together. Decoding a segment costs about as much as scoring it with four
/// heads of one row, so 32 rows make it vanish even at 8 heads.
inline constexpr std::int64_t kMaxRowBlock = 32;
/// Rows of a block in a column split: their scores of one step wait in the workspace, 16 KiB a row and worker.
inline constexpr std::int64_t kSplitRowBlock = 8;

/// Rows of a block: fewer than kMaxRowBlock where that leaves workers without a block.
constexpr std::int64_t choose_row_block(std::int64_t rows, int workers) {
  return std::clamp<std::int64_t>(rows / (2 * std::int64_t{workers}), 1, kMaxRowBlock);
}

/// How index_topk() spreads work over threads.
enum class IndexTopkSplit : std::uint8_t {
  kRows,     ///< Each worker takes blocks of rows through all their columns: nothing is shared.
  kColumns,  ///< All workers score a step of columns of the same few rows, which then go through the selection.
};

struct IndexTopkRule {
  std::int64_t min_rows_per_worker;
  std::int64_t max_columns;
  IndexTopkSplit split;
  const char* why;
};

// First row that fits wins.
inline constexpr std::int64_t kAnyColumns = INT64_MAX;
inline constexpr IndexTopkRule kIndexTopkRules[] = {
    // rows/worker  columns            split                     why
    {1, kAnyColumns, IndexTopkSplit::kRows, "every worker has rows of its own"},
    {0, 2 * kSplitColumns, IndexTopkSplit::kRows, "too few columns to share"},
    {0, kAnyColumns, IndexTopkSplit::kColumns, "few rows, many columns: workers share each row"},
};

constexpr const IndexTopkRule& choose_index_topk_rule(std::int64_t rows, std::int64_t max_columns, int workers) {
  for (const IndexTopkRule& rule : kIndexTopkRules) {
    const bool enough_rows = workers == 1 || rows >= rule.min_rows_per_worker * workers;
    if (enough_rows && max_columns <= rule.max_columns) return rule;
  }
  return kIndexTopkRules[0];
}
static_assert(choose_index_topk_rule(1, kAnyColumns, 1).split == IndexTopkSplit::kRows);
static_assert(choose_index_topk_rule(1, kAnyColumns, 2).split == IndexTopkSplit::kColumns);
static_assert(choose_index_topk_rule(2, kAnyColumns, 2).split == IndexTopkSplit::kRows);
static_assert(choose_index_topk_rule(1, 2048, 2).split == IndexTopkSplit::kRows);

}  // namespace tamis::indexer
