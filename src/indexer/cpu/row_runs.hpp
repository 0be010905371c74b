#pragma once

// How rows meet keys: consecutive rows of one page table share each decoded segment.

#include <algorithm>
#include <cstdint>

#include "indexer/cpu/score.hpp"

namespace tamis::indexer {

/// Scores rows [row_begin, row_begin + count) against their windows, windows[i] being that of row row_begin + i (the
/// caller may have clipped it). Calls sink(row, column, n, scores) for pieces of at most kSegmentKeys columns that do
/// not cross a multiple of kSegmentKeys; the pieces of a row come in ascending order and cover its window once.
template <typename Sink>
void score_rows(const IndexScoreParams& p, std::int64_t row_begin, const Window* windows, std::int64_t count,
                ScoreScratch& scratch, const Sink& sink) {
  alignas(64) float scores[kSegmentKeys];
  begin_scoring(scratch);
  for (std::int64_t first = 0; first < count;) {
    const std::int64_t table = row_table(p, row_begin + first);
    std::int64_t last = first;
    Window all{p.max_columns, 0};
    for (; last < count && row_table(p, row_begin + last) == table; ++last) {
      if (windows[last].size() <= 0) continue;
      all.start = std::min(all.start, windows[last].start);
      all.end = std::max(all.end, windows[last].end);
    }
    for (std::int64_t segment = all.start / kSegmentKeys * kSegmentKeys; segment < all.end; segment += kSegmentKeys) {
      const auto clip = [&](std::int64_t i) {
        return Window{std::max(segment, windows[i].start), std::min(segment + kSegmentKeys, windows[i].end)};
      };
      // Windows of one table may leave gaps (gathered keys of several requests): decode what some row looks at.
      Window seen{segment + kSegmentKeys, segment};
      for (std::int64_t i = first; i < last; ++i) {
        const Window w = clip(i);
        if (w.size() <= 0) continue;
        seen.start = std::min(seen.start, w.start);
        seen.end = std::max(seen.end, w.end);
      }
      if (seen.size() <= 0) continue;
      decode_segment(p, table, segment, seen.start, seen.end, scratch);
      for (std::int64_t i = first; i < last; ++i) {
        const Window w = clip(i);
        if (w.size() <= 0) continue;
        score_segment(p, row_begin + i, segment, w.start, w.end, scratch, scores);
        sink(row_begin + i, w.start, w.size(), scores + (w.start - segment));
      }
    }
    first = last;
  }
}

}  // namespace tamis::indexer
