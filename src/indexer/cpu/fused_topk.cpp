#include "indexer/cpu/fused_topk.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "core/parallel.hpp"
#include "indexer/cpu/row_runs.hpp"
#include "indexer/cpu/score.hpp"
#include "indexer/rules.hpp"
#include "topk/cpu/row_output.hpp"
#include "topk/cpu/streaming.hpp"

namespace tamis::indexer {
namespace {

using topk_cpu::TopkAccumulator;

// The workspace: scratch of every worker, accumulators, and for a column split the scores of one step. One function
// lays it out for the size query and for the run.
struct Plan {
  IndexTopkSplit split = IndexTopkSplit::kRows;
  int workers = 1;
  std::int64_t row_block = 1;
  std::int64_t step_columns = 0;  // kColumns: columns scored before the selection sees them
  std::size_t scratch_bytes = 0;  // a worker
  std::size_t top_bytes = 0;      // an accumulator
  std::size_t tops_offset = 0;    // [workers or 1][row_block] accumulators
  std::size_t scores_offset = 0;  // [row_block][step_columns] fp32
  std::size_t bytes = 0;
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Where the parts lie, once split, workers and row_block are chosen.
void lay_out(const IndexTopkParams& p, Plan& plan) {
  const auto workers = static_cast<std::size_t>(plan.workers);
  plan.scratch_bytes = (sizeof(ScoreScratch) + 63) / 64 * 64;
  plan.top_bytes = TopkAccumulator::workspace_bytes(p.k, p.score.max_columns);
  plan.tops_offset = workers * plan.scratch_bytes;
  if (plan.split == IndexTopkSplit::kRows) {
    plan.bytes = plan.tops_offset + workers * static_cast<std::size_t>(plan.row_block) * plan.top_bytes;
  } else {
    plan.scores_offset = plan.tops_offset + static_cast<std::size_t>(plan.row_block) * plan.top_bytes;
    plan.bytes = plan.scores_offset + static_cast<std::size_t>(plan.row_block * plan.step_columns) * sizeof(float);
  }
}

// For up to `workers` workers; no more than there are pieces of work.
Plan make_plan(const IndexTopkParams& p, int workers) {
  Plan plan;
  if (p.k == 0 || p.score.rows == 0) return plan;
  workers = std::min(workers, kMaxWorkers);
  plan.split = choose_index_topk_rule(p.score.rows, p.score.max_columns, workers).split;
  std::int64_t pieces = 1;
  if (plan.split == IndexTopkSplit::kRows) {
    plan.row_block = choose_row_block(p.score.rows, workers);
    pieces = ceil_div(p.score.rows, plan.row_block);
  } else {
    plan.row_block = std::min(p.score.rows, kSplitRowBlock);
    pieces = ceil_div(p.score.max_columns, kSplitColumns);
  }
  plan.workers = static_cast<int>(std::min<std::int64_t>(workers, pieces));
  if (plan.split == IndexTopkSplit::kColumns)
    plan.step_columns = kSplitColumns * std::min(kSplitChunksPerWorker * plan.workers, pieces);
  lay_out(p, plan);
  return plan;
}

// The plan with the most workers that fits `bytes`. One worker has no column split, so that its rows can be taken one
// by one until even one is too many.
Plan fit_plan(const IndexTopkParams& p, std::size_t bytes) {
  int workers = std::min(p.workers, kMaxWorkers);
  Plan plan = make_plan(p, workers);
  while (plan.bytes > bytes && workers > 1) plan = make_plan(p, --workers);
  while (plan.bytes > bytes && plan.row_block > 1) {
    plan.row_block /= 2;
    lay_out(p, plan);
  }
  return plan;
}

template <typename Pointer>
auto* row_of(const BasicTensorView<Pointer>& view, std::int64_t row) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
  return static_cast<Byte*>(view.data()) + row * view.stride(0) * dtype_bytes(view.dtype());
}

topk_cpu::RowMap row_map(const IndexTopkParams& p, std::int64_t row) {
  topk_cpu::RowMap map;
  map.mapping = p.mapping;
  if (p.mapping == TopkMapping::kPageTable) {
    const std::int64_t table = p.score.row_to_table == nullptr ? row : p.score.row_to_table[row];
    if (table >= 0 && table < p.mapping_page_table.size(0)) map.pages = row_of(p.mapping_page_table, table);
    map.max_pages = p.mapping_page_table.size(1);
    map.page_size = p.mapping_page_size;
    if (p.page_starts != nullptr) map.page_start = topk_cpu::load_at<std::int32_t>(p.page_starts, row);
  } else if (p.mapping == TopkMapping::kRagged) {
    const void* offsets = p.ragged_offsets.data();
    map.ragged_offset = p.ragged_offsets.dtype() == DType::kInt64
                            ? static_cast<const std::int64_t*>(offsets)[row]
                            : std::int64_t{static_cast<const std::int32_t*>(offsets)[row]};
  }
  return map;
}

// Everything wins and no score is asked for: positions 0 .. n - 1, without scoring.
bool wins_unscored(const IndexTopkParams& p, const Window& w) {
  return w.size() <= p.k && !p.values.present() && p.order != TopkOrder::kByValue;
}

void write_all_positions(const IndexTopkParams& p, std::int64_t row, std::int64_t n) {
  constexpr std::int64_t kPiece = 256;
  std::uint32_t positions[kPiece];
  const topk_cpu::RowMap map = row_map(p, row);
  const std::int64_t item = dtype_bytes(p.indices.dtype());
  auto* out = row_of(p.indices, row);
  // The last piece also writes the -1 tail.
  for (std::int64_t begin = 0;; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, n - begin);
    for (std::int64_t i = 0; i < count; ++i) positions[i] = static_cast<std::uint32_t>(begin + i);
    const bool last = begin + count >= n;
    topk_cpu::write_row_indices(p.indices.dtype(), out + begin * item, positions, count, last ? p.k - begin : count,
                                map);
    if (last) return;
  }
}

void finish_row(const IndexTopkParams& p, std::int64_t row, TopkAccumulator& top) {
  const std::int64_t n = top.finish(p.order);
  topk_cpu::write_row_indices(p.indices.dtype(), row_of(p.indices, row), top.positions(), n, p.k, row_map(p, row));
  if (!p.values.present()) return;
  auto* values = reinterpret_cast<float*>(row_of(p.values, row));
  for (std::int64_t i = 0; i < n; ++i) values[i] = top.value(i);
  std::fill(values + n, values + p.k, std::numeric_limits<float>::quiet_NaN());
}

// Prepares a block of rows: windows to score (empty where no score is needed, those rows are written at once) and
// accumulators in `memory`.
void begin_rows(const IndexTopkParams& p, const Plan& plan, std::int64_t begin, std::int64_t count, std::byte* memory,
                Window* windows, TopkAccumulator* tops) {
  for (std::int64_t i = 0; i < count; ++i) {
    new (tops + i) TopkAccumulator(p.k, p.score.max_columns, memory + static_cast<std::size_t>(i) * plan.top_bytes);
    tops[i].begin_row();
    windows[i] = row_window(p.score, begin + i);
    if (!wins_unscored(p, windows[i])) continue;
    write_all_positions(p, begin + i, windows[i].size());
    windows[i].end = -1;  // says so to finish_rows(), and is empty to the scoring
  }
}

void finish_rows(const IndexTopkParams& p, std::int64_t begin, std::int64_t count, const Window* windows,
                 TopkAccumulator* tops) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (windows[i].end >= 0) finish_row(p, begin + i, tops[i]);
  }
}

// Room for accumulators without their constructors; trivially destructible, so nothing needs to end them.
static_assert(std::is_trivially_destructible_v<TopkAccumulator>);
template <std::int64_t kCount>
struct AccumulatorRoom {
  alignas(TopkAccumulator) std::byte bytes[kCount * sizeof(TopkAccumulator)];
  TopkAccumulator* get() { return reinterpret_cast<TopkAccumulator*>(bytes); }
};

void run_rows(const IndexTopkParams& p, const Plan& plan, std::byte* workspace) {
  core::parallel_for(p.score.rows, plan.row_block, plan.workers, [&](std::int64_t begin, std::int64_t end, int worker) {
    auto* scratch = new (workspace + static_cast<std::size_t>(worker) * plan.scratch_bytes) ScoreScratch;
    std::byte* memory = workspace + plan.tops_offset +
                        static_cast<std::size_t>(worker) * static_cast<std::size_t>(plan.row_block) * plan.top_bytes;
    Window windows[kMaxRowBlock];
    AccumulatorRoom<kMaxRowBlock> room;
    TopkAccumulator* tops = room.get();
    begin_rows(p, plan, begin, end - begin, memory, windows, tops);
    score_rows(p.score, begin, windows, end - begin, *scratch,
               [&](std::int64_t row, std::int64_t column, std::int64_t n, const float* scores) {
                 tops[row - begin].feed(scores, n, column - windows[row - begin].start);
               });
    finish_rows(p, begin, end - begin, windows, tops);
  });
}

void run_columns(const IndexTopkParams& p, const Plan& plan, std::byte* workspace) {
  auto* step_scores = reinterpret_cast<float*>(workspace + plan.scores_offset);
  for (std::int64_t begin = 0; begin < p.score.rows; begin += plan.row_block) {
    const std::int64_t count = std::min(plan.row_block, p.score.rows - begin);
    Window windows[kSplitRowBlock];
    AccumulatorRoom<kSplitRowBlock> room;
    TopkAccumulator* tops = room.get();
    begin_rows(p, plan, begin, count, workspace + plan.tops_offset, windows, tops);
    Window all{p.score.max_columns, 0};
    for (std::int64_t i = 0; i < count; ++i) {
      if (windows[i].size() <= 0) continue;
      all.start = std::min(all.start, windows[i].start);
      all.end = std::max(all.end, windows[i].end);
    }
    const auto clip = [&](std::int64_t i, std::int64_t from, std::int64_t to) {
      return Window{std::max(windows[i].start, from), std::min(windows[i].end, to)};
    };
    for (std::int64_t step = all.start / kSegmentKeys * kSegmentKeys; step < all.end; step += plan.step_columns) {
      const std::int64_t step_end = std::min(step + plan.step_columns, all.end);
      core::parallel_for(
          step_end - step, kSplitColumns, plan.workers, [&](std::int64_t from, std::int64_t to, int worker) {
            Window pieces[kSplitRowBlock];
            for (std::int64_t i = 0; i < count; ++i) pieces[i] = clip(i, step + from, step + to);
            auto* scratch = new (workspace + static_cast<std::size_t>(worker) * plan.scratch_bytes) ScoreScratch;
            score_rows(p.score, begin, pieces, count, *scratch,
                       [&](std::int64_t row, std::int64_t column, std::int64_t n, const float* scores) {
                         std::memcpy(step_scores + (row - begin) * plan.step_columns + (column - step), scores,
                                     static_cast<std::size_t>(n) * sizeof(float));
                       });
          });
      core::parallel_for(count, 1, plan.workers, [&](std::int64_t i, std::int64_t, int) {
        const Window w = clip(i, step, step_end);
        if (w.size() <= 0) return;
        tops[i].feed(step_scores + i * plan.step_columns + (w.start - step), w.size(), w.start - windows[i].start);
      });
    }
    finish_rows(p, begin, count, windows, tops);
  }
}

}  // namespace

std::size_t fused_topk_workspace_bytes(const IndexTopkParams& p) { return make_plan(p, p.workers).bytes; }

std::size_t fused_topk_min_workspace_bytes(const IndexTopkParams& p) {
  Plan plan = make_plan(p, 1);
  if (plan.bytes == 0) return 0;
  plan.row_block = 1;
  lay_out(p, plan);
  return plan.bytes;
}

void fused_topk(const IndexTopkParams& p, void* workspace, std::size_t workspace_bytes) {
  if (p.k == 0 || p.score.rows == 0) return;
  const Plan plan = fit_plan(p, workspace_bytes);
  static_assert(kSplitColumns % kSegmentKeys == 0);
  if (plan.split == IndexTopkSplit::kRows) run_rows(p, plan, static_cast<std::byte*>(workspace));
  else run_columns(p, plan, static_cast<std::byte*>(workspace));
}

}  // namespace tamis::indexer
