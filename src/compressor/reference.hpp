#pragma once

// The definition of the compressor (S-3), in double, from the formulas: what an entry is, given every row of its
// request. Knows nothing of steps, chunks, state or caches, which is the point: they must not show.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/float_formats.hpp"
#include "tamis/tensor.hpp"

namespace tamis::compressor {

/// The rows of one request as the state keeps them, position by position: values and gates (bias added), coff * d each.
struct ReferenceRows {
  std::int64_t width = 0;
  std::vector<float> values;  // [positions * width]
  std::vector<float> gates;   // [positions * width]
};

/// One number of a state row: fp32 arithmetic, then the state's dtype.
inline float reference_state_value(float value, DType state_dtype) {
  return state_dtype == DType::kBFloat16 ? core::round_to_bf16(value) : value;
}

struct ReferenceParams {
  std::int64_t ratio = 0;
  bool overlap = false;
  std::int64_t head_dim = 0;
  std::int64_t rope_dims = 64;         // the last dims of an entry; their pairs rotate
  const float* norm_weight = nullptr;  // [head_dim]
  double rms_norm_eps = 1e-6;
  const float* cos_sin = nullptr;  // [positions, rope_dims]: cosines, then sines
  std::int64_t cos_sin_stride = 64;
  bool hadamard = false;
  bool round_before_hadamard = false;  // to bf16: every layout but fp32
};

/// An entry with a bound on what fp32 arithmetic may be off, channel by channel.
struct ReferenceEntry {
  std::vector<double> pooled;
  std::vector<double> value;
  std::vector<double> bound;
};

/// Entry j of a request: pools positions jR .. jR + R - 1 (own half), with overlap also the R before (half A, absent
/// for j = 0), then norm, RoPE at jR, Hadamard.
///
/// The bound. Let u = 2^-24 and A = sum w |v|. A weight is exp of a difference rounded once (relative error |x| u of
/// exp(x), weighted at most u / e, counted as u) to 2 u; the product adds u, sums of L terms (L - 1) u each, the
/// division u: |P' - P| <= (2 L + 8) u A, the weights counting once above and once below the fraction line. The norm
/// divides by a root of which the mean of squares is off by twice the relative error of P (Cauchy-Schwarz) and the
/// rounding of a sum of d terms ((d + 4) u covers any order); half of that remains. Rotation adds two products and a
/// sum: 3 u. Hadamard sums n terms in log2 n steps. Rounding to bf16 before it may fall to the other side: one bf16
/// step, 2^-7 relative.
inline ReferenceEntry reference_entry(const ReferenceParams& p, const ReferenceRows& rows, std::int64_t j) {
  constexpr double u = 0x1p-24;
  const std::int64_t d = p.head_dim;
  const std::int64_t group = j * p.ratio;
  const std::int64_t first = p.overlap && j > 0 ? group - p.ratio : group;
  const auto n = static_cast<std::size_t>(d);
  ReferenceEntry e{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  double squares = 0;
  double bound_squares = 0;
  for (std::int64_t c = 0; c < d; ++c) {
    const auto at = [&](std::int64_t t) {
      return static_cast<std::size_t>(t * rows.width + (p.overlap && t >= group ? d : 0) + c);
    };
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t t = first; t < group + p.ratio; ++t) {
      largest = std::max(largest, static_cast<double>(rows.gates[at(t)]));
    }
    double weights = 0;
    double sum = 0;
    double magnitude = 0;
    for (std::int64_t t = first; t < group + p.ratio; ++t) {
      const double weight = std::exp(static_cast<double>(rows.gates[at(t)]) - largest);
      const double value = rows.values[at(t)];
      weights += weight;
      sum += weight * value;
      magnitude += weight * std::abs(value);
    }
    const auto i = static_cast<std::size_t>(c);
    e.pooled[i] = sum / weights;
    e.bound[i] = static_cast<double>(2 * (group + p.ratio - first) + 8) * u * magnitude / weights;
    squares += e.pooled[i] * e.pooled[i];
    bound_squares += e.bound[i] * e.bound[i];
  }
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(d) + p.rms_norm_eps);
  const double factor_error =
      (squares > 0 ? std::sqrt(bound_squares / squares) : 0.0) + 0.5 * static_cast<double>(d + 4) * u + 3 * u;
  for (std::int64_t c = 0; c < d; ++c) {
    const auto i = static_cast<std::size_t>(c);
    const double scale = factor * static_cast<double>(p.norm_weight[c]);
    e.value[i] = e.pooled[i] * scale;
    e.bound[i] = e.bound[i] * std::abs(scale) + std::abs(e.value[i]) * factor_error;
  }
  for (std::int64_t i = 0; i < p.rope_dims / 2; ++i) {
    const auto even = static_cast<std::size_t>(d - p.rope_dims + 2 * i);
    const double cos = p.cos_sin[group * p.cos_sin_stride + i];
    const double sin = p.cos_sin[group * p.cos_sin_stride + p.rope_dims / 2 + i];
    const double a = e.value[even];
    const double b = e.value[even + 1];
    const double off = e.bound[even] + e.bound[even + 1] + 3 * u * (std::abs(a) + std::abs(b));
    e.value[even] = a * cos - b * sin;
    e.value[even + 1] = b * cos + a * sin;
    e.bound[even] = e.bound[even + 1] = off;
  }
  if (!p.hadamard) return e;
  std::vector<double> in = e.value;
  double total = 0;
  double total_bound = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (p.round_before_hadamard) {
      in[i] = core::round_to_bf16(static_cast<float>(in[i]));
      e.bound[i] += std::abs(in[i]) * 0x1p-7;
    }
    total += std::abs(in[i]);
    total_bound += e.bound[i];
  }
  const double root = std::sqrt(static_cast<double>(d));
  for (std::size_t a = 0; a < n; ++a) {
    double sum = 0;
    for (std::size_t b = 0; b < n; ++b) sum += (std::popcount(a & b) % 2 == 0 ? in[b] : -in[b]);
    e.value[a] = sum / root;
    e.bound[a] = (total_bound + 12 * u * total) / root;  // log2 n <= 10 additions, the factor and its rounding
  }
  return e;
}

}  // namespace tamis::compressor
