#include <algorithm>
#include <limits>
#include <span>

#include "core/parallel.hpp"
#include "core/tensor_check.hpp"
#include "indexer/cpu/fused_topk.hpp"
#include "indexer/rules.hpp"
#include "indexer/score_args.hpp"
#include "tamis/indexer.hpp"

namespace tamis {
namespace {

using core::kAnyExtent;

constexpr std::string_view kOp = "index_topk";

indexer::IndexTopkParams check(const IndexTopkArgs& args) {
  indexer::IndexTopkParams p;
  p.score = indexer::check_score_args(args.score, kOp);
  const std::int64_t rows = p.score.rows;
  TAMIS_CHECK(args.k >= 0 && args.k <= std::numeric_limits<std::int32_t>::max(), Status::kInvalidArgument, kOp,
              ": k is ", args.k, ", must be in [0, 2147483647]");
  p.k = args.k;
  core::check_view(args.indices, {kOp, "indices", {DType::kInt32, DType::kInt64}, {rows, args.k}});
  core::check_row_stride(args.indices, kOp, "indices");
  p.indices = args.indices;
  if (args.values.present()) {
    core::check_view(args.values, {kOp, "values", {DType::kFloat32}, {rows, args.k}});
    core::check_row_stride(args.values, kOp, "values");
  }
  p.values = args.values;
  TAMIS_CHECK(args.order <= TopkOrder::kByValue, Status::kInvalidArgument, kOp, ": order is ",
              static_cast<int>(args.order), ", must be kPosition, kUnsorted or kByValue");
  p.order = args.order;
  p.mapping = args.mapping;
  switch (args.mapping) {
    case TopkMapping::kNone: break;
    case TopkMapping::kPageTable:
      core::check_view(args.mapping_page_table, {kOp, "mapping_page_table", {DType::kInt32}, {kAnyExtent, kAnyExtent}});
      TAMIS_CHECK(args.mapping_page_size >= 1, Status::kInvalidArgument, kOp, ": mapping_page_size is ",
                  args.mapping_page_size, ", must be at least 1");
      p.mapping_page_table = args.mapping_page_table;
      p.mapping_page_size = args.mapping_page_size;
      if (args.page_starts.present()) {
        core::check_view(args.page_starts, {kOp, "page_starts", {DType::kInt32}, {rows}});
        p.page_starts = args.page_starts.data();
      }
      break;
    case TopkMapping::kRagged:
      core::check_view(args.ragged_offsets, {kOp, "ragged_offsets", {DType::kInt32, DType::kInt64}, {rows}});
      p.ragged_offsets = args.ragged_offsets;
      break;
    default:
      core::fail(Status::kInvalidArgument, kOp, ": mapping is ", static_cast<int>(args.mapping),
                 ", must be kNone, kPageTable or kRagged");
  }
  indexer::check_num_threads(args.num_threads, kOp);
  p.workers = core::num_workers(args.num_threads);
  return p;
}

}  // namespace

std::size_t index_topk_workspace_bytes(const IndexTopkArgs& args) {
  return indexer::fused_topk_workspace_bytes(check(args));
}

void index_topk(const IndexTopkArgs& args) {
  const indexer::IndexTopkParams p = check(args);
  // A workspace sized under another thread arena than the one of the call may hold fewer workers than the call would
  // take; it runs with those that fit.
  const std::size_t needed = indexer::fused_topk_min_workspace_bytes(p);
  TAMIS_CHECK(args.workspace_bytes >= needed, Status::kInvalidArgument, kOp, ": workspace has ", args.workspace_bytes,
              " bytes, must have at least ", needed, " (index_topk_workspace_bytes)");
  TAMIS_CHECK(needed == 0 || args.workspace != nullptr, Status::kInvalidArgument, kOp,
              ": workspace is null, must have at least ", needed, " bytes");
  const auto past = reinterpret_cast<std::uintptr_t>(args.workspace) % 64;
  TAMIS_CHECK(needed == 0 || past == 0, Status::kInvalidArgument, kOp, ": workspace is ", past,
              " bytes past a multiple of 64, must be 64-byte aligned");
  indexer::fused_topk(p, args.workspace, args.workspace_bytes);
}

}  // namespace tamis
