#include "topk/cpu/streaming.hpp"

#include "topk/cpu/ordering.hpp"

namespace tamis::topk_cpu {

std::size_t TopkAccumulator::workspace_bytes(std::int64_t k, std::int64_t max_count) {
  return candidates_bytes(k, max_count, false);
}

TopkAccumulator::TopkAccumulator(std::int64_t k, std::int64_t max_count, void* memory)
    : candidates_(make_candidates(k, max_count, false, kInfBits32, memory)) {}

std::int64_t TopkAccumulator::finish(TopkOrder order) {
  if (candidates_.count > candidates_.k) cut(candidates_);
  if (order == TopkOrder::kByValue) order_by_value(candidates_);
  return candidates_.count;
}

}  // namespace tamis::topk_cpu
