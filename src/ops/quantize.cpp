// Rows to and from their storage formats. Bound by: instructions, about a dozen for each register of fp8 values; the
// bytes of an entry fit in L1. Definition: the scalar conversions of core/float_formats.hpp and S-5.
#include "ops/quantize.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/float_formats.hpp"
#include "ops/layouts.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it chooses the target that highway.h then defines.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tamis::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;  // 16 divides every tile
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using D16 = hn::Rebind<std::uint16_t, DF>;
using D8 = hn::Rebind<std::uint8_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

constexpr std::int32_t kMagnitudeMask = 0x7FFFFFFF;
constexpr std::int32_t kInfinityBits = 0x7F800000;

// Cache memory has any alignment: a pool is bytes to its owner. Numbers wider than a byte go through these.
HWY_INLINE hn::Vec<D16> LoadU16(const std::uint8_t* bytes) {
#if HWY_TARGET == HWY_SCALAR
  std::uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return hn::Set(D16(), value);
#else
  return hn::BitCast(D16(), hn::LoadU(hn::Repartition<std::uint8_t, D16>(), bytes));
#endif
}

HWY_INLINE void StoreU16(hn::Vec<D16> v, std::uint8_t* bytes) {
#if HWY_TARGET == HWY_SCALAR
  const std::uint16_t value = hn::GetLane(v);
  std::memcpy(bytes, &value, sizeof value);
#else
  const hn::Repartition<std::uint8_t, D16> d;
  hn::StoreU(hn::BitCast(d, v), d, bytes);
#endif
}

// e4m3 to fp32. The code's exponent and mantissa move to those of fp32 and the bias changes from 7 to 127. A subnormal
// code m is made as 2^-6 * (1 + m/8) - 2^-6, which is exact and never touches a subnormal fp32 number (slow on many
// processors).
HWY_INLINE VF FloatFromE4m3(const std::uint8_t* codes) {
  const DF df;
  const DI di;
  const auto code = hn::PromoteTo(di, hn::LoadU(D8(), codes));
  const auto magnitude = hn::ShiftLeft<20>(hn::And(code, hn::Set(di, 0x7F)));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)));
  const auto is_small = hn::Lt(magnitude, hn::Set(di, 8 << 20));
  const auto bias = hn::IfThenElse(is_small, hn::Set(di, 121 << 23), hn::Set(di, 120 << 23));
  auto value = hn::BitCast(df, hn::Add(magnitude, bias));
  value = hn::Sub(value, hn::IfThenElseZero(hn::RebindMask(df, is_small), hn::Set(df, 0x1p-6F)));
  const auto is_nan = hn::RebindMask(df, hn::Eq(magnitude, hn::Set(di, 0x7F << 20)));
  value = hn::IfThenElse(is_nan, hn::BitCast(df, hn::Set(di, 0x7FC00000)), value);
  return hn::Or(value, hn::BitCast(df, sign));
}

// fp32 to e4m3, as core::float_to_e4m3().
HWY_INLINE void E4m3FromFloat(VF x, std::uint8_t* codes) {
  const DF df;
  const DI di;
  const auto bits = hn::BitCast(di, x);
  const auto magnitude = hn::And(bits, hn::Set(di, kMagnitudeMask));
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(di, 1));
  auto code = hn::ShiftRight<20>(hn::Add(hn::Sub(magnitude, hn::Set(di, 0x3C000000 - 0x7FFFF)), odd));
  const auto shifted = hn::BitCast(di, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0x1p14F)));
  code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x3C800000)), hn::Sub(shifted, hn::Set(di, 0x46800000)), code);
  code = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x43DFFFFF)), hn::Set(di, 0x7E), code);
  code = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, kInfinityBits)), hn::Set(di, 0x7F), code);
  code = hn::Or(code, hn::And(hn::ShiftRight<24>(bits), hn::Set(di, 0x80)));
  hn::StoreU(hn::DemoteTo(D8(), code), D8(), codes);
}

// Bits of x rounded to bf16, still in the upper half of each lane; as core::float_to_bf16().
HWY_INLINE hn::Vec<DU> RoundToBf16(VF x) {
  const DI di;
  const DU du;
  const auto bits = hn::BitCast(du, x);
  const auto magnitude = hn::And(hn::BitCast(di, x), hn::Set(di, kMagnitudeMask));
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFU)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000U));
  const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, kInfinityBits)));
  return hn::And(hn::IfThenElse(is_nan, quiet, rounded), hn::Set(du, 0xFFFF0000U));
}

void RoundRowToBf16(float* x, std::int64_t n) {
  const DF df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::BitCast(df, RoundToBf16(hn::LoadU(df, x + i))), df, x + i);
  for (; i < n; ++i) x[i] = core::round_to_bf16(x[i]);
}

void LoadBf16(const std::uint8_t* in, std::int64_t n, float* out) {
  const DF df;
  const DU du;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, LoadU16(in + 2 * i)));
    hn::StoreU(hn::BitCast(df, bits), df, out + i);
  }
  for (; i < n; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof bits);
    out[i] = core::bf16_to_float(bits);
  }
}

void StoreBf16(const float* in, std::int64_t n, std::uint8_t* out) {
  const DF df;
  const DI di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::ShiftRight<16>(RoundToBf16(hn::LoadU(df, in + i)));
    StoreU16(hn::DemoteTo(D16(), hn::BitCast(di, bits)), out + 2 * i);
  }
  for (; i < n; ++i) {
    const std::uint16_t bits = core::float_to_bf16(in[i]);
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  }
}

// Largest magnitude that is not NaN, of a whole number of registers. Magnitudes of floats order like their bits.
HWY_INLINE float LargestMagnitude(const float* x, std::int64_t n) {
  const DF df;
  const DI di;
  auto largest = hn::Zero(di);
  for (std::int64_t i = 0; i < n; i += static_cast<std::int64_t>(hn::Lanes(df))) {
    const auto magnitude = hn::And(hn::BitCast(di, hn::LoadU(df, x + i)), hn::Set(di, kMagnitudeMask));
    const auto is_nan = hn::Gt(magnitude, hn::Set(di, kInfinityBits));
    largest = hn::Max(largest, hn::IfThenZeroElse(is_nan, magnitude));
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

int QuantizeFp8(const float* x, std::int64_t n, float amax_floor, std::uint8_t* codes) {
  const DF df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  const std::int64_t whole = n - n % lanes;
  float amax = std::max(LargestMagnitude(x, whole), amax_floor);
  for (std::int64_t i = whole; i < n; ++i) amax = std::max(amax, std::fabs(x[i]));  // keeps amax where x[i] is NaN
  const int e = fp8_exponent(amax);
  const float factor = core::exp2_int(-e);
  const auto factors = hn::Set(df, factor);
  for (std::int64_t i = 0; i < whole; i += lanes) {
    E4m3FromFloat(hn::Mul(hn::LoadU(df, x + i), factors), codes + i);
  }
  for (std::int64_t i = whole; i < n; ++i) codes[i] = core::float_to_e4m3(x[i] * factor);
  return e;
}

// Decodes a whole number of registers. Inlined where an entry is read, so that the constants are loaded once an entry
// and not once a tile.
HWY_INLINE void DecodeFp8(const std::uint8_t* codes, std::int64_t n, float scale, float* out) {
  const DF df;
  const auto scales = hn::Set(df, scale);
  for (std::int64_t i = 0; i < n; i += static_cast<std::int64_t>(hn::Lanes(df))) {
    hn::StoreU(hn::Mul(FloatFromE4m3(codes + i), scales), df, out + i);
  }
}

void DequantizeFp8(const std::uint8_t* codes, std::int64_t n, float scale, float* out) {
  const std::int64_t whole = n - n % static_cast<std::int64_t>(hn::Lanes(DF()));
  DecodeFp8(codes, whole, scale, out);
  for (std::int64_t i = whole; i < n; ++i) out[i] = core::e4m3_to_float(codes[i]) * scale;
}

std::uint8_t QuantizeMxfp4Block(const float* x, std::uint8_t* packed) {
  const DF df;
  const DI di;
  const int e = mxfp4_exponent(std::max(LargestMagnitude(x, kMxfp4Block), kMxfp4AmaxFloor));
  const auto factors = hn::Set(df, core::exp2_int(-e));
  const auto one = hn::Set(di, 1);
  const auto step = [&](hn::Mask<DF> reached) { return hn::IfThenElseZero(hn::RebindMask(di, reached), one); };
  std::uint8_t codes[kMxfp4Block];
  for (std::size_t i = 0; i < kMxfp4Block; i += hn::Lanes(df)) {
    const auto value = hn::Mul(hn::LoadU(df, x + i), factors);
    const auto magnitude = hn::Abs(value);
    // The code is the number of midpoints passed. A midpoint itself goes to the even code: > before an odd code, >=
    // before an even one.
    auto code = step(hn::Gt(magnitude, hn::Set(df, 0.25F)));
    code = hn::Add(code, step(hn::Ge(magnitude, hn::Set(df, 0.75F))));
    code = hn::Add(code, step(hn::Gt(magnitude, hn::Set(df, 1.25F))));
    code = hn::Add(code, step(hn::Ge(magnitude, hn::Set(df, 1.75F))));
    code = hn::Add(code, step(hn::Gt(magnitude, hn::Set(df, 2.5F))));
    code = hn::Add(code, step(hn::Ge(magnitude, hn::Set(df, 3.5F))));
    // Written this way round, NaN becomes 6 as in core::float_to_e2m1().
    const auto at_most_5 = hn::RebindMask(di, hn::Le(magnitude, hn::Set(df, 5.0F)));
    code = hn::IfThenElse(at_most_5, code, hn::Set(di, 7));
    const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(di, value)), hn::Set(di, 8));
    hn::StoreU(hn::DemoteTo(D8(), hn::Or(code, sign)), D8(), codes + i);
  }
  for (std::size_t i = 0; i < kMxfp4Block / 2; ++i) {
    packed[i] = static_cast<std::uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
  return static_cast<std::uint8_t>(e + 127);
}

void DequantizeMxfp4Block(const std::uint8_t* packed, std::uint8_t scale, float* out) {
  const DF df;
  const DI di;
  std::uint8_t codes[kMxfp4Block];
  for (std::size_t i = 0; i < kMxfp4Block / 2; ++i) {
    codes[2 * i] = packed[i] & 15U;
    codes[2 * i + 1] = packed[i] >> 4;
  }
  const auto scales = hn::Set(df, core::exp2_int(static_cast<int>(scale) - 127));
  for (std::size_t i = 0; i < kMxfp4Block; i += hn::Lanes(df)) {
    const auto code = hn::PromoteTo(di, hn::LoadU(D8(), codes + i));
    const auto magnitude = hn::ShiftLeft<22>(hn::And(code, hn::Set(di, 7)));
    const auto sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(di, 8)));
    // As for e4m3: exponent field 0 holds 0 and 0.5, made as (1 + m/2) - 1.
    const auto is_small = hn::Lt(magnitude, hn::Set(di, 2 << 22));
    const auto bias = hn::IfThenElse(is_small, hn::Set(di, 127 << 23), hn::Set(di, 126 << 23));
    auto value = hn::BitCast(df, hn::Add(magnitude, bias));
    value = hn::Sub(value, hn::IfThenElseZero(hn::RebindMask(df, is_small), hn::Set(df, 1.0F)));
    value = hn::Or(value, hn::BitCast(df, sign));
    hn::StoreU(hn::Mul(value, scales), df, out + i);
  }
}

void StoreFp8PerTensor(const float* x, std::int64_t n, float scale, std::uint8_t* codes) {
  const DF df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  const auto scales = hn::Set(df, scale);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) E4m3FromFloat(hn::Div(hn::LoadU(df, x + i), scales), codes + i);
  for (; i < n; ++i) codes[i] = core::float_to_e4m3(x[i] / scale);
}

void StoreElements(const float* x, std::int64_t n, CacheLayout layout, float scale, bool round_first,
                   std::uint8_t* out) {
  if (layout == CacheLayout::kFloat32) {
    std::memcpy(out, x, static_cast<std::size_t>(n) * sizeof(float));
  } else if (layout == CacheLayout::kBFloat16) {
    StoreBf16(x, n, out);
  } else if (!round_first) {
    StoreFp8PerTensor(x, n, scale, out);
  } else {
    constexpr std::int64_t kPiece = 128;
    float rounded[kPiece];
    for (std::int64_t begin = 0; begin < n; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, n - begin);
      std::memcpy(rounded, x + begin, static_cast<std::size_t>(count) * sizeof(float));
      RoundRowToBf16(rounded, count);
      StoreFp8PerTensor(rounded, count, scale, out + begin);
    }
  }
}

void LoadElements(const std::uint8_t* in, std::int64_t n, CacheLayout layout, float scale, float* out) {
  if (layout == CacheLayout::kFloat32) {
    std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(float));
  } else if (layout == CacheLayout::kBFloat16) {
    LoadBf16(in, n, out);
  } else {
    DequantizeFp8(in, n, scale, out);
  }
}

void StoreEntry(const float* row, const PagedCache& cache, std::int64_t slot, bool round_first) {
  auto* data = static_cast<std::uint8_t*>(cache.data) + data_offset(cache, slot);
  if (layout_head_dim(cache.layout) == 0) {
    StoreElements(row, cache.head_dim, cache.layout, cache.scale, round_first, data);
    return;
  }
  auto* scales = static_cast<std::uint8_t*>(cache.data) + scale_offset(cache, slot);
  HWY_ALIGN float rounded[kMla656NopeDims];
  const std::int64_t quantized = cache.layout == CacheLayout::kFp8Mla584   ? kMla584NopeDims
                                 : cache.layout == CacheLayout::kFp8Mla656 ? kMla656NopeDims
                                                                           : kIndexerHeadDim;
  const float* x = row;
  if (round_first) {
    std::memcpy(rounded, row, static_cast<std::size_t>(quantized) * sizeof(float));
    RoundRowToBf16(rounded, quantized);
    x = rounded;
  }
  switch (cache.layout) {
    case CacheLayout::kFp8Mla584:
      for (std::int64_t t = 0; t < kMla584Tiles; ++t) {
        const int e = QuantizeFp8(x + t * kMla584Tile, kMla584Tile, kFp8AmaxFloor, data + t * kMla584Tile);
        scales[t] = static_cast<std::uint8_t>(e + 127);
      }
      scales[kMla584Tiles] = 0;
      StoreBf16(row + kMla584NopeDims, kRopeDims, data + kMla584NopeDims);
      break;
    case CacheLayout::kFp8Mla656:
      for (std::int64_t t = 0; t < kMla656Tiles; ++t) {
        const float scale =
            core::exp2_int(QuantizeFp8(x + t * kMla656Tile, kMla656Tile, kMla656AmaxFloor, data + t * kMla656Tile));
        std::memcpy(scales + 4 * t, &scale, sizeof scale);
      }
      StoreBf16(row + kMla656NopeDims, kRopeDims, data + kMla656RopeOffset);
      break;
    case CacheLayout::kIndexerFp8: {
      const float scale = core::exp2_int(QuantizeFp8(x, kIndexerHeadDim, kFp8AmaxFloor, data));
      std::memcpy(scales, &scale, sizeof scale);
      break;
    }
    case CacheLayout::kIndexerMxfp4:
      for (std::int64_t b = 0; b < kMxfp4Blocks; ++b) {
        scales[b] = QuantizeMxfp4Block(x + b * kMxfp4Block, data + b * (kMxfp4Block / 2));
      }
      break;
    case CacheLayout::kFloat32:
    case CacheLayout::kBFloat16:
    case CacheLayout::kFp8PerTensor: break;  // handled above
  }
}

void LoadEntry(const ConstPagedCache& cache, std::int64_t slot, float* row) {
  const auto* data = static_cast<const std::uint8_t*>(cache.data) + data_offset(cache, slot);
  if (layout_head_dim(cache.layout) == 0) {
    LoadElements(data, cache.head_dim, cache.layout, cache.scale, row);
    return;
  }
  const auto* scales = static_cast<const std::uint8_t*>(cache.data) + scale_offset(cache, slot);
  switch (cache.layout) {
    case CacheLayout::kFp8Mla584:
      for (std::int64_t t = 0; t < kMla584Tiles; ++t) {
        const float scale = core::exp2_int(static_cast<int>(scales[t]) - 127);
        DecodeFp8(data + t * kMla584Tile, kMla584Tile, scale, row + t * kMla584Tile);
      }
      LoadBf16(data + kMla584NopeDims, kRopeDims, row + kMla584NopeDims);
      break;
    case CacheLayout::kFp8Mla656:
      for (std::int64_t t = 0; t < kMla656Tiles; ++t) {
        float scale;
        std::memcpy(&scale, scales + 4 * t, sizeof scale);
        DecodeFp8(data + t * kMla656Tile, kMla656Tile, scale, row + t * kMla656Tile);
      }
      LoadBf16(data + kMla656RopeOffset, kRopeDims, row + kMla656NopeDims);
      break;
    case CacheLayout::kIndexerFp8: {
      float scale;
      std::memcpy(&scale, scales, sizeof scale);
      DecodeFp8(data, kIndexerHeadDim, scale, row);
      break;
    }
    case CacheLayout::kIndexerMxfp4:
      for (std::int64_t b = 0; b < kMxfp4Blocks; ++b) {
        DequantizeMxfp4Block(data + b * (kMxfp4Block / 2), scales[b], row + b * kMxfp4Block);
      }
      break;
    case CacheLayout::kFloat32:
    case CacheLayout::kBFloat16:
    case CacheLayout::kFp8PerTensor: break;  // handled above
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tamis::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::ops {
namespace {
HWY_EXPORT(QuantizeFp8);
HWY_EXPORT(DequantizeFp8);
HWY_EXPORT(QuantizeMxfp4Block);
HWY_EXPORT(DequantizeMxfp4Block);
HWY_EXPORT(RoundRowToBf16);
HWY_EXPORT(LoadElements);
HWY_EXPORT(StoreElements);
HWY_EXPORT(StoreEntry);
HWY_EXPORT(LoadEntry);
}  // namespace

int quantize_fp8(const float* x, std::int64_t n, float amax_floor, std::uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(QuantizeFp8)(x, n, amax_floor, codes);
}
void dequantize_fp8(const std::uint8_t* codes, std::int64_t n, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeFp8)(codes, n, scale, out);
}
std::uint8_t quantize_mxfp4_block(const float* x, std::uint8_t* packed) {
  return HWY_DYNAMIC_DISPATCH(QuantizeMxfp4Block)(x, packed);
}
void dequantize_mxfp4_block(const std::uint8_t* packed, std::uint8_t scale, float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeMxfp4Block)(packed, scale, out);
}
void round_row_to_bf16(float* x, std::int64_t n) { HWY_DYNAMIC_DISPATCH(RoundRowToBf16)(x, n); }

void load_row(const void* in, DType dtype, std::int64_t n, float* out) {
  load_elements(in, n, dtype == DType::kBFloat16 ? CacheLayout::kBFloat16 : CacheLayout::kFloat32, 1.0F, out);
}
void store_row(const float* in, std::int64_t n, DType dtype, void* out) {
  store_elements(in, n, dtype == DType::kBFloat16 ? CacheLayout::kBFloat16 : CacheLayout::kFloat32, 1.0F, false, out);
}
void load_elements(const void* in, std::int64_t n, CacheLayout layout, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(LoadElements)(static_cast<const std::uint8_t*>(in), n, layout, scale, out);
}
void store_elements(const float* in, std::int64_t n, CacheLayout layout, float scale, bool round_first, void* out) {
  HWY_DYNAMIC_DISPATCH(StoreElements)(in, n, layout, scale, round_first, static_cast<std::uint8_t*>(out));
}
void store_entry(const float* row, const PagedCache& cache, std::int64_t slot, bool round_first) {
  HWY_DYNAMIC_DISPATCH(StoreEntry)(row, cache, slot, round_first);
}
void load_entry(const ConstPagedCache& cache, std::int64_t slot, float* row) {
  HWY_DYNAMIC_DISPATCH(LoadEntry)(cache, slot, row);
}

}  // namespace tamis::ops
#endif  // HWY_ONCE
