#include "tamis/indexer.hpp"

#include "c_api/args.hpp"
#include "c_api/guard.hpp"

namespace tamis::c_api {
namespace {

static_assert(TAMIS_INDEX_FLOAT32 == static_cast<int>(IndexFormat::kFloat32) &&
              TAMIS_INDEX_BFLOAT16 == static_cast<int>(IndexFormat::kBFloat16) &&
              TAMIS_INDEX_FP8 == static_cast<int>(IndexFormat::kFp8) &&
              TAMIS_INDEX_MXFP4 == static_cast<int>(IndexFormat::kMxfp4));

IndexQueryArgs index_query_args(const tamis_index_query_args* args) {
  using C = tamis_index_query_args;
  const ArgsReader read("index_query", args);
  IndexQueryArgs out;
  out.q = read(&C::q, "q");
  out.weights = read(&C::weights, "weights");
  out.positions = read(&C::positions, "positions");
  out.cos_sin = read(&C::cos_sin, "cos_sin");
  out.hadamard = read(&C::hadamard) != 0;
  out.format = read(&C::format, "format", IndexFormat::kMxfp4);
  out.index_q = read(&C::index_q, "index_q");
  out.index_q_scale = read(&C::index_q_scale, "index_q_scale");
  out.index_weights = read(&C::index_weights, "index_weights");
  out.num_threads = read(&C::num_threads);
  out.stream.handle = read(&C::stream);
  return out;
}

// The fields that index_logits and index_topk have in common have the same names in both structs.
template <typename C>
IndexScoreArgs score_args(const ArgsReader<C>& read) {
  IndexScoreArgs out;
  out.format = read(&C::format, "format", IndexFormat::kMxfp4);
  out.index_q = read(&C::index_q, "index_q");
  out.index_q_scale = read(&C::index_q_scale, "index_q_scale");
  out.index_weights = read(&C::index_weights, "index_weights");
  out.index_k = read(&C::index_k, "index_k");
  out.page_table = read(&C::page_table, "page_table");
  out.row_to_table = read(&C::row_to_table, "row_to_table");
  out.row_starts = read(&C::row_starts, "row_starts");
  out.row_ends = read(&C::row_ends, "row_ends");
  out.max_columns = read(&C::max_columns);
  return out;
}

IndexLogitsArgs index_logits_args(const tamis_index_logits_args* args) {
  using C = tamis_index_logits_args;
  const ArgsReader read("index_logits", args);
  IndexLogitsArgs out;
  out.score = score_args(read);
  out.logits = read(&C::logits, "logits");
  out.clean = read(&C::clean) != 0;
  out.num_threads = read(&C::num_threads);
  out.stream.handle = read(&C::stream);
  return out;
}

IndexTopkArgs index_topk_args(const tamis_index_topk_args* args) {
  using C = tamis_index_topk_args;
  const ArgsReader read("index_topk", args);
  IndexTopkArgs out;
  out.score = score_args(read);
  out.k = read(&C::k);
  out.indices = read(&C::indices, "indices");
  out.values = read(&C::values, "values");
  out.order = read(&C::order, "order", TopkOrder::kByValue);
  out.mapping = read(&C::mapping, "mapping", TopkMapping::kRagged);
  out.ragged_offsets = read(&C::ragged_offsets, "ragged_offsets");
  out.mapping_page_table = read(&C::mapping_page_table, "mapping_page_table");
  out.mapping_page_size = read(&C::mapping_page_size);
  out.page_starts = read(&C::page_starts, "page_starts");
  out.num_threads = read(&C::num_threads);
  out.workspace = read(&C::workspace);
  out.workspace_bytes = read(&C::workspace_bytes);
  out.stream.handle = read(&C::stream);
  return out;
}

}  // namespace
}  // namespace tamis::c_api

using namespace tamis::c_api;  // NOLINT(google-build-using-namespace): the entries below are the end of the file

extern "C" {

tamis_status tamis_index_query(const tamis_index_query_args* args) noexcept {
  return guarded([&] { tamis::index_query(index_query_args(args)); });
}

tamis_status tamis_index_logits(const tamis_index_logits_args* args) noexcept {
  return guarded([&] { tamis::index_logits(index_logits_args(args)); });
}

tamis_status tamis_index_topk_workspace_bytes(const tamis_index_topk_args* args, size_t* bytes) noexcept {
  return guarded([&] {
    require({"index_topk", "bytes"}, bytes);
    *bytes = tamis::index_topk_workspace_bytes(index_topk_args(args));
  });
}

tamis_status tamis_index_topk(const tamis_index_topk_args* args) noexcept {
  return guarded([&] { tamis::index_topk(index_topk_args(args)); });
}

}  // extern "C"
