// Sparse attention of one query row on the CPU:
//   l_k = scale * (q . key_k),  out = sum_k exp(l_k - m) V_k / (sum_k exp(l_k - m) + exp(sink - m)),  V = key[0:512].
// Work split: the caller gives a row and a range of heads. The valid keys of both lists are decoded to fp32 in blocks
// of
//             64, in list order, once for all heads; an online softmax joins the blocks.
// Bound by:   fused multiply-adds, 2 * heads * keys * (d_qk + 512) flops; decoding a key costs what 4 heads cost.
// Same bits:  a dot product runs over 16 virtual lanes (lane i takes dims i, i + 16, ...) whatever the vector width,
// and
//             folds them in a fixed tree; invalid lanes of a list are skipped before blocks are formed, so only the
//             sequence of valid keys counts. Heads share loads but no arithmetic.
// Definition: sparse_mla/reference.hpp.

#include "sparse_mla/cpu/attend.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/quantize.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sparse_mla/cpu/attend.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tamis::sparse_mla_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kVirtualLanes = 16;
using D = hn::CappedTag<float, kVirtualLanes>;
using V = hn::Vec<D>;
constexpr D kTag;
constexpr std::size_t kLanes = hn::MaxLanes(D());
constexpr std::size_t kParts = kVirtualLanes / kLanes;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Registers: AVX-512 has 32, so a tile of 4 heads x 4 keys (16 sums) and one of 4 heads x 64 dims fit beside their
// operands. With 16 registers a tile is worked off in pieces of half the heads and keys, or half the vectors.
constexpr int kDotHeads = kLanes == 16 ? 4 : kLanes == 8 ? 2 : 1;
constexpr int kDotKeys = kLanes == 16 ? 4 : 2;
constexpr int kValueVectors = kLanes == 16 ? 4 : 2;
static_assert(kTileHeads % kDotHeads == 0 && kTileKeys % kDotKeys == 0 && kTileKeys == 4);
static_assert(kHeadDimV % (kValueVectors * static_cast<int>(kLanes)) == 0);

// Folding 16 virtual lanes to one number, in a tree that is the same for every vector width: lane i with i + 8, with
// i + 4, with i + 2, with i + 1. A Quad is the state after the first two steps.
#if HWY_TARGET == HWY_SCALAR
struct Quad {
  float lane[4];
};
HWY_INLINE Quad fold_to_4(const V (&parts)[kParts]) {
  Quad quad;
  for (int i = 0; i < 4; ++i) {
    quad.lane[i] = (parts[i].raw + parts[i + 8].raw) + (parts[i + 4].raw + parts[i + 12].raw);
  }
  return quad;
}
HWY_INLINE float fold_to_1(const V (&parts)[kParts]) {
  const Quad q = fold_to_4(parts);
  return (q.lane[0] + q.lane[2]) + (q.lane[1] + q.lane[3]);
}
// to[i] = scale * (the rest of the tree of quads[i]), i < 4
HWY_INLINE void fold_and_store(const Quad* quads, float scale, float* to) {
  for (int i = 0; i < 4; ++i) {
    const float* lane = quads[i].lane;
    to[i] = ((lane[0] + lane[2]) + (lane[1] + lane[3])) * scale;
  }
}
#else
using D4 = hn::CappedTag<float, 4>;
using Quad = hn::Vec<D4>;
constexpr D4 kTag4;

HWY_INLINE Quad fold_to_4(const V (&parts)[kParts]) {
#if HWY_TARGET == HWY_AVX3
  const hn::Half<D> d8;
  const auto half = hn::Add(hn::LowerHalf(d8, parts[0]), hn::UpperHalf(d8, parts[0]));
  return hn::Add(hn::LowerHalf(kTag4, half), hn::UpperHalf(kTag4, half));
#elif HWY_TARGET == HWY_AVX2
  const V half = hn::Add(parts[0], parts[1]);
  return hn::Add(hn::LowerHalf(kTag4, half), hn::UpperHalf(kTag4, half));
#else
  return hn::Add(hn::Add(parts[0], parts[2]), hn::Add(parts[1], parts[3]));
#endif
}
// The rest of the tree for four at once.
HWY_INLINE Quad fold_four(Quad a, Quad b, Quad c, Quad d) {
  const Quad ab = hn::Add(hn::InterleaveLower(kTag4, a, b), hn::InterleaveUpper(kTag4, a, b));
  const Quad cd = hn::Add(hn::InterleaveLower(kTag4, c, d), hn::InterleaveUpper(kTag4, c, d));
  return hn::Add(hn::ConcatLowerLower(kTag4, cd, ab), hn::ConcatUpperUpper(kTag4, cd, ab));
}
HWY_INLINE float fold_to_1(const V (&parts)[kParts]) {
  const Quad q = fold_to_4(parts);
  return hn::GetLane(fold_four(q, q, q, q));
}
// to[i] = scale * (the rest of the tree of quads[i]), i < 4; to is aligned to 16 bytes.
HWY_INLINE void fold_and_store(const Quad* quads, float scale, float* to) {
  const Quad dots = fold_four(quads[0], quads[1], quads[2], quads[3]);
  hn::Store(hn::Mul(dots, hn::Set(kTag4, scale)), kTag4, to);
}
#endif

// exp(x) for x <= 0: x = n ln2 + r with |r| <= 0.35, Taylor to r^7 (remainder 7.3e-9 of the value, an eighth of half an
// ulp), times 2^n. ln2 is split so that n * kLn2High is exact for |n| < 512. Below -87 the result would leave the
// normal numbers and is 0: such a key weighs less than 2e-38 of the largest. Largest error seen over [-87, 0]: 0.90 ulp
// with fused multiply-add, 1.15 without.
HWY_INLINE V exp_of_weight(V x) {
  const hn::RebindToSigned<D> di;
  constexpr float kLn2High = 0x1.62e4p-1F;
  constexpr float kLn2Low = 0x1.7f7d1cp-20F;
  const V n = hn::Round(hn::Mul(x, hn::Set(kTag, 0x1.715476p+0F)));
  V r = hn::NegMulAdd(n, hn::Set(kTag, kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(kTag, kLn2Low), r);
  V y = hn::Set(kTag, 1.0F / 5040.0F);
  y = hn::MulAdd(y, r, hn::Set(kTag, 1.0F / 720.0F));
  y = hn::MulAdd(y, r, hn::Set(kTag, 1.0F / 120.0F));
  y = hn::MulAdd(y, r, hn::Set(kTag, 1.0F / 24.0F));
  y = hn::MulAdd(y, r, hn::Set(kTag, 1.0F / 6.0F));
  y = hn::MulAdd(y, r, hn::Set(kTag, 0.5F));
  y = hn::MulAdd(y, r, hn::Set(kTag, 1.0F));
  y = hn::MulAdd(y, r, hn::Set(kTag, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  y = hn::Mul(y, hn::BitCast(kTag, exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(kTag, -87.0F)), y);  // NaN is not below: it stays NaN
}

// Dot products of kDotHeads queries with kDotKeys keys, folded to 4 lanes each.
HWY_INLINE void dot_tile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys, std::int64_t stride,
                         std::int64_t d_qk, Quad* HWY_RESTRICT folded) {
  V sums[kDotHeads][kDotKeys][kParts];
  for (int h = 0; h < kDotHeads; ++h) {
    for (int k = 0; k < kDotKeys; ++k) {
      for (std::size_t part = 0; part < kParts; ++part) sums[h][k][part] = hn::Zero(kTag);
    }
  }
  for (std::int64_t i = 0; i < d_qk; i += static_cast<std::int64_t>(kVirtualLanes)) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::int64_t at = i + static_cast<std::int64_t>(part * kLanes);
      V key[kDotKeys];
      for (int k = 0; k < kDotKeys; ++k) key[k] = hn::Load(kTag, keys + k * stride + at);
      for (int h = 0; h < kDotHeads; ++h) {
        const V query = hn::Load(kTag, q + h * stride + at);
        for (int k = 0; k < kDotKeys; ++k) sums[h][k][part] = hn::MulAdd(query, key[k], sums[h][k][part]);
      }
    }
  }
  for (int h = 0; h < kDotHeads; ++h) {
    for (int k = 0; k < kDotKeys; ++k) folded[h * kTileKeys + k] = fold_to_4(sums[h][k]);
  }
}

// logits[h][k] = scale * (q_h . key_k) for a tile of 4 heads and 4 keys.
HWY_INLINE void logits_tile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys, std::int64_t stride,
                            std::int64_t d_qk, float scale, float* HWY_RESTRICT logits) {
  Quad folded[kTileHeads * kTileKeys];
  for (int h = 0; h < kTileHeads; h += kDotHeads) {
    for (int k = 0; k < kTileKeys; k += kDotKeys) {
      dot_tile(q + h * stride, keys + k * stride, stride, d_qk, folded + h * kTileKeys + k);
    }
  }
  for (int h = 0; h < kTileHeads; ++h) {
    fold_and_store(folded + h * kTileKeys, scale, logits + h * kKeysPerBlock);
  }
}

// acc[h][d] = acc[h][d] * alpha[h] + sum_k weights[h][k] * values[k][d] for 4 heads and kValueVectors vectors of dims.
// The block's sum starts from zero, so long lists add up in two levels and lose less.
HWY_INLINE void values_tile(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values, std::int64_t stride,
                            std::int64_t num_keys, const float* HWY_RESTRICT alpha, float* HWY_RESTRICT acc) {
  V sums[kTileHeads][kValueVectors];
  for (int h = 0; h < kTileHeads; ++h) {
    for (int v = 0; v < kValueVectors; ++v) sums[h][v] = hn::Zero(kTag);
  }
  for (std::int64_t k = 0; k < num_keys; ++k) {
    V value[kValueVectors];
    for (int v = 0; v < kValueVectors; ++v) {
      value[v] = hn::Load(kTag, values + k * stride + v * static_cast<int>(kLanes));
    }
    for (int h = 0; h < kTileHeads; ++h) {
      const V weight = hn::Set(kTag, weights[h * kKeysPerBlock + k]);
      for (int v = 0; v < kValueVectors; ++v) sums[h][v] = hn::MulAdd(weight, value[v], sums[h][v]);
    }
  }
  for (int h = 0; h < kTileHeads; ++h) {
    const V rescale = hn::Set(kTag, alpha[h]);
    for (int v = 0; v < kValueVectors; ++v) {
      float* at = acc + h * Scratch::kAccStride + v * static_cast<int>(kLanes);
      hn::Store(hn::MulAdd(hn::Load(kTag, at), rescale, sums[h][v]), kTag, at);
    }
  }
}

// Turns a block's logits into weights exp(l - m) under the new maximum m; updates max and sum, leaves the factor for
// what was accumulated before in alpha. A maximum of -inf (every logit so far -inf) is replaced by 0 in the
// differences, so that no inf - inf arises.
HWY_INLINE void softmax_block(std::int64_t padded_heads, std::int64_t num_keys, float* HWY_RESTRICT weights,
                              float* HWY_RESTRICT max, float* HWY_RESTRICT sum, float* HWY_RESTRICT alpha) {
  const auto lanes = static_cast<std::int64_t>(kVirtualLanes);
  const std::int64_t padded_keys = round_up(num_keys, lanes);
  // 1. New maxima; alpha holds the old ones meanwhile. Lanes past the keys become -inf, so they weigh nothing.
  for (std::int64_t h = 0; h < padded_heads; ++h) {
    float* row = weights + h * kKeysPerBlock;
    std::fill(row + num_keys, row + padded_keys, kMinusInfinity);
    V largest = hn::Set(kTag, max[h]);
    for (std::int64_t k = 0; k < padded_keys; k += static_cast<std::int64_t>(kLanes)) {
      largest = hn::Max(largest, hn::Load(kTag, row + k));
    }
    alpha[h] = max[h];
    max[h] = hn::GetLane(hn::MaxOfLanes(kTag, largest));
  }
  // 2. alpha = exp(old - new) for many heads at once.
  const V minus_infinity = hn::Set(kTag, kMinusInfinity);
  for (std::int64_t h = 0; h < padded_heads; h += static_cast<std::int64_t>(kLanes)) {
    const V m = hn::Load(kTag, max + h);
    const V shift = hn::IfThenZeroElse(hn::Eq(m, minus_infinity), m);
    hn::Store(exp_of_weight(hn::Sub(hn::Load(kTag, alpha + h), shift)), kTag, alpha + h);
  }
  // 3. Weights and their sum, over the virtual lanes and then in the tree of the dot products.
  for (std::int64_t h = 0; h < padded_heads; ++h) {
    float* row = weights + h * kKeysPerBlock;
    const V shift = hn::Set(kTag, max[h] == kMinusInfinity ? 0.0F : max[h]);
    V sums[kParts];
    for (std::size_t part = 0; part < kParts; ++part) sums[part] = hn::Zero(kTag);
    for (std::int64_t k = 0; k < padded_keys; k += lanes) {
      for (std::size_t part = 0; part < kParts; ++part) {
        float* at = row + k + part * kLanes;
        const V weight = exp_of_weight(hn::Sub(hn::Load(kTag, at), shift));
        hn::Store(weight, kTag, at);
        sums[part] = hn::Add(sums[part], weight);
      }
    }
    sum[h] = hn::GetLane(hn::MulAdd(hn::Set(kTag, sum[h]), hn::Set(kTag, alpha[h]), hn::Set(kTag, fold_to_1(sums))));
  }
}

// Walks the valid entries of a row's lists, main before extra.
class ValidKeys {
 public:
  ValidKeys(const SparseMlaParams& p, std::int64_t row) : p_(p), row_(row) { open(0); }

  // Decodes the next valid keys, at most kKeysPerBlock, into rows of `stride` floats; returns how many.
  std::int64_t decode_block(float* keys, std::int64_t stride) {
    std::int64_t count = 0;
    for (;;) {
      const SourceParams& source = p_.sources[source_];
      const std::int64_t num_slots = source.cache.num_slots();
      for (; lane_ < end_ && count < kKeysPerBlock; ++lane_) {
        const std::int64_t slot = list_[lane_];
        if (slot < 0 || slot >= num_slots) continue;
        ops::load_entry(source.cache, slot, keys + count * stride);
        ++count;
      }
      if (count == kKeysPerBlock || source_ + 1 == p_.sources.size()) return count;
      open(source_ + 1);
    }
  }

 private:
  void open(std::size_t source) {
    const SourceParams& s = p_.sources[source];
    source_ = source;
    lane_ = 0;
    end_ = s.lens == nullptr ? s.topk : std::clamp<std::int64_t>(s.lens[row_], 0, s.topk);
    list_ = end_ == 0 ? nullptr : s.indices + row_ * s.indices_stride;
  }

  const SparseMlaParams& p_;
  std::int64_t row_;
  std::size_t source_ = 0;
  const std::int32_t* list_ = nullptr;
  std::int64_t lane_ = 0, end_ = 0;
};

// Divides by the denominator and writes one head. Scalars in double: exp(sink - m) has no range to leave there.
void finish_head(const SparseMlaParams& p, std::int64_t row, std::int64_t head, float max, float sum, float* acc) {
  const bool empty = sum == 0.0F;  // no valid key, or every logit -inf: the sink alone does not make a result
  float largest = max + 0.0F;      // -0 becomes +0, so the bits do not depend on which of equal logits came first
  float lse = static_cast<float>(static_cast<double>(max) + std::log(static_cast<double>(sum)));
  if (std::isnan(sum)) largest = lse = sum;
  if (empty) largest = lse = kMinusInfinity;
  if (p.lse != nullptr) p.lse[row * p.lse_row_stride + head] = lse;
  if (p.max_logits != nullptr) p.max_logits[row * p.max_logits_row_stride + head] = largest;

  if (empty) {
    std::fill(acc, acc + kHeadDimV, 0.0F);
  } else {
    double denominator = sum;
    if (p.sink != nullptr) denominator += std::exp(static_cast<double>(p.sink[head]) - static_cast<double>(max));
    const V factor = hn::Set(kTag, static_cast<float>(1.0 / denominator));
    for (std::int64_t d = 0; d < kHeadDimV; d += static_cast<std::int64_t>(kLanes)) {
      hn::Store(hn::Mul(hn::Load(kTag, acc + d), factor), kTag, acc + d);
    }
  }
  const std::int64_t at = row * p.out_row_stride + head * p.out_head_stride;
  ops::store_row(acc, kHeadDimV, p.out_dtype, p.out + at * dtype_bytes(p.out_dtype));
}

void AttendRow(const SparseMlaParams& p, std::int64_t row, std::int64_t head_begin, std::int64_t head_end,
               float* scratch) {
  const std::int64_t heads = head_end - head_begin;
  const Scratch layout(heads, p.head_dim_qk);
  const std::int64_t stride = layout.key_stride;
  float* keys = scratch + layout.keys;
  float* q = scratch + layout.q;
  float* acc = scratch + layout.acc;
  float* weights = scratch + layout.weights;
  float* max = scratch + layout.max;
  float* sum = scratch + layout.sum;
  float* alpha = scratch + layout.alpha;

  // 1. Queries as fp32; heads that only fill up the last tile are zero and their results are dropped.
  for (std::int64_t h = 0; h < layout.padded_heads; ++h) {
    if (h < heads) {
      const std::int64_t at = row * p.q_row_stride + (head_begin + h) * p.q_head_stride;
      ops::load_row(p.q + at * dtype_bytes(p.q_dtype), p.q_dtype, p.head_dim_qk, q + h * stride);
    } else {
      std::fill(q + h * stride, q + h * stride + p.head_dim_qk, 0.0F);
    }
  }
  std::fill(acc, acc + layout.padded_heads * Scratch::kAccStride, 0.0F);
  std::fill(max, sum, kMinusInfinity);
  std::fill(sum, scratch + layout.size, 0.0F);

  // 2. Block after block: decode, logits, weights, values.
  ValidKeys valid(p, row);
  while (const std::int64_t num_keys = valid.decode_block(keys, stride)) {
    // Rows that only fill up the last tile: zero, so that nothing of an earlier block or call is read.
    const std::int64_t tile_end = round_up(num_keys, kTileKeys);
    std::fill(keys + num_keys * stride, keys + tile_end * stride, 0.0F);
    // Keys outside, heads inside: 4 decoded keys (8 KiB) stay in the L1 while the queries stream by.
    for (std::int64_t k = 0; k < tile_end; k += kTileKeys) {
      for (std::int64_t h = 0; h < layout.padded_heads; h += kTileHeads) {
        logits_tile(q + h * stride, keys + k * stride, stride, p.head_dim_qk, p.softmax_scale,
                    weights + h * kKeysPerBlock + k);
      }
    }
    softmax_block(layout.padded_heads, num_keys, weights, max, sum, alpha);
    // Dims outside, heads inside: a column of 64 values (16 KiB) stays in the L1.
    for (std::int64_t d = 0; d < kHeadDimV; d += static_cast<std::int64_t>(kValueVectors * kLanes)) {
      for (std::int64_t h = 0; h < layout.padded_heads; h += kTileHeads) {
        values_tile(weights + h * kKeysPerBlock, keys + d, stride, num_keys, alpha + h,
                    acc + h * Scratch::kAccStride + d);
      }
    }
    if (num_keys < kKeysPerBlock) break;
  }

  // 3. One division, one rounding, one store a head.
  for (std::int64_t h = 0; h < heads; ++h) {
    finish_head(p, row, head_begin + h, max[h], sum[h], acc + h * Scratch::kAccStride);
  }
}

void ExpOfWeights(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += static_cast<std::int64_t>(kLanes)) {
    hn::StoreU(exp_of_weight(hn::LoadU(kTag, x + i)), kTag, y + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tamis::sparse_mla_detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::sparse_mla_detail {

HWY_EXPORT(AttendRow);
HWY_EXPORT(ExpOfWeights);

void attend_row(const SparseMlaParams& p, std::int64_t row, std::int64_t head_begin, std::int64_t head_end,
                float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendRow)(p, row, head_begin, head_end, scratch);
}

void exp_of_weights(const float* x, float* y, std::int64_t n) { HWY_DYNAMIC_DISPATCH(ExpOfWeights)(x, y, n); }

}  // namespace tamis::sparse_mla_detail
#endif  // HWY_ONCE
