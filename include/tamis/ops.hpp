#pragma once

#include <cstdint>
#include <span>

#include "tamis/tensor.hpp"

namespace tamis {

/// y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension; fp32 arithmetic, one rounding to the output's
/// dtype.
/// @param x       [rows, n] fp32 or bf16; last dimension contiguous.
/// @param weight  [n] fp32; absent: 1.
/// @param y       [rows, n] fp32 or bf16; may be x itself.
/// The sum of squares is taken in a fixed order: a row's bits depend neither on the batch nor on the processor.
/// Does not allocate; runs on the calling thread, as rope() and hadamard() do.
/// @throws Error kInvalidArgument on shape or dtype mismatch.
void rmsnorm(ConstTensorView x, ConstTensorView weight, float eps, TensorView y);

/// YaRN parameters (S-1.3). factor <= 1 means plain rotary frequencies.
struct RopeScaling {
  double factor = 1.0;
  double original_max_positions = 65536.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
};

/// Frequencies of rotary pairs: out[i] = base^(-2i / (2 * out.size())), bent by YaRN where scaling.factor > 1.
/// @throws Error kInvalidArgument if base is not finite and > 0 (> 1 with YaRN), a YaRN parameter is not > 0, or the
/// span
///         is empty.
void rope_frequencies(double base, const RopeScaling& scaling, std::span<double> out);

/// Fills a cos/sin table: row p holds cos(p * f_i) in columns 0..n-1 and sin(p * f_i) in columns n..2n-1, computed in
/// double and rounded once to fp32. Uses the threads of the caller's TBB arena.
/// @param cos_sin  [max_positions, 2n] fp32, out, n = frequencies.size().
void rope_table(std::span<const double> frequencies, TensorView cos_sin);

/// Rotates the last 64 dims of each vector in interleaved pairs: e' = fma(e, c, -(o*s)), o' = fma(o, c, e*s) in fp32.
/// @param x          [tokens, heads, n] fp32 or bf16, in place; last dimension contiguous, n >= 64.
/// @param positions  [tokens] int64; a position outside the table leaves its token unchanged (padding).
/// @param cos_sin    [max_positions, 64] fp32.
/// @param inverse    Rotate back (sin negated).
/// @throws Error kInvalidArgument on shape or dtype mismatch.
void rope(TensorView x, ConstTensorView positions, ConstTensorView cos_sin, bool inverse = false);

/// Hadamard rotation in Sylvester order, y = n^-0.5 * H x, n a power of two up to 1024; fp32 butterfly with strides
/// n/2 .. 1, then one multiply. In place on each row.
/// @param x  [rows, n] fp32; last dimension contiguous.
/// @throws Error kInvalidArgument if n is not a power of two in [1, 1024].
void hadamard(TensorView x);

}  // namespace tamis
