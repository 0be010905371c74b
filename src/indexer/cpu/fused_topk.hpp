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
  ConstTensorView ragged_offsets;
  int num_threads = 0;
  int workers = 1;
};

std::size_t fused_topk_workspace_bytes(const IndexTopkParams& p);

/// Scores blocks of columns and feeds them to one accumulator a row; no more than a step of columns is ever stored.
/// @param workspace  fused_topk_workspace_bytes(p), 64-byte aligned.
void fused_topk(const IndexTopkParams& p, void* workspace);

}  // namespace tamis::indexer
