#include "tamis/topk.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "call.hpp"
#include "operations.hpp"
#include "topk_choices.hpp"

namespace tamis::python {
namespace {

constexpr std::initializer_list<DType> kInt32 = {DType::kInt32};
constexpr std::initializer_list<DType> kInt32Or64 = {DType::kInt32, DType::kInt64};

nb::object topk(nb::handle scores, nb::handle k, nb::handle row_starts, nb::handle row_ends, nb::handle order,
                nb::handle values, nb::handle certificate, nb::handle index_dtype, nb::handle page_table,
                nb::handle row_to_table, nb::handle page_starts, nb::handle page_size, nb::handle ragged_offsets,
                nb::handle algorithm, nb::handle num_threads, nb::handle out, nb::handle workspace) {
  Call call("topk");
  TopkArgs args;
  args.scores = call.input(scores, "scores", {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  TAMIS_CHECK(args.scores.rank() == 2, Status::kInvalidArgument, "topk: scores has ", args.scores.rank(),
              " dimensions, must have 2: [rows, width]");
  const std::int64_t rows = args.scores.size(0);
  args.k = call.integer(k, "k");
  TAMIS_CHECK(args.k >= 0, Status::kInvalidArgument, "topk: k is ", args.k, ", must be at least 0");
  args.row_starts = call.optional_input(row_starts, "row_starts", kInt32);
  args.row_ends = call.optional_input(row_ends, "row_ends", kInt32);
  args.order = call.choice(order, "order", kTopkOrders);
  args.algorithm = call.choice(algorithm, "algorithm", kTopkAlgorithms);
  args.num_threads = call.threads(num_threads);

  TAMIS_CHECK(page_table.is_none() || ragged_offsets.is_none(), Status::kInvalidArgument,
              "topk: page_table and ragged_offsets are both given, must be at most one of them");
  if (!page_table.is_none()) {
    args.mapping = TopkMapping::kPageTable;
    args.page_table = call.input(page_table, "page_table", kInt32);
    args.row_to_table = call.optional_input(row_to_table, "row_to_table", kInt32);
    args.page_starts = call.optional_input(page_starts, "page_starts", kInt32);
    args.page_size = call.integer(page_size, "page_size");
  } else {
    call.absent(row_to_table, "row_to_table", "page_table");
    call.absent(page_starts, "page_starts", "page_table");
    static_cast<void>(call.integer(page_size, "page_size"));
  }
  if (!ragged_offsets.is_none()) {
    args.mapping = TopkMapping::kRagged;
    args.ragged_offsets = call.input(ragged_offsets, "ragged_offsets", kInt32Or64);
  }

  const Output indices =
      call.output_or_new(out, "out", call.choice(index_dtype, "index_dtype", kIndexDTypes), {rows, args.k}, kInt32Or64);
  const Output winners = call.optional_output(values, "values", args.scores.dtype(), {rows, args.k});
  const Output proof = call.optional_output(certificate, "certificate", DType::kInt32, {rows, 4});
  args.indices = indices.view;
  args.values = winners.view;
  args.certificate = proof.view;

  args.workspace = call.workspace(workspace, topk_workspace_bytes(args), &args.workspace_bytes);
  args.stream = call.stream();
  call.check_overlaps();
  call.run([&] { tamis::topk(args); });

  if (!winners.view.present() && !proof.view.present()) return call.result(indices);
  if (!proof.view.present()) return nb::make_tuple(call.result(indices), call.result(winners));
  if (!winners.view.present()) return nb::make_tuple(call.result(indices), call.result(proof));
  return nb::make_tuple(call.result(indices), call.result(winners), call.result(proof));
}

template <typename View>
auto span_of(const View& view, const char* name) {
  TAMIS_CHECK(view.rank() == 1 && (view.size(0) <= 1 || view.stride(0) == 1), Status::kInvalidArgument,
              "topk_row_ends: ", name, " must be contiguous with one dimension");
  using Element = std::conditional_t<std::is_same_v<View, TensorView>, std::int32_t, const std::int32_t>;
  return std::span(static_cast<Element*>(view.data()), static_cast<std::size_t>(view.size(0)));
}

nb::object row_ends(nb::handle seq_lens, nb::handle next_n, nb::handle compress_ratio, nb::handle out) {
  Call call("topk_row_ends");
  const auto lens = span_of(call.input(seq_lens, "seq_lens", kInt32), "seq_lens");
  TAMIS_CHECK(call.device().kind == Device::Kind::kCpu, Status::kUnsupported,
              "topk_row_ends: seq_lens is on a GPU, must be on the CPU");
  const std::int64_t n = call.integer(next_n, "next_n");
  TAMIS_CHECK(n >= 1, Status::kInvalidArgument, "topk_row_ends: next_n is ", n, ", must be at least 1");
  const auto most = INT64_MAX / std::max<std::int64_t>(1, static_cast<std::int64_t>(lens.size()));
  TAMIS_CHECK(n <= most, Status::kInvalidArgument, "topk_row_ends: next_n is ", n, ", must be at most ", most, " with ",
              lens.size(), " seq_lens");
  const Output ends = call.output_or_new(out, "out", DType::kInt32, {static_cast<std::int64_t>(lens.size()) * n});
  call.check_overlaps();
  topk_row_ends(lens, n, call.integer(compress_ratio, "compress_ratio"), span_of(ends.view, "out"));
  return call.result(ends);
}

// [(algorithm, available, why not)] of a device.
nb::list support(nb::handle device) {
  nb::list rows;
  for (const TopkSupport& row : topk_support(Call("topk_support").parse_device(device, "device"))) {
    rows.append(nb::make_tuple(topk_algorithm_name(row.algorithm), row.available, row.why.c_str()));
  }
  return rows;
}

}  // namespace

void bind_topk(nb::module_& m) {
  define(m, "topk", &topk);
  define(m, "topk_row_ends", &row_ends);
  define(m, "topk_support", &support);
}

}  // namespace tamis::python
