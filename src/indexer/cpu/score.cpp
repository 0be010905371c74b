#include "indexer/cpu/score.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/float_formats.hpp"
#include "ops/quantize.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "indexer/cpu/score.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::indexer::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Turns n rows of n elements, n = 16 / sizeof(T), into n columns: a perfect shuffle, log2(n) times over, is a
// transposition. Rows are read through pointers, because neighbouring keys may lie in different pages.
#if HWY_TARGET == HWY_SCALAR  // one lane: nothing to interleave
template <typename T>
HWY_INLINE void transpose_tile(const std::uint8_t* const* rows, std::int64_t offset_bytes, T* HWY_RESTRICT out,
                               std::int64_t out_stride) {
  constexpr int kN = 16 / sizeof(T);
  for (int i = 0; i < kN; ++i) {
    for (int j = 0; j < kN; ++j)
      std::memcpy(out + j * out_stride + i, rows[i] + offset_bytes + j * static_cast<int>(sizeof(T)), sizeof(T));
  }
}
#else
template <typename T>
HWY_INLINE void transpose_tile(const std::uint8_t* const* rows, std::int64_t offset_bytes, T* HWY_RESTRICT out,
                               std::int64_t out_stride) {
  constexpr int kN = 16 / sizeof(T);
  const hn::Full128<T> d;
  hn::Vec<decltype(d)> a[kN];
  hn::Vec<decltype(d)> b[kN];
  const hn::Full128<std::uint8_t> d8;
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) a[i] = hn::BitCast(d, hn::LoadU(d8, rows[i] + offset_bytes));
#pragma GCC unroll 4
  for (int stage = 1; stage < kN; stage *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kN / 2; ++i) {
      b[2 * i] = hn::InterleaveLower(d, a[i], a[i + kN / 2]);
      b[2 * i + 1] = hn::InterleaveUpper(d, a[i], a[i + kN / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kN; ++i) a[i] = b[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) hn::StoreU(a[i], d, out + i * out_stride);
}
#endif

// Keys handled together by a decoder: the rows of one byte tile.
inline constexpr int kTileKeys = 16;

// e4m3 to fp32 by way of fp16, whose bits are those of the code moved apart: the value times 2^-8, subnormals included.
// Exact for every code but NaN (0x7F and 0xFF), which comes out as 480. Four operations and a conversion that neither
// minds subnormals nor looks at the DAZ bit of the host program.
template <class DF>
HWY_INLINE hn::Vec<DF> decode_e4m3(DF df, const std::uint8_t* codes) {
  const hn::Rebind<std::uint8_t, DF> d8;
  const hn::Rebind<std::uint16_t, DF> d16;
  const hn::RebindToSigned<decltype(d16)> di16;
  const hn::Rebind<hwy::float16_t, DF> dh;
  // s eeee mmm 0000'0000, shifted down with its sign, is s s eeee mmm 0'0000'0000; the mask drops the second s.
  const auto high = hn::BitCast(di16, hn::ShiftLeft<8>(hn::PromoteTo(d16, hn::LoadU(d8, codes))));
  const auto half = hn::And(hn::BitCast(d16, hn::ShiftRight<1>(high)), hn::Set(d16, 0xBF80));
  return hn::Mul(hn::PromoteTo(df, hn::BitCast(dh, half)), hn::Set(df, 256.0F));
}

// True if one of n codes is NaN; n is a multiple of 64.
HWY_INLINE bool any_nan_code(const std::uint8_t* codes, int n) {
  const hn::CappedTag<std::uint8_t, 64> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto magnitude = hn::Set(d, 0x7F);
  auto largest = hn::Zero(d);
  for (int i = 0; i < n; i += lanes) largest = hn::Max(largest, hn::And(hn::Load(d, codes + i), magnitude));
  return !hn::AllFalse(d, hn::Eq(largest, magnitude));
}

// Each decoder writes keys [dim][kPanelKeys], its 16 keys at out.

HWY_INLINE void decode_fp8_keys(const std::uint8_t* const* rows, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, kTileKeys> df;
  const int lanes = static_cast<int>(hn::Lanes(df));
  alignas(64) std::uint8_t codes[16 * kTileKeys];
  for (int c0 = 0; c0 < kHeadDim; c0 += 16) {
    transpose_tile<std::uint8_t>(rows, c0, codes, kTileKeys);
    for (int c = 0; c < 16; ++c) {
      for (int lane = 0; lane < kTileKeys; lane += lanes)
        hn::Store(decode_e4m3(df, codes + c * kTileKeys + lane), df, out + (c0 + c) * kPanelKeys + lane);
    }
    if (any_nan_code(codes, 16 * kTileKeys)) [[unlikely]] {
      for (int i = 0; i < 16 * kTileKeys; ++i) {
        if ((codes[i] & 0x7FU) == 0x7FU)
          out[(c0 + i / kTileKeys) * kPanelKeys + i % kTileKeys] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

// Values of 16 pairs of e2m1 codes, doubled so that they are integers. Code 8 is -0; as +0 it gives the same products
// up to the sign of zero, which ReLU and the sum forget.
alignas(16) inline constexpr std::int8_t kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
HWY_INLINE void split_pairs(const std::uint8_t* HWY_RESTRICT pairs, std::int8_t* HWY_RESTRICT even,
                            std::int8_t* HWY_RESTRICT odd) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) {
    even[i] = kTwiceE2m1[pairs[i] & 0xFU];
    odd[i] = kTwiceE2m1[pairs[i] >> 4];
  }
#else
  const hn::Full128<std::int8_t> d;
  const hn::Full128<std::uint8_t> du;
  const auto table = hn::Load(d, kTwiceE2m1);
  const auto pair = hn::Load(du, pairs);
  const auto nibble = hn::Set(du, 0x0F);
  const auto high = hn::BitCast(du, hn::ShiftRight<4>(hn::BitCast(hn::Full128<std::uint16_t>(), pair)));
  hn::Store(hn::TableLookupBytes(table, hn::BitCast(d, hn::And(pair, nibble))), d, even);
  hn::Store(hn::TableLookupBytes(table, hn::BitCast(d, hn::And(high, nibble))), d, odd);
#endif
}

HWY_INLINE void decode_mxfp4_keys(const std::uint8_t* const* rows, const std::uint8_t* const* scale_rows,
                                  float* HWY_RESTRICT out) {
  const hn::CappedTag<float, kTileKeys> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<std::int8_t, decltype(df)> di8;
  const int lanes = static_cast<int>(hn::Lanes(df));
  const auto half = hn::Set(df, 0.5F);
  alignas(64) float scales[ops::kMxfp4Blocks][kTileKeys];
  for (int b = 0; b < ops::kMxfp4Blocks; ++b) {
    for (int key = 0; key < kTileKeys; ++key) scales[b][key] = core::exp2_int(scale_rows[key][b] - 127);
  }
  alignas(64) std::uint8_t pairs[16 * kTileKeys];
  alignas(16) std::int8_t even[16];
  alignas(16) std::int8_t odd[16];
  for (int byte0 = 0; byte0 < kHeadDim / 2; byte0 += 16) {
    transpose_tile<std::uint8_t>(rows, byte0, pairs, kTileKeys);
    for (int i = 0; i < 16; ++i) {
      split_pairs(pairs + i * kTileKeys, even, odd);
      const int c = 2 * (byte0 + i);
      for (int lane = 0; lane < kTileKeys; lane += lanes) {
        const auto scale = hn::Load(df, scales[c / ops::kMxfp4Block] + lane);
        const auto e = hn::Mul(hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(di8, even + lane))), half);
        const auto o = hn::Mul(hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(di8, odd + lane))), half);
        hn::Store(hn::Mul(e, scale), df, out + c * kPanelKeys + lane);
        hn::Store(hn::Mul(o, scale), df, out + (c + 1) * kPanelKeys + lane);
      }
    }
  }
}

HWY_INLINE void decode_bf16_keys(const std::uint8_t* const* rows, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 8> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<std::uint16_t, decltype(df)> d16;
  const int lanes = static_cast<int>(hn::Lanes(df));
  alignas(64) std::uint16_t codes[8 * 8];
  for (int key0 = 0; key0 < kTileKeys; key0 += 8) {
    for (int c0 = 0; c0 < kHeadDim; c0 += 8) {
      transpose_tile<std::uint16_t>(rows + key0, 2 * c0, codes, 8);
      for (int c = 0; c < 8; ++c) {
        for (int lane = 0; lane < 8; lane += lanes) {
          const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, codes + c * 8 + lane)));
          hn::StoreU(hn::BitCast(df, bits), df, out + (c0 + c) * kPanelKeys + key0 + lane);
        }
      }
    }
  }
}

HWY_INLINE void decode_fp32_keys(const std::uint8_t* const* rows, float* HWY_RESTRICT out) {
  for (int key0 = 0; key0 < kTileKeys; key0 += 4) {
    for (int c0 = 0; c0 < kHeadDim; c0 += 4)
      transpose_tile<float>(rows + key0, 4 * c0, out + c0 * kPanelKeys + key0, kPanelKeys);
  }
}

// Decodes panels [first, last) whose addresses the scratch has.
void DecodePanels(CacheLayout layout, int first, int last, ScoreScratch& s) {
  for (int key = first * kPanelKeys; key < last * kPanelKeys; key += kTileKeys) {
    const std::uint8_t* const* rows = s.key_data + key;
    float* out = s.keys + key / kPanelKeys * kPanelKeys * kHeadDim + key % kPanelKeys;
    switch (layout) {
      case CacheLayout::kIndexerFp8: decode_fp8_keys(rows, out); break;
      case CacheLayout::kIndexerMxfp4: decode_mxfp4_keys(rows, s.key_scale_data + key, out); break;
      case CacheLayout::kBFloat16: decode_bf16_keys(rows, out); break;
      default: decode_fp32_keys(rows, out); break;
    }
  }
}

// Packs decoded queries [kHeadGroup][kHeadDim] as [dim][head].
void PackGroup(const float* HWY_RESTRICT q, float* HWY_RESTRICT packed) {
  const std::uint8_t* rows[kHeadGroup];
  for (int h = 0; h < kHeadGroup; ++h) rows[h] = reinterpret_cast<const std::uint8_t*>(q + h * kHeadDim);
  for (int c = 0; c < kHeadDim; c += 4) {
    for (int h = 0; h < kHeadGroup; h += 4)
      transpose_tile<float>(rows + h, 4 * c, packed + c * kHeadGroup + h, kHeadGroup);
  }
}

// Heads that fit the registers with two vectors of keys each: 16 accumulators of 32, or 8 of 16.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kTileHeads = 8;
#else
inline constexpr int kTileHeads = 4;
#endif

// max(0, x) that keeps NaN; Max() drops it on some targets.
template <class D>
HWY_INLINE hn::Vec<D> Relu(D d, hn::Vec<D> x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
}

// Adds `heads` packed heads to the scores of one panel; starts from 0 or from what scores holds. A last tile that is
// not full multiplies zeros, too, but only heads that are there are added: 0 * inf of an infinite key is NaN.
void ScorePanel(const float* HWY_RESTRICT panel, const float* HWY_RESTRICT packed, const float* HWY_RESTRICT weights,
                int heads, bool resume, float* HWY_RESTRICT scores) {
  const hn::CappedTag<float, kPanelKeys / 2> d;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const V zero = hn::Zero(d);
  for (int key = 0; key < kPanelKeys; key += 2 * lanes) {
    V sum0 = resume ? hn::Load(d, scores + key) : zero;
    V sum1 = resume ? hn::Load(d, scores + key + lanes) : zero;
    static_assert(kHeadGroup % kTileHeads == 0);
    for (int head = 0; head < heads; head += kTileHeads) {
      const float* HWY_RESTRICT q = packed + head / kHeadGroup * kHeadGroup * kHeadDim + head % kHeadGroup;
      const float* HWY_RESTRICT k = panel + key;
      V dot0[kTileHeads];
      V dot1[kTileHeads];
#pragma GCC unroll 8
      for (int h = 0; h < kTileHeads; ++h) dot0[h] = dot1[h] = zero;
      for (int c = 0; c < kHeadDim; ++c) {
        const V k0 = hn::Load(d, k);
        const V k1 = hn::Load(d, k + lanes);
#pragma GCC unroll 8
        for (int h = 0; h < kTileHeads; ++h) {
          const V qh = hn::Set(d, q[h]);
          dot0[h] = hn::MulAdd(qh, k0, dot0[h]);
          dot1[h] = hn::MulAdd(qh, k1, dot1[h]);
        }
        q += kHeadGroup;
        k += kPanelKeys;
      }
      const float* w = weights + head;
      const int present = heads - head;
#pragma GCC unroll 8
      for (int h = 0; h < kTileHeads; ++h) {
        if (h >= present) continue;
        const V wh = hn::Set(d, w[h]);
        sum0 = hn::MulAdd(wh, Relu(d, dot0[h]), sum0);
        sum1 = hn::MulAdd(wh, Relu(d, dot1[h]), sum1);
      }
    }
    hn::Store(sum0, d, scores + key);
    hn::Store(sum1, d, scores + key + lanes);
  }
}

// scores[i] *= scales[i] over whole panels.
void ScaleScores(const float* HWY_RESTRICT scales, int n, float* HWY_RESTRICT scores) {
  const hn::CappedTag<float, kPanelKeys> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < n; i += lanes)
    hn::Store(hn::Mul(hn::Load(d, scores + i), hn::Load(d, scales + i)), d, scores + i);
}

}  // namespace tamis::indexer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::indexer {
namespace {

HWY_EXPORT(DecodePanels);
HWY_EXPORT(PackGroup);
HWY_EXPORT(ScorePanel);
HWY_EXPORT(ScaleScores);

// Stands for keys that are missing or not asked for: the widest entry (512 bytes of fp32), and its scale.
alignas(64) constexpr std::uint8_t kZeroEntry[4 * kHeadDim] = {};

// Decodes heads [begin, begin + count) of a row and packs them, zeros up to the end of the last group.
void pack_query(const IndexScoreParams& p, std::int64_t row, std::int64_t begin, int count, ScoreScratch& s) {
  alignas(64) float group[kHeadGroup * kHeadDim];
  for (int g = 0; g * kHeadGroup < count; ++g) {
    for (int i = 0; i < kHeadGroup; ++i) {
      const std::int64_t h = begin + g * kHeadGroup + i;
      float* out = group + i * kHeadDim;
      const bool present = g * kHeadGroup + i < count;
      s.packed_weights[g * kHeadGroup + i] = present ? p.weights[row * p.weights_row_stride + h] : 0.0F;
      if (!present) {
        std::fill_n(out, kHeadDim, 0.0F);
        continue;
      }
      const std::uint8_t* q = p.q + row * p.q_row_bytes + h * p.q_head_bytes;
      switch (p.format) {
        case IndexFormat::kFloat32: std::memcpy(out, q, 4 * kHeadDim); break;
        case IndexFormat::kBFloat16: ops::load_row(q, DType::kBFloat16, kHeadDim, out); break;
        case IndexFormat::kFp8: ops::dequantize_fp8(q, kHeadDim, 1.0F, out); break;
        case IndexFormat::kMxfp4: {
          const std::uint8_t* scale = p.q_scale + row * p.q_scale_row_stride + h * p.q_scale_head_stride;
          for (int b = 0; b < ops::kMxfp4Blocks; ++b)
            ops::dequantize_mxfp4_block(q + b * ops::kMxfp4Block / 2, scale[b], out + b * ops::kMxfp4Block);
          break;
        }
      }
    }
    HWY_DYNAMIC_DISPATCH(PackGroup)(group, s.packed_q + g * kHeadGroup * kHeadDim);
  }
}

}  // namespace

void decode_segment(const IndexScoreParams& p, std::int64_t table, std::int64_t segment, std::int64_t begin,
                    std::int64_t end, ScoreScratch& s) {
  if (begin >= end) return;
  const int first = static_cast<int>(begin - segment) / kPanelKeys;
  const int last = static_cast<int>(end - segment + kPanelKeys - 1) / kPanelKeys;
  const auto* data = static_cast<const std::uint8_t*>(p.keys.data);
  const std::int64_t entry_bytes = ops::entry_data_bytes(p.keys.layout, kHeadDim);
  const std::int64_t scale_bytes = ops::entry_scale_bytes(p.keys.layout);
  s.any_missing = false;
  for (int i = first * kPanelKeys; i < last * kPanelKeys; ++i) {
    s.key_data[i] = s.key_scale_data[i] = kZeroEntry;
    s.key_scales[i] = 1.0F;
    s.key_missing[i] = false;
  }
  // Page by page: a division and a look into the table for each key would cost as much as scoring it with 8 heads.
  for (std::int64_t column = begin; column < end;) {
    const std::int64_t index = column / p.keys.page_size;
    const std::int64_t page_begin = index * p.keys.page_size;
    const std::int64_t run_end = std::min(end, page_begin + p.keys.page_size);
    const std::int64_t page = table_page(p, table, index);
    if (page < 0) {
      s.any_missing = true;
      for (; column < run_end; ++column) s.key_missing[column - segment] = true;
      continue;
    }
    const std::int64_t slot = page * p.keys.page_size + (column - page_begin);
    const std::uint8_t* entry = data + ops::data_offset(p.keys, slot);
    const std::uint8_t* scale = data + ops::scale_offset(p.keys, slot);
    for (; column < run_end; ++column, entry += entry_bytes, scale += scale_bytes) {
      s.key_data[column - segment] = entry;
      s.key_scale_data[column - segment] = scale;
      if (p.keys.layout == CacheLayout::kIndexerFp8) std::memcpy(&s.key_scales[column - segment], scale, sizeof(float));
    }
  }
  HWY_DYNAMIC_DISPATCH(DecodePanels)(p.keys.layout, first, last, s);
}

void score_segment(const IndexScoreParams& p, std::int64_t row, std::int64_t segment, std::int64_t begin,
                   std::int64_t end, ScoreScratch& s, float* scores) {
  if (begin >= end) return;
  const int first = static_cast<int>(begin - segment) / kPanelKeys;
  const int last = static_cast<int>(end - segment + kPanelKeys - 1) / kPanelKeys;
  std::int64_t head = 0;
  do {
    const int count = static_cast<int>(std::min<std::int64_t>(p.heads - head, kChunkHeads));
    if (s.packed_row != row || p.heads > kChunkHeads) {
      pack_query(p, row, head, count, s);
      s.packed_row = row;
    }
    for (int panel = first; panel < last; ++panel) {
      HWY_DYNAMIC_DISPATCH(ScorePanel)
      (s.keys + panel * kPanelKeys * kHeadDim, s.packed_q, s.packed_weights, count, head > 0,
       scores + panel * kPanelKeys);
    }
    head += kChunkHeads;
  } while (head < p.heads);
  HWY_DYNAMIC_DISPATCH(ScaleScores)
  (s.key_scales + first * kPanelKeys, (last - first) * kPanelKeys, scores + first * kPanelKeys);
  if (s.any_missing) {
    for (std::int64_t column = begin; column < end; ++column) {
      if (s.key_missing[column - segment]) scores[column - segment] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace tamis::indexer
#endif  // HWY_ONCE
