#pragma once

#include <cstddef>

#include "indexer/params.hpp"

namespace tamis::indexer {

/// Arguments of index_topk(), checked.
struct IndexTopkParams {
  IndexScoreParams score;
  std::int64_t k = 0;
  TensorView indices;
  TensorView values;
  TopkOrder order = TopkOrder::kPosition;
  TopkMapping mapping = TopkMapping::kNone;
  ConstTensorView mapping_page_table;
  std::int64_t mapping_page_size = 1;
  const void* page_starts = nullptr;  // kPageTable: [rows] int32
  ConstTensorView ragged_offsets;
  int workers = 1;  // at most; fewer where there is less work or workspace
};

/// For all of p.workers that the work can keep busy.
std::size_t fused_topk_workspace_bytes(const IndexTopkParams& p);

/// For one worker and one row at a time: what a call cannot do without.
std::size_t fused_topk_min_workspace_bytes(const IndexTopkParams& p);

/// Scores blocks of columns and feeds them to one accumulator a row; no more than a step of columns is ever stored.
/// @param workspace        64-byte aligned.
/// @param workspace_bytes  At least fused_topk_min_workspace_bytes(p); decides how many workers run, not the result.
void fused_topk(const IndexTopkParams& p, void* workspace, std::size_t workspace_bytes);

}  // namespace tamis::indexer
