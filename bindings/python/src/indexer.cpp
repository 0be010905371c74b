#include "tamis/indexer.hpp"

#include <limits>

#include "call.hpp"
#include "operations.hpp"
#include "topk_choices.hpp"

namespace tamis::python {
namespace {

constexpr std::initializer_list<DType> kFloat = {DType::kFloat32};
constexpr std::initializer_list<DType> kFloatOrBf16 = {DType::kFloat32, DType::kBFloat16};
constexpr std::initializer_list<DType> kInt32 = {DType::kInt32};
constexpr std::initializer_list<DType> kInt32Or64 = {DType::kInt32, DType::kInt64};
constexpr std::initializer_list<DType> kQueries = {DType::kFloat32, DType::kBFloat16, DType::kUInt8,
                                                   DType::kFloat8E4M3};

constexpr std::array kFormats = {
    std::pair{std::string_view("fp32"), IndexFormat::kFloat32},
    std::pair{std::string_view("bf16"), IndexFormat::kBFloat16},
    std::pair{std::string_view("fp8"), IndexFormat::kFp8},
    std::pair{std::string_view("mxfp4"), IndexFormat::kMxfp4},
};

// What index_logits() and index_topk() share, in the order of their Python functions.
struct ScoreHandles {
  nb::handle index_q, index_weights, index_k, row_ends, format, index_q_scale, page_table, row_to_table, row_starts,
      max_columns;
};

IndexScoreArgs score_args(Call& call, const ScoreHandles& h) {
  IndexScoreArgs score;
  score.index_q = call.input(h.index_q, "index_q", kQueries);
  score.index_weights = call.input(h.index_weights, "index_weights", kFloat);
  score.index_k = call.input_cache(h.index_k, "index_k");
  score.row_ends = call.input(h.row_ends, "row_ends", kInt32);
  score.format = call.choice(h.format, "format", kFormats);
  score.index_q_scale = call.optional_input(h.index_q_scale, "index_q_scale", {DType::kUInt8});
  score.page_table = call.optional_input(h.page_table, "page_table", kInt32);
  score.row_to_table = call.optional_input(h.row_to_table, "row_to_table", kInt32);
  score.row_starts = call.optional_input(h.row_starts, "row_starts", kInt32);
  if (!h.max_columns.is_none()) {
    score.max_columns = call.integer(h.max_columns, "max_columns", 0, std::numeric_limits<std::int64_t>::max());
  } else if (score.page_table.rank() == 2) {
    score.max_columns = score.page_table.size(1) * score.index_k.page_size;
  } else {
    score.max_columns = score.index_k.num_slots();
  }
  return score;
}

nb::object index_query(nb::handle q, nb::handle weights, nb::handle positions, nb::handle cos_sin, nb::handle format,
                       nb::handle hadamard, nb::handle num_threads, nb::handle index_q, nb::handle index_q_scale,
                       nb::handle index_weights) {
  Call call("index_query");
  IndexQueryArgs args;
  args.q = call.input(q, "q", kFloatOrBf16);
  args.weights = call.input(weights, "weights", kFloatOrBf16);
  args.positions = call.input(positions, "positions", {DType::kInt64});
  args.cos_sin = call.input(cos_sin, "cos_sin", kFloat);
  args.format = call.choice(format, "format", kFormats);
  args.hadamard = call.boolean(hadamard, "hadamard");
  args.num_threads = call.threads(num_threads);
  TAMIS_CHECK(args.q.rank() == 3, Status::kInvalidArgument, "index_query: q has ", args.q.rank(),
              " dimensions, must have 3: [tokens, index_heads, 128]");
  const std::int64_t tokens = args.q.size(0), heads = args.q.size(1), width = args.q.size(2);
  const bool mxfp4 = args.format == IndexFormat::kMxfp4;
  const DType stored = args.format == IndexFormat::kFloat32    ? DType::kFloat32
                       : args.format == IndexFormat::kBFloat16 ? DType::kBFloat16
                                                               : DType::kUInt8;
  const Output queries =
      call.output_or_new(index_q, "index_q", stored, {tokens, heads, mxfp4 ? width / 2 : width}, kQueries);
  Output scales;
  if (mxfp4 || !index_q_scale.is_none()) {
    scales = call.output_or_new(index_q_scale, "index_q_scale", DType::kUInt8, {tokens, heads, 4});
  }
  const Output scaled = call.output_or_new(index_weights, "index_weights", DType::kFloat32, {tokens, heads});
  args.index_q = queries.view;
  args.index_q_scale = scales.view;
  args.index_weights = scaled.view;
  args.stream = call.stream();
  call.check_overlaps();
  call.run([&] { tamis::index_query(args); });
  if (!mxfp4) return nb::make_tuple(call.result(queries), call.result(scaled));
  return nb::make_tuple(call.result(queries), call.result(scaled), call.result(scales));
}

nb::object index_logits(nb::handle index_q, nb::handle index_weights, nb::handle index_k, nb::handle row_ends,
                        nb::handle format, nb::handle index_q_scale, nb::handle page_table, nb::handle row_to_table,
                        nb::handle row_starts, nb::handle max_columns, nb::handle clean, nb::handle num_threads,
                        nb::handle out) {
  Call call("index_logits");
  IndexLogitsArgs args;
  args.score = score_args(call, {index_q, index_weights, index_k, row_ends, format, index_q_scale, page_table,
                                 row_to_table, row_starts, max_columns});
  args.clean = call.boolean(clean, "clean");
  args.num_threads = call.threads(num_threads);
  const Output logits = call.output_or_new(out, "out", DType::kFloat32,
                                           {args.score.index_q.size(0), args.score.max_columns}, {DType::kBFloat16});
  args.logits = logits.view;
  args.stream = call.stream();
  call.check_overlaps();
  call.run([&] { tamis::index_logits(args); });
  return call.result(logits);
}

nb::object index_topk(nb::handle index_q, nb::handle index_weights, nb::handle index_k, nb::handle row_ends,
                      nb::handle k, nb::handle format, nb::handle index_q_scale, nb::handle page_table,
                      nb::handle row_to_table, nb::handle row_starts, nb::handle max_columns, nb::handle order,
                      nb::handle values, nb::handle index_dtype, nb::handle mapping_page_table,
                      nb::handle mapping_page_size, nb::handle page_starts, nb::handle ragged_offsets,
                      nb::handle num_threads, nb::handle out, nb::handle workspace) {
  Call call("index_topk");
  IndexTopkArgs args;
  args.score = score_args(call, {index_q, index_weights, index_k, row_ends, format, index_q_scale, page_table,
                                 row_to_table, row_starts, max_columns});
  args.k = call.integer(k, "k");
  TAMIS_CHECK(args.k >= 0, Status::kInvalidArgument, "index_topk: k is ", args.k, ", must be at least 0");
  args.order = call.choice(order, "order", kTopkOrders);
  TAMIS_CHECK(mapping_page_table.is_none() || ragged_offsets.is_none(), Status::kInvalidArgument,
              "index_topk: mapping_page_table and ragged_offsets are both given, must be at most one of them");
  if (!mapping_page_table.is_none()) {
    args.mapping = TopkMapping::kPageTable;
    args.mapping_page_table = call.input(mapping_page_table, "mapping_page_table", kInt32);
    args.mapping_page_size = call.integer(mapping_page_size, "mapping_page_size");
    args.page_starts = call.optional_input(page_starts, "page_starts", kInt32);
  } else {
    call.absent(page_starts, "page_starts", "mapping_page_table");
    static_cast<void>(call.integer(mapping_page_size, "mapping_page_size"));
  }
  if (!ragged_offsets.is_none()) {
    args.mapping = TopkMapping::kRagged;
    args.ragged_offsets = call.input(ragged_offsets, "ragged_offsets", kInt32Or64);
  }
  args.num_threads = call.threads(num_threads);
  const std::int64_t rows = args.score.index_q.size(0);
  const Output indices =
      call.output_or_new(out, "out", call.choice(index_dtype, "index_dtype", kIndexDTypes), {rows, args.k}, kInt32Or64);
  const Output winners = call.optional_output(values, "values", DType::kFloat32, {rows, args.k});
  args.indices = indices.view;
  args.values = winners.view;
  args.workspace = call.workspace(workspace, index_topk_workspace_bytes(args), &args.workspace_bytes);
  args.stream = call.stream();
  call.check_overlaps();
  call.run([&] { tamis::index_topk(args); });
  if (!winners.view.present()) return call.result(indices);
  return nb::make_tuple(call.result(indices), call.result(winners));
}

}  // namespace

void bind_indexer(nb::module_& m) {
  define(m, "index_query", &index_query);
  define(m, "index_logits", &index_logits);
  define(m, "index_topk", &index_topk);
}

}  // namespace tamis::python
