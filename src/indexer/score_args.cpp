#include "indexer/score_args.hpp"

#include <limits>

#include "core/tensor_check.hpp"

namespace tamis::indexer {
namespace {

using core::kAnyExtent;

bool layout_matches(IndexFormat format, CacheLayout layout) {
  switch (format) {
    case IndexFormat::kFloat32:
    case IndexFormat::kBFloat16: return layout == CacheLayout::kFloat32 || layout == CacheLayout::kBFloat16;
    case IndexFormat::kFp8: return layout == CacheLayout::kIndexerFp8;
    case IndexFormat::kMxfp4: return layout == CacheLayout::kIndexerMxfp4;
  }
  return false;
}

const char* expected_layout(IndexFormat format) {
  switch (format) {
    case IndexFormat::kFloat32:
    case IndexFormat::kBFloat16: return "fp32 or bf16";
    case IndexFormat::kFp8: return "indexer_fp8";
    case IndexFormat::kMxfp4: return "indexer_mxfp4";
  }
  return "";
}

}  // namespace

const char* index_format_name(IndexFormat format) noexcept {
  switch (format) {
    case IndexFormat::kFloat32: return "fp32";
    case IndexFormat::kBFloat16: return "bf16";
    case IndexFormat::kFp8: return "fp8";
    case IndexFormat::kMxfp4: return "mxfp4";
  }
  return "unknown format";
}

void check_num_threads(int num_threads, std::string_view op) {
  TAMIS_CHECK(num_threads >= 0, Status::kInvalidArgument, op, ": num_threads is ", num_threads, ", must be >= 0");
}

IndexScoreParams check_score_args(const IndexScoreArgs& args, std::string_view op) {
  IndexScoreParams p;
  p.format = args.format;
  switch (args.format) {
    case IndexFormat::kFloat32:
      core::check_view(args.index_q, {op, "index_q", {DType::kFloat32}, {kAnyExtent, kAnyExtent, kHeadDim}});
      break;
    case IndexFormat::kBFloat16:
      core::check_view(args.index_q, {op, "index_q", {DType::kBFloat16}, {kAnyExtent, kAnyExtent, kHeadDim}});
      break;
    case IndexFormat::kFp8:
      core::check_view(args.index_q,
                       {op, "index_q", {DType::kUInt8, DType::kFloat8E4M3}, {kAnyExtent, kAnyExtent, kHeadDim}});
      break;
    case IndexFormat::kMxfp4:
      core::check_view(args.index_q, {op, "index_q", {DType::kUInt8}, {kAnyExtent, kAnyExtent, kHeadDim / 2}});
      break;
    default:
      core::fail(Status::kInvalidArgument, op, ": format is ", static_cast<int>(args.format),
                 ", must be fp32, bf16, fp8 or mxfp4");
  }
  p.rows = args.index_q.size(0);
  p.heads = args.index_q.size(1);
  TAMIS_CHECK(p.heads >= 1, Status::kInvalidArgument, op, ": index_q has ", p.heads, " heads, must have at least 1");
  const std::int64_t item = dtype_bytes(args.index_q.dtype());
  p.q = static_cast<const std::uint8_t*>(args.index_q.data());
  p.q_row_bytes = args.index_q.stride(0) * item;
  p.q_head_bytes = args.index_q.stride(1) * item;
  if (args.format == IndexFormat::kMxfp4) {
    core::check_view(args.index_q_scale, {op, "index_q_scale", {DType::kUInt8}, {p.rows, p.heads, ops::kMxfp4Blocks}});
    p.q_scale = static_cast<const std::uint8_t*>(args.index_q_scale.data());
    p.q_scale_row_stride = args.index_q_scale.stride(0);
    p.q_scale_head_stride = args.index_q_scale.stride(1);
  } else {
    TAMIS_CHECK(!args.index_q_scale.present(), Status::kInvalidArgument, op, ": index_q_scale is ",
                core::describe(args.index_q_scale), ", must be absent for format ", index_format_name(args.format));
  }
  core::check_view(args.index_weights, {op, "index_weights", {DType::kFloat32}, {p.rows, p.heads}});
  p.weights = static_cast<const float*>(args.index_weights.data());
  p.weights_row_stride = args.index_weights.stride(0);

  ops::check_cache(args.index_k, op, "index_k");
  TAMIS_CHECK(layout_matches(args.format, args.index_k.layout), Status::kInvalidArgument, op, ": index_k has layout ",
              cache_layout_name(args.index_k.layout), ", must have ", expected_layout(args.format), " for format ",
              index_format_name(args.format));
  TAMIS_CHECK(args.index_k.head_dim == kHeadDim, Status::kInvalidArgument, op, ": index_k has head_dim ",
              args.index_k.head_dim, ", must have ", kHeadDim);
  p.keys = args.index_k;

  p.paged = args.page_table.present();
  if (p.paged) {
    core::check_view(args.page_table, {op, "page_table", {DType::kInt32}, {kAnyExtent, kAnyExtent}});
    p.page_table = static_cast<const std::int32_t*>(args.page_table.data());
    p.num_tables = args.page_table.size(0);
    p.max_pages = args.page_table.size(1);
    p.page_table_stride = args.page_table.stride(0);
  } else {
    p.max_pages = args.index_k.num_pages;
  }
  if (args.row_to_table.present()) {
    core::check_view(args.row_to_table, {op, "row_to_table", {DType::kInt32}, {p.rows}});
    p.row_to_table = static_cast<const std::int32_t*>(args.row_to_table.data());
  }
  if (args.row_starts.present()) {
    core::check_view(args.row_starts, {op, "row_starts", {DType::kInt32}, {p.rows}});
    p.row_starts = static_cast<const std::int32_t*>(args.row_starts.data());
  }
  core::check_view(args.row_ends, {op, "row_ends", {DType::kInt32}, {p.rows}});
  p.row_ends = static_cast<const std::int32_t*>(args.row_ends.data());
  // Columns become int32 indices.
  TAMIS_CHECK(args.max_columns >= 0 && args.max_columns <= std::numeric_limits<std::int32_t>::max(),
              Status::kInvalidArgument, op, ": max_columns is ", args.max_columns, ", must be in [0, 2147483647]");
  p.max_columns = args.max_columns;
  return p;
}

}  // namespace tamis::indexer
