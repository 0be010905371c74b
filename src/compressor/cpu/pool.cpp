// Pools the rows of one compressed entry, and saves state rows:
//   out[c] = sum_k exp(g_k[c] - max g[c]) * v_k[c] / sum_k exp(g_k[c] - max g[c])
// Work split: up to kSumRows rows (C4) are pooled a vector of channels at a time, everything read once. More rows
//             (C128) take two passes over blocks of rows, each row read from end to end: rows are a multiple of 4 KiB
//             apart, and a tall narrow tile of them would fall into a few sets of the L1 cache and defeat prefetching.
// Bound by:   memory where the rows come from there; else by exp, 14 instructions a vector.
// Definition: compressor/reference.hpp.

#include "compressor/cpu/pool.hpp"

#include <algorithm>
#include <cmath>
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

// a * b + c, rounded once. Targets without the instruction take it lane by lane, so that all have the same bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused(D d, V a, V b, V c) {
#if !HWY_NATIVE_FMA
  HWY_ALIGN float lanes[3][hn::MaxLanes(d)];
  hn::Store(a, d, lanes[0]);
  hn::Store(b, d, lanes[1]);
  hn::Store(c, d, lanes[2]);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[0][i] = std::fma(lanes[0][i], lanes[1][i], lanes[2][i]);
  return hn::Load(d, lanes[0]);
#else
  static_cast<void>(d);
  return hn::MulAdd(a, b, c);
#endif
}

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

// kStream: past the caches; the address is then a multiple of the vector's size.
template <bool kStream, class D>
HWY_INLINE void store(D d, Vec<D> x, std::byte* row, std::int64_t c, Float32 /*dtype*/) {
  float* to = reinterpret_cast<float*>(row) + c;
  if constexpr (kStream) hn::Stream(x, d, to);
  else hn::StoreU(x, d, to);
}
template <bool kStream, class D>
HWY_INLINE void store(D d, Vec<D> x, std::byte* row, std::int64_t c, BFloat16 /*dtype*/) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToSigned<D> di;
  // The lanes are below 2^16, so the saturation of DemoteTo never acts.
  const auto bits = hn::DemoteTo(d16, hn::BitCast(di, bf16_bits(d, x)));
  std::uint16_t* to = reinterpret_cast<std::uint16_t*>(row) + c;
  if constexpr (kStream) hn::Stream(bits, d16, to);
  else hn::StoreU(bits, d16, to);
}

// exp(x) for x <= 0, to 1.4 * 2^-24 relative (measured over [-86, 0]); 0 below -86, where a weight against the largest
// weight of 1 is below 2^-124; NaN for NaN. x = n * ln 2 + r with |r| <= ln 2 / 2 and exp(r) = 1 + r + r^2 * q(r); q
// interpolates at the Chebyshev points of degree 4, which leaves 2^-26.
template <class D>
HWY_INLINE Vec<D> exp_not_positive(D d, Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto one = hn::Set(d, 1.0F);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  const auto magic = hn::Set(d, 0x1.8p23F);
  const auto shifted = fused(d, x, hn::Set(d, 0x1.715476p+0F), magic);
  const auto n = hn::Sub(shifted, magic);
  // ln 2 in two parts.
  const auto r = fused(d, n, hn::Set(d, 0x1.bd0106p-13F), fused(d, n, hn::Set(d, -0.693359375F), x));
  auto q = fused(d, hn::Set(d, 0x1.6d113cp-10F), r, hn::Set(d, 0x1.120ba2p-7F));
  q = fused(d, q, r, hn::Set(d, 0x1.55551ap-5F));
  q = fused(d, q, r, hn::Set(d, 0x1.5554dcp-3F));
  q = fused(d, q, r, hn::Set(d, 0.5F));
  const auto exp_r = fused(d, fused(d, q, r, one), r, one);
  const auto two_n =
      hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, shifted)), hn::Set(du, std::uint32_t{127} << 23)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -86.0F)), hn::Mul(exp_r, two_n));
}

// Gate and value of row k, as they count: a row of the inputs is rounded as if it had been saved and read back.
template <class D, typename TInput, typename TState>
HWY_INLINE Vec<D> gate_of(D d, const PoolWindow& w, std::int64_t k, std::int64_t c, TInput input, TState state) {
  const PoolRow& row = w.rows[k];
  if (k < w.state_rows) return load(d, row.gate, c, state);
  return round_to(d, hn::Add(load(d, row.gate, c, input), hn::LoadU(d, row.bias + c)), state);
}
template <class D, typename TInput, typename TState>
HWY_INLINE Vec<D> value_of(D d, const PoolWindow& w, std::int64_t k, std::int64_t c, TInput input, TState state) {
  if (k < w.state_rows) return load(d, w.rows[k].value, c, state);
  return round_to(d, load(d, w.rows[k].value, c, input), state);
}

// A window of at most kSumRows rows. Should a gate be NaN, its weight is NaN whatever the maximum becomes.
template <class D, typename TInput, typename TState>
void pool_few_rows(D d, const PoolWindow& w, std::int64_t begin, std::int64_t end, float* out, TInput input,
                   TState state) {
  for (std::int64_t c = begin; c < end; c += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec<D> gates[kSumRows];
    auto largest = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (std::int64_t k = 0; k < w.all_rows; ++k) {
      if (w.rows[k].value == nullptr) continue;
      gates[k] = gate_of(d, w, k, c, input, state);
      largest = hn::Max(largest, gates[k]);
    }
    auto weights = hn::Zero(d);
    auto sums = hn::Zero(d);
    for (std::int64_t k = 0; k < w.all_rows; ++k) {
      if (w.rows[k].value == nullptr) continue;
      const auto weight = exp_not_positive(d, hn::Sub(gates[k], largest));
      weights = hn::Add(weights, weight);
      sums = fused(d, weight, value_of(d, w, k, c, input, state), sums);
    }
    // As more blocks are: 0 is added to the one there is, which makes -0 (of products that are too small) +0.
    hn::StoreU(hn::Div(hn::Add(hn::Zero(d), sums), weights), d, out + c);
  }
}

template <class D, typename TInput, typename TState>
void pool_many_rows(D d, const PoolWindow& w, std::int64_t begin, std::int64_t end, float* largest, float* weights,
                    float* out, TInput input, TState state) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t c = begin; c < end; c += lanes) {
    hn::StoreU(hn::Set(d, -std::numeric_limits<float>::infinity()), d, largest + c);
    hn::StoreU(hn::Zero(d), d, weights + c);
    hn::StoreU(hn::Zero(d), d, out + c);
  }
  // 1. The largest gate of each channel.
  for (std::int64_t first = 0; first < w.all_rows; first += kSumRows) {
    const std::int64_t last = std::min(w.all_rows, first + kSumRows);
    for (std::int64_t c = begin; c < end; c += lanes) {
      auto most = hn::LoadU(d, largest + c);
      for (std::int64_t k = first; k < last; ++k) {
        if (w.rows[k].value != nullptr) most = hn::Max(most, gate_of(d, w, k, c, input, state));
      }
      hn::StoreU(most, d, largest + c);
    }
  }
  // 2. Weights and the two sums, block by block; the gates come from L2 this time.
  for (std::int64_t first = 0; first < w.all_rows; first += kSumRows) {
    const std::int64_t last = std::min(w.all_rows, first + kSumRows);
    for (std::int64_t c = begin; c < end; c += lanes) {
      const auto most = hn::LoadU(d, largest + c);
      auto sum_weights = hn::Zero(d);
      auto sums = hn::Zero(d);
      for (std::int64_t k = first; k < last; ++k) {
        if (w.rows[k].value == nullptr) continue;
        const auto weight = exp_not_positive(d, hn::Sub(gate_of(d, w, k, c, input, state), most));
        sum_weights = hn::Add(sum_weights, weight);
        sums = fused(d, weight, value_of(d, w, k, c, input, state), sums);
      }
      hn::StoreU(hn::Add(hn::LoadU(d, weights + c), sum_weights), d, weights + c);
      hn::StoreU(hn::Add(hn::LoadU(d, out + c), sums), d, out + c);
    }
  }
  for (std::int64_t c = begin; c < end; c += lanes) {
    hn::StoreU(hn::Div(hn::LoadU(d, out + c), hn::LoadU(d, weights + c)), d, out + c);
  }
}

template <typename TInput, typename TState>
void pool_range(const PoolWindow& w, std::int64_t channels, float* scratch, float* out, TInput input, TState state) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const std::int64_t whole = channels - channels % static_cast<std::int64_t>(hn::Lanes(d));
  if (w.all_rows <= kSumRows) {
    pool_few_rows(d, w, 0, whole, out, input, state);
    pool_few_rows(one, w, whole, channels, out, input, state);
  } else {
    float* weights = scratch + channels;
    pool_many_rows(d, w, 0, whole, scratch, weights, out, input, state);
    pool_many_rows(one, w, whole, channels, scratch, weights, out, input, state);
  }
}

template <bool kStream, class D, typename TInput, typename TState>
HWY_INLINE void save_channels(D d, const SaveRow& r, std::int64_t begin, std::int64_t end, TInput input, TState state) {
  // Values first, then gates: two runs of ascending addresses, of which streaming stores fill whole lines.
  for (std::int64_t c = begin; c < end; c += static_cast<std::int64_t>(hn::Lanes(d))) {
    store<kStream>(d, load(d, r.value, c, input), r.row, c, state);
  }
  for (std::int64_t c = begin; c < end; c += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto gate = hn::Add(load(d, r.gate, c, input), hn::LoadU(d, r.bias + c));
    store<kStream>(d, gate, r.row, r.width + c, state);
  }
}

template <typename TInput, typename TState>
void save_range(const SaveRow& r, TInput input, TState state) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const std::int64_t whole = r.width - r.width % static_cast<std::int64_t>(hn::Lanes(d));
  const bool aligned = reinterpret_cast<std::uintptr_t>(r.row) % 64 == 0 &&
                       r.width * static_cast<std::int64_t>(sizeof(TState)) % 64 == 0;
  if (r.stream && aligned) save_channels<true>(d, r, 0, whole, input, state);
  else save_channels<false>(d, r, 0, whole, input, state);
  save_channels<false>(one, r, whole, r.width, input, state);
}

void pool_channels_target(const PoolWindow& w, std::int64_t channels, float* scratch, float* out) {
  const bool input16 = w.input_dtype == DType::kBFloat16;
  const bool state16 = w.state_dtype == DType::kBFloat16;
  if (input16 && state16) pool_range(w, channels, scratch, out, BFloat16{}, BFloat16{});
  else if (input16) pool_range(w, channels, scratch, out, BFloat16{}, Float32{});
  else if (state16) pool_range(w, channels, scratch, out, Float32{}, BFloat16{});
  else pool_range(w, channels, scratch, out, Float32{}, Float32{});
}

void save_row_target(const SaveRow& r) {
  const bool input16 = r.input_dtype == DType::kBFloat16;
  const bool state16 = r.state_dtype == DType::kBFloat16;
  if (input16 && state16) save_range(r, BFloat16{}, BFloat16{});
  else if (input16) save_range(r, BFloat16{}, Float32{});
  else if (state16) save_range(r, Float32{}, BFloat16{});
  else save_range(r, Float32{}, Float32{});
}

}  // namespace HWY_NAMESPACE
}  // namespace tamis::compressor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <hwy/cache_control.h>

namespace tamis::compressor {

HWY_EXPORT(pool_channels_target);
HWY_EXPORT(save_row_target);

void pool_channels(const PoolWindow& window, std::int64_t channels, float* scratch, float* out) {
  HWY_DYNAMIC_DISPATCH(pool_channels_target)(window, channels, scratch, out);
}

void save_row(const SaveRow& r) { HWY_DYNAMIC_DISPATCH(save_row_target)(r); }

void finish_streaming() { hwy::FlushStream(); }

}  // namespace tamis::compressor
#endif
