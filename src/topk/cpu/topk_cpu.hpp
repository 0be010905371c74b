#pragma once

#include <cstddef>

#include "topk/params.hpp"

namespace tamis::topk_cpu {

/// How a call is laid out over workers and workspace. A function of shapes, k, dtype, order, algorithm and num_threads.
struct TopkPlan {
  TopkAlgorithm algorithm = TopkAlgorithm::kIdentity;
  int workers = 1;
  std::int64_t segments = 1;     // pieces of a row that are selected from separately, then merged
  std::size_t worker_bytes = 0;  // scratch of one worker
  std::size_t slot_bytes = 0;    // survivors of one segment; only when segments > 1
  std::size_t workspace_bytes = 0;
};

TopkPlan make_plan(const TopkParams& p, TopkAlgorithm algorithm);

/// Runs a checked call. `workspace` has plan.workspace_bytes, 64-byte aligned.
void run_topk(const TopkParams& p, const TopkPlan& plan, void* workspace);

}  // namespace tamis::topk_cpu
