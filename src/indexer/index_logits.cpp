#include <algorithm>
#include <cstring>
#include <limits>

#include "core/float_formats.hpp"
#include "core/parallel.hpp"
#include "core/tensor_check.hpp"
#include "indexer/cpu/row_runs.hpp"
#include "indexer/cpu/score.hpp"
#include "indexer/rules.hpp"
#include "indexer/score_args.hpp"
#include "tamis/indexer.hpp"

namespace tamis {
namespace {

using indexer::Window;

struct LogitsOut {
  std::uint8_t* data;
  std::int64_t row_bytes;
  bool bf16;

  void store(std::int64_t row, std::int64_t column, std::int64_t n, const float* scores) const {
    std::uint8_t* out = data + row * row_bytes;
    if (!bf16) {
      std::memcpy(out + 4 * column, scores, static_cast<std::size_t>(4 * n));
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint16_t bits = core::float_to_bf16(scores[i]);
      std::memcpy(out + 2 * (column + i), &bits, sizeof(bits));
    }
  }

  // -inf in columns [begin, end).
  void clean(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    constexpr float kInf = -std::numeric_limits<float>::infinity();
    const std::uint16_t half = core::float_to_bf16(kInf);
    std::uint8_t* out = data + row * row_bytes;
    for (std::int64_t j = begin; j < end; ++j) {
      if (bf16) std::memcpy(out + 2 * j, &half, sizeof(half));
      else std::memcpy(out + 4 * j, &kInf, sizeof(kInf));
    }
  }
};

// A function of its own, so that the scratch is on the stack only while a piece is scored.
[[gnu::noinline]] void score_piece(const indexer::IndexScoreParams& p, std::int64_t row_begin, std::int64_t row_end,
                                   std::int64_t column_begin, std::int64_t column_end, const LogitsOut& out) {
  Window windows[indexer::kMaxRowBlock];
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const Window w = indexer::row_window(p, row);
    windows[row - row_begin] = {std::max(w.start, column_begin), std::min(w.end, column_end)};
  }
  indexer::ScoreScratch scratch;
  indexer::score_rows(p, row_begin, windows, row_end - row_begin, scratch,
                      [&](std::int64_t row, std::int64_t column, std::int64_t n, const float* scores) {
                        out.store(row, column, n, scores);
                      });
}

}  // namespace

void index_logits(const IndexLogitsArgs& args) {
  const indexer::IndexScoreParams p = indexer::check_score_args(args.score, "index_logits");
  core::check_view(args.logits,
                   {"index_logits", "logits", {DType::kFloat32, DType::kBFloat16}, {p.rows, p.max_columns}});
  core::check_row_stride(args.logits, "index_logits", "logits");
  indexer::check_num_threads(args.num_threads, "index_logits");
  const LogitsOut out{static_cast<std::uint8_t*>(args.logits.data()),
                      args.logits.stride(0) * dtype_bytes(args.logits.dtype()),
                      args.logits.dtype() == DType::kBFloat16};

  // Blocks of rows times chunks of columns. Chunks are multiples of a segment, so that no key is decoded twice for a
  // block.
  static_assert(indexer::kLogitsColumns % indexer::kSegmentKeys == 0);
  const std::int64_t row_block = indexer::choose_row_block(p.rows, core::num_workers(args.num_threads));
  const std::int64_t row_blocks = (p.rows + row_block - 1) / row_block;
  const std::int64_t chunks = (p.max_columns + indexer::kLogitsColumns - 1) / indexer::kLogitsColumns;
  core::parallel_for(row_blocks * chunks, 1, args.num_threads, [&](std::int64_t piece, std::int64_t, int) {
    const std::int64_t row_begin = piece / chunks * row_block;
    const std::int64_t row_end = std::min(p.rows, row_begin + row_block);
    const std::int64_t column_begin = piece % chunks * indexer::kLogitsColumns;
    const std::int64_t column_end = std::min(p.max_columns, column_begin + indexer::kLogitsColumns);
    score_piece(p, row_begin, row_end, column_begin, column_end, out);
    if (!args.clean) return;
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      const Window w = indexer::row_window(p, row);
      out.clean(row, column_begin, std::min(column_end, w.start));
      out.clean(row, std::max(column_begin, w.end), column_end);
    }
  });
}

}  // namespace tamis
