#pragma once

// Norm, rotation and Hadamard of one row in fp32: what rmsnorm(), rope() and hadamard() do to every row, for callers
// that hold a row already (compressor, indexer). SIMD with dispatch at run time; the same bits on every target, because
// sums are taken in a fixed order and FMA is emulated where the target has none. Nothing here checks or allocates.

#include <cstdint>

namespace tamis::ops {

/// Partial sums of squares. 32 of them are two AVX-512 or four AVX2 registers, enough to hide an addition's latency.
inline constexpr std::int64_t kPartialSums = 32;

/// partial[i % 32] += x[i]^2 in fp32, product and sum rounded separately. A row may come in pieces; every piece but the
/// last has a multiple of 32 elements.
void add_squares(const float* x, std::int64_t n, float* partial);

/// Adds the 32 partial sums by halves: l and l + 16, then l and l + 8, .. .
float sum_partials(const float* partial);

/// 1 / sqrt(sum_of_squares / n + eps), each step in fp32.
float rms_factor(float sum_of_squares, std::int64_t n, float eps);

/// y[i] = (x[i] * factor) * weight[i]. weight may be null (1); y may be x.
void scale_row(const float* x, const float* weight, std::int64_t n, float factor, float* y);

/// All of the above for one row: y[i] = x[i] * rms_factor(..) * weight[i].
void rmsnorm_row(const float* x, const float* weight, std::int64_t n, float eps, float* y);

/// Rotates 64 values in interleaved pairs: e' = fma(e, c, -(o*s)), o' = fma(o, c, e*s); inverse negates s.
/// @param cos_sin  One row of the table: 32 cosines, then 32 sines.
void rope_row(float* x, const float* cos_sin, bool inverse = false);

/// x = n^-0.5 * H x in Sylvester order: butterflies (a + b, a - b) with strides n/2 .. 1, then one multiply by
/// fp32(n^-0.5). n is a power of two.
void hadamard_row(float* x, std::int64_t n);

}  // namespace tamis::ops
