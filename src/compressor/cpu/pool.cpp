// Pools the rows of one compressed entry, and saves state rows:
//   out[c] = sum_k exp(g_k[c] - max g[c]) * v_k[c] / sum_k exp(g_k[c] - max g[c])
// Work split: a tile of neighbouring channels at a time goes twice over the rows: the maximum, then exp and sums.
// Bound by:   C4 (8 rows): reading the rows from memory once. C128: exp, about 25 instructions for each vector.
// Definition: compressor/reference.hpp.

#include "compressor/cpu/pool.hpp"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compressor/cpu/pool.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which defines what it needs.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tamis::compressor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of a tile. Four give each row four independent chains through exp and, with AVX-512, whole 256-byte reads;
// the maxima and the two sums are then 12 registers.
constexpr int kTileVectors = 4;

using Float32 = float;
using BFloat16 = std::uint16_t;

template <class D>
using Vec = hn::Vec<D>;

template <class D>
HWY_INLINE Vec<D> load(D d, const std::byte* row, std::int64_t c, Float32 /*dtype*/) {
  return hn::LoadU(d, reinterpret_cast<const float*>(row) + c);
}
template <class D>
HWY_INLINE Vec<D> load(D d, const std::byte* row, std::int64_t c, BFloat16 /*dtype*/) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(row) + c));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

// bf16 bits of a value in the low half of each lane: nearest even, NaN kept quiet, as core::float_to_bf16.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> bf16_bits(D /*d*/, Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF))));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Or(high, hn::Set(du, 0x40)), rounded);
}

template <class D>
HWY_INLINE Vec<D> round_to(D /*d*/, Vec<D> x, Float32 /*dtype*/) {
  return x;
}
template <class D>
HWY_INLINE Vec<D> round_to(D d, Vec<D> x, BFloat16 /*dtype*/) {
  return hn::BitCast(d, hn::ShiftLeft<16>(bf16_bits(d, x)));
}

template <class D>
HWY_INLINE void store(D d, Vec<D> x, std::byte* row, std::int64_t c, Float32 /*dtype*/) {
  hn::StoreU(x, d, reinterpret_cast<float*>(row) + c);
}
template <class D>
HWY_INLINE void store(D d, Vec<D> x, std::byte* row, std::int64_t c, BFloat16 /*dtype*/) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToSigned<D> di;
  // The lanes are below 2^16, so the saturation of DemoteTo never acts.
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bf16_bits(d, x))), d16, reinterpret_cast<std::uint16_t*>(row) + c);
}

// exp(x) for x <= 0, to 1.4 * 2^-24 relative (measured over [-86, 0]); 0 below -86, where a weight against the largest
// weight of 1 is below 2^-124; NaN for NaN. x = n * ln 2 + r with |r| <= ln 2 / 2 and exp(r) = 1 + r + r^2 * q(r); q
// interpolates at the Chebyshev points of degree 4, which leaves 2^-26.
template <class D>
HWY_INLINE Vec<D> exp_not_positive(D d, Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  const auto magic = hn::Set(d, 0x1.8p23F);
  const auto shifted = hn::Add(hn::Mul(x, hn::Set(d, 0x1.715476p+0F)), magic);
  const auto n = hn::Sub(shifted, magic);
  // ln 2 in two parts; the first has 9 bits, so n times it is exact.
  const auto r = hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(d, 0.693359375F))), hn::Mul(n, hn::Set(d, -0x1.bd0106p-13F)));
  auto q = hn::Set(d, 0x1.6d113cp-10F);
  q = hn::Add(hn::Mul(q, r), hn::Set(d, 0x1.120ba2p-7F));
  q = hn::Add(hn::Mul(q, r), hn::Set(d, 0x1.55551ap-5F));
  q = hn::Add(hn::Mul(q, r), hn::Set(d, 0x1.5554dcp-3F));
  q = hn::Add(hn::Mul(q, r), hn::Set(d, 0.5F));
  const auto exp_r = hn::Add(hn::Add(hn::Mul(q, hn::Mul(r, r)), r), hn::Set(d, 1.0F));
  const auto two_n =
      hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, shifted)), hn::Set(du, std::uint32_t{127} << 23)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -86.0F)), hn::Mul(exp_r, two_n));
}

template <class D, typename TState>
HWY_INLINE Vec<D> state_gate(D d, const PoolRow& row, std::int64_t c, TState state) {
  return load(d, row.gate, c, state);
}
template <class D, typename TInput, typename TState>
HWY_INLINE Vec<D> input_gate(D d, const std::byte* gate, const float* bias, std::int64_t c, TInput input,
                             TState state) {
  return round_to(d, hn::Add(load(d, gate, c, input), hn::LoadU(d, bias + c)), state);
}

template <int kVectors, class D, typename TInput, typename TState>
HWY_INLINE void pool_tile(D d, const PoolWindow& w, std::int64_t c, float* out, TInput input, TState state) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  // 1. The largest gate of each channel. Should one be NaN, its weight below is NaN whatever the maximum became.
  Vec<D> largest[kVectors];
  for (int v = 0; v < kVectors; ++v) largest[v] = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::int64_t k = 0; k < w.state_rows; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      largest[v] = hn::Max(largest[v], state_gate(d, w.rows[k], c + v * lanes, state));
    }
  }
  for (std::int64_t k = w.state_rows; k < w.all_rows; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      largest[v] = hn::Max(largest[v], input_gate(d, w.rows[k].gate, w.rows[k].bias, c + v * lanes, input, state));
    }
  }
  // 2. Weights and the two sums, in the order of positions.
  Vec<D> weights[kVectors];
  Vec<D> sums[kVectors];
  for (int v = 0; v < kVectors; ++v) weights[v] = sums[v] = hn::Zero(d);
  for (std::int64_t k = 0; k < w.state_rows; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t at = c + v * lanes;
      const auto weight = exp_not_positive(d, hn::Sub(state_gate(d, w.rows[k], at, state), largest[v]));
      weights[v] = hn::Add(weights[v], weight);
      sums[v] = hn::Add(sums[v], hn::Mul(weight, load(d, w.rows[k].value, at, state)));
    }
  }
  for (std::int64_t k = w.state_rows; k < w.all_rows; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t at = c + v * lanes;
      const auto gate = input_gate(d, w.rows[k].gate, w.rows[k].bias, at, input, state);
      const auto weight = exp_not_positive(d, hn::Sub(gate, largest[v]));
      weights[v] = hn::Add(weights[v], weight);
      sums[v] = hn::Add(sums[v], hn::Mul(weight, round_to(d, load(d, w.rows[k].value, at, input), state)));
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(hn::Div(sums[v], weights[v]), d, out + c + v * lanes);
}

template <typename TInput, typename TState>
void pool_range(const PoolWindow& w, std::int64_t c, std::int64_t end, float* out, TInput input, TState state) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (; c + kTileVectors * lanes <= end; c += kTileVectors * lanes) {
    pool_tile<kTileVectors>(d, w, c, out, input, state);
  }
  for (; c + lanes <= end; c += lanes) pool_tile<1>(d, w, c, out, input, state);
  for (; c < end; ++c) pool_tile<1>(one, w, c, out, input, state);
}

template <class D, typename TInput, typename TState>
HWY_INLINE void save_vector(D d, const std::byte* value, const std::byte* gate, const float* bias, std::int64_t width,
                            std::int64_t c, std::byte* row, TInput input, TState state) {
  store(d, load(d, value, c, input), row, c, state);
  store(d, hn::Add(load(d, gate, c, input), hn::LoadU(d, bias + c)), row, width + c, state);
}

template <typename TInput, typename TState>
void save_range(const std::byte* value, const std::byte* gate, const float* bias, std::int64_t width, std::byte* row,
                TInput input, TState state) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t c = 0;
  for (; c + lanes <= width; c += lanes) save_vector(d, value, gate, bias, width, c, row, input, state);
  for (; c < width; ++c) save_vector(one, value, gate, bias, width, c, row, input, state);
}

void pool_channels_target(const PoolWindow& w, std::int64_t begin, std::int64_t end, float* out) {
  const bool input16 = w.input_dtype == DType::kBFloat16;
  const bool state16 = w.state_dtype == DType::kBFloat16;
  if (input16 && state16) pool_range(w, begin, end, out, BFloat16{}, BFloat16{});
  else if (input16) pool_range(w, begin, end, out, BFloat16{}, Float32{});
  else if (state16) pool_range(w, begin, end, out, Float32{}, BFloat16{});
  else pool_range(w, begin, end, out, Float32{}, Float32{});
}

void save_row_target(const std::byte* value, const std::byte* gate, const float* bias, std::int64_t width,
                     DType input_dtype, DType state_dtype, std::byte* row) {
  const bool input16 = input_dtype == DType::kBFloat16;
  const bool state16 = state_dtype == DType::kBFloat16;
  if (input16 && state16) save_range(value, gate, bias, width, row, BFloat16{}, BFloat16{});
  else if (input16) save_range(value, gate, bias, width, row, BFloat16{}, Float32{});
  else if (state16) save_range(value, gate, bias, width, row, Float32{}, BFloat16{});
  else save_range(value, gate, bias, width, row, Float32{}, Float32{});
}

}  // namespace HWY_NAMESPACE
}  // namespace tamis::compressor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::compressor {

HWY_EXPORT(pool_channels_target);
HWY_EXPORT(save_row_target);

void pool_channels(const PoolWindow& window, std::int64_t begin, std::int64_t end, float* out) {
  HWY_DYNAMIC_DISPATCH(pool_channels_target)(window, begin, end, out);
}

void save_row(const std::byte* value, const std::byte* gate, const float* bias, std::int64_t width, DType input_dtype,
              DType state_dtype, std::byte* row) {
  HWY_DYNAMIC_DISPATCH(save_row_target)(value, gate, bias, width, input_dtype, state_dtype, row);
}

}  // namespace tamis::compressor
#endif
