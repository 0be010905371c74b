// Rows of fp32 through norm, rotation and Hadamard. Bound by: L1 bandwidth; rows are short (64 to a few thousand).
// Definition: ops/reference.hpp; the order of sums, which the definition leaves open, is fixed in ops/rows.hpp.
#include "ops/rows.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rows.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it chooses the target that highway.h then defines.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tamis::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void AddSquares(const float* x, std::int64_t n, float* partial) {
  // AVX-512 holds all partial sums in two registers; the others walk the row once for each group of four.
  const hn::CappedTag<float, kPartialSums / 2> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = n - n % kPartialSums;
  constexpr std::int64_t kGroup = HWY_CAP_GE512 ? 2 : 4;
  for (std::int64_t lane = 0; lane < kPartialSums; lane += kGroup * lanes) {
    auto s0 = hn::LoadU(d, partial + lane), s1 = hn::LoadU(d, partial + lane + lanes);
    auto s2 = s0, s3 = s0;
    if constexpr (kGroup == 4) {
      s2 = hn::LoadU(d, partial + lane + 2 * lanes);
      s3 = hn::LoadU(d, partial + lane + 3 * lanes);
    }
    for (std::int64_t i = lane; i < whole; i += kPartialSums) {
      const auto x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
      s0 = hn::Add(s0, hn::Mul(x0, x0));
      s1 = hn::Add(s1, hn::Mul(x1, x1));
      if constexpr (kGroup == 4) {
        const auto x2 = hn::LoadU(d, x + i + 2 * lanes), x3 = hn::LoadU(d, x + i + 3 * lanes);
        s2 = hn::Add(s2, hn::Mul(x2, x2));
        s3 = hn::Add(s3, hn::Mul(x3, x3));
      }
    }
    hn::StoreU(s0, d, partial + lane);
    hn::StoreU(s1, d, partial + lane + lanes);
    if constexpr (kGroup == 4) {
      hn::StoreU(s2, d, partial + lane + 2 * lanes);
      hn::StoreU(s3, d, partial + lane + 3 * lanes);
    }
  }
  for (std::int64_t i = whole; i < n; ++i) partial[i - whole] += x[i] * x[i];
}

void ScaleRow(const float* x, const float* weight, std::int64_t n, float factor, float* y) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factors = hn::Set(d, factor);
  const std::int64_t whole = n - n % lanes;
  for (std::int64_t i = 0; i < whole; i += lanes) {
    auto value = hn::Mul(hn::LoadU(d, x + i), factors);
    if (weight != nullptr) value = hn::Mul(value, hn::LoadU(d, weight + i));
    hn::StoreU(value, d, y + i);
  }
  for (std::int64_t i = whole; i < n; ++i) y[i] = weight != nullptr ? x[i] * factor * weight[i] : x[i] * factor;
}

void RmsnormRow(const float* x, const float* weight, std::int64_t n, float eps, float* y) {
  float partial[kPartialSums] = {};
  AddSquares(x, n, partial);
  ScaleRow(x, weight, n, rms_factor(sum_partials(partial), n, eps), y);
}

void RopeRow(float* x, const float* cos_sin, bool inverse) {
  constexpr std::size_t kPairs = 32;
#if HWY_NATIVE_FMA
  const hn::CappedTag<float, kPairs> d;
  const auto flip = hn::Set(d, inverse ? -0.0F : 0.0F);
  for (std::size_t i = 0; i < kPairs; i += hn::Lanes(d)) {
    hn::Vec<decltype(d)> even, odd;
    hn::LoadInterleaved2(d, x + 2 * i, even, odd);
    const auto c = hn::LoadU(d, cos_sin + i);
    const auto s = hn::Xor(hn::LoadU(d, cos_sin + kPairs + i), flip);
    const auto new_even = hn::MulSub(even, c, hn::Mul(odd, s));
    const auto new_odd = hn::MulAdd(odd, c, hn::Mul(even, s));
    hn::StoreInterleaved2(new_even, new_odd, d, x + 2 * i);
  }
#else
  // MulAdd would round twice here; std::fma does not.
  for (std::size_t i = 0; i < kPairs; ++i) {
    const float even = x[2 * i], odd = x[2 * i + 1];
    const float c = cos_sin[i];
    const float s = inverse ? -cos_sin[kPairs + i] : cos_sin[kPairs + i];
    x[2 * i] = std::fma(even, c, -(odd * s));
    x[2 * i + 1] = std::fma(odd, c, even * s);
  }
#endif
}

// One butterfly inside a register: lane l meets lane l ^ stride. The upper lane of a pair takes a + (-b), which has the
// bits of a - b.
template <class D>
class RegisterButterfly {
 public:
  RegisterButterfly(D d, std::size_t stride)
      : indices_(hn::IndicesFromVec(d, Partners(d, stride))), signs_(Signs(d, stride)) {}
  HWY_INLINE hn::Vec<D> operator()(hn::Vec<D> v) const {
    return hn::Add(hn::TableLookupLanes(v, indices_), hn::Xor(v, signs_));
  }

 private:
  using DI = hn::RebindToSigned<D>;
  static hn::Vec<DI> Partners(D, std::size_t stride) {
    const DI di;
    // A stride of the register's width or more is never applied; the mask keeps its indices valid.
    const auto flip = static_cast<std::int32_t>(stride & (hn::Lanes(di) - 1));
    return hn::Xor(hn::Iota(di, 0), hn::Set(di, flip));
  }
  static hn::Vec<D> Signs(D d, std::size_t stride) {
    const DI di;
    const auto bit = hn::Set(di, static_cast<std::int32_t>(stride));
    const auto upper = hn::Eq(hn::And(hn::Iota(di, 0), bit), bit);
    return hn::IfThenElseZero(hn::RebindMask(d, upper), hn::Set(d, -0.0F));
  }

  decltype(hn::IndicesFromVec(D(), hn::Vec<DI>())) indices_;
  hn::Vec<D> signs_;
};

void HadamardRow(float* x, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto n = static_cast<std::size_t>(count);
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  if (n < lanes) {
    for (std::size_t stride = n / 2; stride > 0; stride /= 2) {
      for (std::size_t i = 0; i < n; ++i) {
        if ((i & stride) != 0) continue;
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
    for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
    return;
  }
  std::size_t stride = n / 2;
  for (; stride >= lanes && stride > 0; stride /= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * stride) {
      for (std::size_t i = begin; i < begin + stride; i += lanes) {
        const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + stride);
        hn::StoreU(hn::Add(a, b), d, x + i);
        hn::StoreU(hn::Sub(a, b), d, x + i + stride);
      }
    }
  }
  // The strides below the register's width, all in one pass, and the factor.
  const RegisterButterfly by_8(d, 8), by_4(d, 4), by_2(d, 2), by_1(d, 1);
  const auto factors = hn::Set(d, factor);
  for (std::size_t i = 0; i < n; i += lanes) {
    auto v = hn::LoadU(d, x + i);
    if (lanes > 8) v = by_8(v);
    if (lanes > 4) v = by_4(v);
    if (lanes > 2) v = by_2(v);
    if (lanes > 1) v = by_1(v);
    hn::StoreU(hn::Mul(v, factors), d, x + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tamis::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::ops {
namespace {
HWY_EXPORT(AddSquares);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(RmsnormRow);
HWY_EXPORT(RopeRow);
HWY_EXPORT(HadamardRow);
}  // namespace

float sum_partials(const float* partial) {
  float sums[kPartialSums];
  std::memcpy(sums, partial, sizeof sums);
  for (std::int64_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}
float rms_factor(float sum_of_squares, std::int64_t n, float eps) {
  return 1.0F / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}
void add_squares(const float* x, std::int64_t n, float* partial) { HWY_DYNAMIC_DISPATCH(AddSquares)(x, n, partial); }
void scale_row(const float* x, const float* weight, std::int64_t n, float factor, float* y) {
  HWY_DYNAMIC_DISPATCH(ScaleRow)(x, weight, n, factor, y);
}
void rmsnorm_row(const float* x, const float* weight, std::int64_t n, float eps, float* y) {
  HWY_DYNAMIC_DISPATCH(RmsnormRow)(x, weight, n, eps, y);
}
void rope_row(float* x, const float* cos_sin, bool inverse) { HWY_DYNAMIC_DISPATCH(RopeRow)(x, cos_sin, inverse); }
void hadamard_row(float* x, std::int64_t n) { HWY_DYNAMIC_DISPATCH(HadamardRow)(x, n); }

}  // namespace tamis::ops
#endif  // HWY_ONCE
