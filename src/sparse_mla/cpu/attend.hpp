#pragma once

#include <cstdint>

#include "sparse_mla/params.hpp"

namespace tamis::sparse_mla_detail {

/// Attends with heads [head_begin, head_end) of one row and writes their outputs.
/// @param scratch  Scratch(heads, p.head_dim_qk).size floats for heads >= head_end - head_begin, 64-byte aligned;
///                 contents may be anything.
/// A head's bits depend on its query, its sink and the row's valid keys in list order; not on the range of heads, and
/// they are the same on every target with fused multiply-add (AVX2, AVX-512, NEON).
void attend_row(const SparseMlaParams& p, std::int64_t row, std::int64_t head_begin, std::int64_t head_end,
                float* scratch);

/// y[i] = exp(x[i]) as the weights are computed: x <= 0, below -87 gives 0, NaN stays NaN. Within 1 ulp, or 1.25
/// where there is no fused multiply-add. For tests.
/// @param n  A multiple of 16.
void exp_of_weights(const float* x, float* y, std::int64_t n);

}  // namespace tamis::sparse_mla_detail
