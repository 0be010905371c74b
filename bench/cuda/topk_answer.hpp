#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tamis/tensor.hpp"

namespace tamis::bench {

/// What topk() must write for one row of fp32, bf16 or fp16 scores in host memory: the positions of the k largest in
/// ascending order, then -1. Exact and fast enough for rows of a million, which the reference is not.
std::vector<std::int32_t> topk_answer(const std::byte* scores, DType dtype, std::int64_t width, std::int64_t k);

}  // namespace tamis::bench
