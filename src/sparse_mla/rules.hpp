#pragma once

// How a call is cut into independent pieces. A head's result never depends on it, so this table is about speed only.

#include <algorithm>
#include <cstdint>

namespace tamis::sparse_mla_detail {

inline constexpr std::int64_t kAllHeads = INT64_MAX;

struct SplitRule {
  std::int64_t min_rows_per_worker;
  std::int64_t heads_per_piece;
  const char* why;
};

// First row that fits wins. Each piece decodes the row's keys for itself, which costs about as much as attending with 4
// heads (85 ns against 20 ns a head and fp8 key on a Zen 4 core): pieces of 16 heads lose a fifth, pieces of 32 a
// tenth.
inline constexpr SplitRule kSplitRules[] = {
    {4, kAllHeads, "rows alone keep the workers busy, and a row's keys are decoded once"},
    {1, 32, "few rows a worker: halves or quarters of a row even out the end"},
    {0, 16, "fewer rows than workers: heads of one row are shared out"},
};

/// The rule for so many rows. One worker always takes all heads: the first row of the table.
constexpr const SplitRule& choose_split(std::int64_t rows, int workers) {
  if (workers <= 1) return kSplitRules[0];
  for (const SplitRule& rule : kSplitRules) {
    if (rows >= rule.min_rows_per_worker * workers) return rule;
  }
  return kSplitRules[0];
}
static_assert(choose_split(0, 8).heads_per_piece == 16);  // something always fits
static_assert(choose_split(8, 8).heads_per_piece == 32);
static_assert(choose_split(32, 8).heads_per_piece == kAllHeads);

struct Split {
  std::int64_t heads_per_piece;
  std::int64_t pieces_per_row;
};

constexpr Split split_row(std::int64_t rows, std::int64_t num_heads, int workers) {
  const std::int64_t heads =
      std::min(std::max<std::int64_t>(num_heads, 1), choose_split(rows, workers).heads_per_piece);
  return {heads, (num_heads + heads - 1) / heads};
}

}  // namespace tamis::sparse_mla_detail
