#include "engine/staged_topk.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "core/tensor_check.hpp"

namespace tamis::engine {
namespace {

constexpr std::size_t kAlignment = 256;  // of every part of a block

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows [begin, begin + count) of a view of up to three dimensions.
ConstTensorView slice(const ConstTensorView& view, std::int64_t begin, std::int64_t count) {
  if (!view.present()) return {};
  const auto* data = static_cast<const std::byte*>(view.data()) + begin * view.stride(0) * dtype_bytes(view.dtype());
  if (view.rank() == 1) return {data, view.dtype(), {count}, {view.stride(0)}, view.device()};
  if (view.rank() == 2) {
    return {data, view.dtype(), {count, view.size(1)}, {view.stride(0), view.stride(1)}, view.device()};
  }
  return {data,
          view.dtype(),
          {count, view.size(1), view.size(2)},
          {view.stride(0), view.stride(1), view.stride(2)},
          view.device()};
}

std::int32_t at(const ConstTensorView& array, std::int64_t i) {
  return static_cast<const std::int32_t*>(array.data())[i * array.stride(0)];
}

void check_supported(const IndexTopkArgs& args) {
  const auto refuse = [](const char* name, const std::string& got) {
    core::fail(Status::kUnsupported, "top-k backend: ", name, " is ", got);
  };
  if (args.values.present()) refuse("values", core::describe(args.values) + ", must be absent");
  if (args.score.row_starts.present()) refuse("row_starts", core::describe(args.score.row_starts) + ", must be absent");
  if (args.page_starts.present()) refuse("page_starts", core::describe(args.page_starts) + ", must be absent");
  if (args.mapping == TopkMapping::kRagged) refuse("mapping", "kRagged, must be kNone or kPageTable");
  core::check_view(args.indices, {"top-k backend", "indices", {DType::kInt32}, {args.score.index_q.size(0), args.k}});
  core::check_row_stride(args.indices, "top-k backend", "indices");
  core::check_view(args.score.row_ends, {"top-k backend", "row_ends", {DType::kInt32}, {args.indices.size(0)}});
  if (args.score.row_to_table.present()) {
    core::check_view(args.score.row_to_table,
                     {"top-k backend", "row_to_table", {DType::kInt32}, {args.indices.size(0)}});
  }
  if (args.mapping == TopkMapping::kPageTable) {
    core::check_view(args.mapping_page_table,
                     {"top-k backend", "mapping_page_table", {DType::kInt32}, {core::kAnyExtent, core::kAnyExtent}});
  }
}

std::int64_t pages_of(const IndexTopkArgs& args, std::int64_t columns) {
  if (args.mapping != TopkMapping::kPageTable) return 0;
  return std::min(args.mapping_page_table.size(1),
                  ceil_div(columns, std::max<std::int64_t>(1, args.mapping_page_size)));
}

}  // namespace

StagedTopk::Layout StagedTopk::lay_out(const Shape& s) {
  Layout layout{};
  layout.row_stride = (s.columns + 3) / 4 * 4;  // rows begin at 16 bytes
  std::size_t end = 0;
  const auto place = [&](std::int64_t elements) {
    const std::size_t offset = end;
    end += aligned(static_cast<std::size_t>(elements) * 4);
    return offset;
  };
  layout.row_ends = place(s.rows);
  layout.row_to_table = place(s.rows);
  layout.page_table = place(s.tables * s.pages);
  layout.scores = place(s.rows * layout.row_stride);
  layout.indices = place(s.rows * s.k);
  layout.workspace = end;
  return layout;
}

std::int64_t StagedTopk::rows_a_chunk(const IndexTopkArgs& args) const {
  const std::int64_t columns = args.score.max_columns;
  const std::int64_t row_bytes = 4 * (columns + 3 + pages_of(args, columns) + args.k + 2);
  return std::clamp<std::int64_t>(chunk_bytes_ / row_bytes, 1, std::max<std::int64_t>(1, args.indices.size(0)));
}

TopkArgs StagedTopk::topk_args(const IndexTopkArgs& args, const Shape& s, const Layout& layout,
                               std::byte* block) const {
  TopkArgs out;
  out.scores =
      ConstTensorView(block + layout.scores, DType::kFloat32, {s.rows, s.columns}, {layout.row_stride, 1}, device_);
  out.row_ends = ConstTensorView(block + layout.row_ends, DType::kInt32, {s.rows}, device_);
  out.k = s.k;
  out.indices = TensorView(block + layout.indices, DType::kInt32, {s.rows, s.k}, device_);
  out.order = args.order;
  out.mapping = args.mapping;
  if (args.mapping == TopkMapping::kPageTable) {
    out.page_table = ConstTensorView(block + layout.page_table, DType::kInt32, {s.tables, s.pages}, device_);
    out.row_to_table = ConstTensorView(block + layout.row_to_table, DType::kInt32, {s.rows}, device_);
    out.page_size = args.mapping_page_size;
  }
  out.num_threads = args.num_threads;
  out.stream = stream();
  return out;
}

void StagedTopk::make_room(std::size_t host_bytes, std::size_t device_bytes) {
  if (host_bytes > host_bytes_) {
    host_bytes_ = 0;  // if the next line throws, there is none
    host_ = new_host_block(host_bytes);
    host_bytes_ = host_bytes;
  }
  if (device_bytes > device_bytes_) {
    device_bytes_ = 0;
    device_block_ = new_device_block(device_bytes);
    device_bytes_ = device_bytes;
  }
}

void StagedTopk::reserve(const model::TopkBounds& bounds) {
  if (bounds.rows < 1 || bounds.columns < 1 || bounds.k < 1) return;
  // The workspace need not grow with the shape, so that powers of two up to the bounds are asked; a step between them
  // that needs more still gets it.
  alignas(kAlignment) static std::byte nothing[kAlignment];  // sizes look at shapes only
  std::size_t host_bytes = 0, device_bytes = 0;
  for (std::int64_t columns = 1;; columns = std::min(2 * columns, bounds.columns)) {
    const std::int64_t k = std::min(bounds.k, columns), pages = ceil_div(columns, bounds.page_size);
    IndexTopkArgs args;
    args.score.max_columns = columns;
    args.k = k;
    args.indices = TensorView(nothing, DType::kInt32, {bounds.rows, k});
    args.mapping = TopkMapping::kPageTable;
    args.mapping_page_table = ConstTensorView(nothing, DType::kInt32, {1, pages});
    args.mapping_page_size = bounds.page_size;
    args.num_threads = bounds.num_threads;
    const std::int64_t most = rows_a_chunk(args);
    for (std::int64_t rows = 1;; rows = std::min(2 * rows, most)) {
      const Shape shape{rows, columns, rows, pages, k};
      const Layout layout = lay_out(shape);
      host_bytes = std::max(host_bytes, layout.workspace);
      device_bytes =
          std::max(device_bytes, layout.workspace + topk_workspace_bytes(topk_args(args, shape, layout, nothing)));
      if (rows == most) break;
    }
    score_ends_.reserve(static_cast<std::size_t>(most));
    tables_.reserve(static_cast<std::size_t>(most));
    if (columns == bounds.columns) break;
  }
  make_room(host_bytes, device_bytes);
}

void StagedTopk::index_topk(const IndexTopkArgs& args) {
  check_supported(args);
  const std::int64_t rows = args.indices.size(0), chunk = rows_a_chunk(args);
  if (args.k == 0) return;
  for (std::int64_t begin = 0; begin < rows; begin += chunk) run_chunk(args, begin, std::min(chunk, rows - begin));
}

void StagedTopk::run_chunk(const IndexTopkArgs& args, std::int64_t begin, std::int64_t count) {
  // 1. Windows. Where all positions of a row win, its scores are not looked at; a chunk is as wide as its longest row.
  const auto rows = static_cast<std::size_t>(count);
  score_ends_.resize(rows);
  tables_.resize(rows);
  std::int64_t width = 1, scored = 0, tables = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto end = std::clamp<std::int64_t>(at(args.score.row_ends, begin + i), 0, args.score.max_columns);
    const bool needed = end > args.k || args.order == TopkOrder::kByValue;
    score_ends_[static_cast<std::size_t>(i)] = needed ? static_cast<std::int32_t>(end) : 0;
    scored += needed ? 1 : 0;
    width = std::max(width, end);
    const ConstTensorView& map = args.score.row_to_table;
    const std::int32_t table = map.present() ? at(map, begin + i) : static_cast<std::int32_t>(begin + i);
    tables += i == 0 || table != tables_[static_cast<std::size_t>(i - 1)] ? 1 : 0;
    tables_[static_cast<std::size_t>(i)] = table;
  }

  // 2. Room. Rows of one request lie together, and its table is sent once.
  const std::int64_t pages = pages_of(args, width);
  const bool mapped = args.mapping == TopkMapping::kPageTable;
  const Shape shape{count, width, mapped ? tables : 0, pages, args.k};
  const Layout layout = lay_out(shape);
  make_room(layout.workspace, layout.workspace);
  TopkArgs topk = topk_args(args, shape, layout, device_block_);
  topk.workspace_bytes = topk_workspace_bytes(topk);
  if (layout.workspace + topk.workspace_bytes > device_bytes_) {
    make_room(layout.workspace, layout.workspace + topk.workspace_bytes);
    const std::size_t bytes = topk.workspace_bytes;
    topk = topk_args(args, shape, layout, device_block_);
    topk.workspace_bytes = bytes;
  }
  topk.workspace = device_block_ + layout.workspace;

  // 3. What goes there: ends, tables, scores.
  auto* row_ends = reinterpret_cast<std::int32_t*>(host_ + layout.row_ends);
  for (std::int64_t i = 0; i < count; ++i) {
    row_ends[i] = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(at(args.score.row_ends, begin + i), 0, args.score.max_columns));
  }
  if (mapped) {
    const ConstTensorView& table = args.mapping_page_table;
    auto* row_to_table = reinterpret_cast<std::int32_t*>(host_ + layout.row_to_table);
    auto* out = reinterpret_cast<std::int32_t*>(host_ + layout.page_table);
    std::int32_t next = -1;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t number = tables_[static_cast<std::size_t>(i)];
      const bool known = number >= 0 && number < table.size(0);
      if (i == 0 || number != tables_[static_cast<std::size_t>(i - 1)]) {
        ++next;
        if (known) {
          const auto* row = static_cast<const std::int32_t*>(table.data()) + number * table.stride(0);
          std::copy_n(row, pages, out + next * pages);
        } else {
          std::fill_n(out + next * pages, pages, -1);
        }
      }
      row_to_table[i] = known ? next : -1;
    }
  }
  if (scored > 0) {
    IndexLogitsArgs logits;
    logits.score = args.score;
    logits.score.index_q = slice(args.score.index_q, begin, count);
    logits.score.index_q_scale = slice(args.score.index_q_scale, begin, count);
    logits.score.index_weights = slice(args.score.index_weights, begin, count);
    if (args.score.page_table.present()) {
      logits.score.row_to_table = ConstTensorView(tables_.data(), DType::kInt32, {count});
    } else {
      logits.score.row_to_table = {};
    }
    logits.score.row_ends = ConstTensorView(score_ends_.data(), DType::kInt32, {count});
    logits.score.max_columns = width;
    logits.logits = TensorView(host_ + layout.scores, DType::kFloat32, {count, width}, {layout.row_stride, 1});
    logits.num_threads = args.num_threads;
    index_logits(logits);
  }
  upload(scored > 0 ? layout.indices : layout.scores);

  // 4. The selection, and its indices to where they were asked for.
  tamis::topk(topk);
  const auto row_bytes = static_cast<std::size_t>(args.k) * 4;
  download(layout.indices, rows * row_bytes);
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<std::byte*>(args.indices.data()) + (begin + i) * args.indices.stride(0) * 4,
                host_ + layout.indices + static_cast<std::size_t>(i) * row_bytes, row_bytes);
  }
}

}  // namespace tamis::engine
