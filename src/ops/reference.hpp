#pragma once

// The definition of the small operations, written from the formulas of S-0, S-1.3, S-2.3, S-4.2, S-4.4 and S-5, in
// double or exact integers, one element at a time. Slow; tests and `tamis verify` use it.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <span>
#include <vector>

#include "core/float_formats.hpp"
#include "tamis/cache.hpp"
#include "tamis/ops.hpp"

namespace tamis::ops::reference {

// y_i = x_i * (mean(x^2) + eps)^-0.5 * w_i
inline std::vector<double> rmsnorm(std::span<const float> x, std::span<const float> weight, double eps) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  const double factor = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * factor * (weight.empty() ? 1.0 : weight[i]));
  return y;
}

// Frequency of pair i of `pairs` (S-1.3).
inline double rope_frequency(double base, const RopeScaling& s, int i, int pairs) {
  const double d = 2.0 * pairs;
  const double f = std::pow(base, -2.0 * i / d);
  if (s.factor <= 1) return f;
  const auto corr = [&](double r) {
    return d * std::log(s.original_max_positions / (2 * std::numbers::pi * r)) / (2 * std::log(base));
  };
  const double low = std::fmax(std::floor(corr(s.beta_fast)), 0);
  double high = std::fmin(std::ceil(corr(s.beta_slow)), d - 1);
  if (low == high) high += 0.001;
  const double ramp = std::fmin(std::fmax((i - low) / (high - low), 0), 1);
  return f / s.factor * ramp + f * (1 - ramp);
}

// Rotates the last 64 elements of v by the angles of one table row (S-2.3).
inline std::vector<double> rope(std::span<const float> v, std::span<const float> cos_sin, bool inverse) {
  std::vector<double> out(v.begin(), v.end());
  const std::size_t first = v.size() - 64;
  for (std::size_t i = 0; i < 32; ++i) {
    const double e = v[first + 2 * i], o = v[first + 2 * i + 1];
    const double c = cos_sin[i], s = inverse ? -cos_sin[32 + i] : cos_sin[32 + i];
    out[first + 2 * i] = e * c - o * s;
    out[first + 2 * i + 1] = o * c + e * s;
  }
  return out;
}

// y_a = n^-0.5 * sum_b (-1)^popcount(a AND b) x_b (S-4.2).
inline std::vector<double> hadamard(std::span<const float> x) {
  std::vector<double> y(x.size(), 0.0);
  for (std::size_t a = 0; a < x.size(); ++a) {
    for (std::size_t b = 0; b < x.size(); ++b) y[a] += std::popcount(a & b) % 2 == 0 ? x[b] : -x[b];
    y[a] /= std::sqrt(static_cast<double>(x.size()));
  }
  return y;
}

// Smallest e with largest_code * 2^e >= max(amax, floor): the loop is the definition.
inline int scale_exponent(double amax, double floor, double largest_code) {
  const double a = std::isinf(amax) ? 0x1p128 : std::fmax(amax, floor);
  int e = -200;
  while (std::ldexp(largest_code, e) < a) ++e;
  return e;
}

// The code whose value is nearest to x, of equal distances the even one; the sign bit is that of x.
template <typename Decode>
std::uint8_t nearest_code(double x, int largest_code, int sign_bit, Decode decode) {
  int best = 0;
  for (int code = 1; code <= largest_code; ++code) {
    const double d = std::fabs(std::fabs(x) - decode(code)), b = std::fabs(std::fabs(x) - decode(best));
    if (d < b || (d == b && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? sign_bit : 0));
}

inline double e4m3_value(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return std::nan("");
  const double m = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -m : m;
}
inline double e2m1_value(int code) {
  const double m = (code & 6) == 0 ? 0.5 * (code & 1) : std::ldexp(2 + (code & 1), ((code >> 1) & 3) - 2);
  return (code & 8) != 0 ? -m : m;
}

inline std::uint8_t e4m3_code(double x) {
  if (std::isnan(x)) return std::signbit(x) ? 0xFF : 0x7F;
  return nearest_code(std::fmin(std::fmax(x, -448.0), 448.0), 0x7E, 0x80, e4m3_value);
}
inline std::uint8_t e2m1_code(double x) {
  if (std::isnan(x)) return std::signbit(x) ? 15 : 7;
  return nearest_code(std::fmin(std::fmax(x, -6.0), 6.0), 7, 8, e2m1_value);
}

// Where one element and its scale lie: byte offsets from the start of the cache, spelled out per layout (S-5.2 -
// S-5.5).
struct ElementPlace {
  std::int64_t value;  // first byte of the number, or the byte that holds the nibble
  std::int64_t scale;  // first byte of the scale; -1: none
  enum { kFloat32, kBFloat16, kE4m3Ue8m0, kE4m3Float, kE4m3Global, kE2m1Ue8m0 } form;
};
inline ElementPlace place(const ConstPagedCache& cache, std::int64_t slot, std::int64_t dim) {
  const std::int64_t bs = cache.page_size, i = slot % bs;
  const std::int64_t page = slot / bs * cache.page_stride_bytes;
  switch (cache.layout) {
    case CacheLayout::kFloat32: return {page + (i * cache.head_dim + dim) * 4, -1, ElementPlace::kFloat32};
    case CacheLayout::kBFloat16: return {page + (i * cache.head_dim + dim) * 2, -1, ElementPlace::kBFloat16};
    case CacheLayout::kFp8PerTensor: return {page + i * cache.head_dim + dim, -1, ElementPlace::kE4m3Global};
    case CacheLayout::kFp8Mla584:
      if (dim >= 448) return {page + i * 576 + 448 + 2 * (dim - 448), -1, ElementPlace::kBFloat16};
      return {page + i * 576 + dim, page + bs * 576 + i * 8 + dim / 64, ElementPlace::kE4m3Ue8m0};
    case CacheLayout::kFp8Mla656:
      if (dim >= 512) return {page + i * 656 + 528 + 2 * (dim - 512), -1, ElementPlace::kBFloat16};
      return {page + i * 656 + dim, page + i * 656 + 512 + 4 * (dim / 128), ElementPlace::kE4m3Float};
    case CacheLayout::kIndexerFp8: return {page + i * 128 + dim, page + bs * 128 + i * 4, ElementPlace::kE4m3Float};
    case CacheLayout::kIndexerMxfp4:
      return {page + i * 64 + dim / 2, page + bs * 64 + i * 4 + dim / 32, ElementPlace::kE2m1Ue8m0};
  }
  return {0, -1, ElementPlace::kFloat32};
}

// Elements that share the scale of `dim`: tiles begin at multiples of this.
inline std::int64_t tile_size(CacheLayout layout) {
  return layout == CacheLayout::kFp8Mla584 ? 64 : layout == CacheLayout::kIndexerMxfp4 ? 32 : 128;
}

// Writes one row (head_dim numbers) to a slot. round_first: S-5.1; false for rows after the Hadamard rotation (S-4.2).
inline void write_entry(std::span<const float> row, const PagedCache& cache, std::int64_t slot,
                        bool round_first = true) {
  auto* bytes = static_cast<std::uint8_t*>(cache.data);
  const auto number = [&](std::int64_t dim) {
    const float x = row[static_cast<std::size_t>(dim)];
    return static_cast<double>(round_first ? core::round_to_bf16(x) : x);
  };
  for (std::int64_t dim = 0; dim < cache.head_dim; ++dim) {
    const ElementPlace at = place(cache, slot, dim);
    const float x = row[static_cast<std::size_t>(dim)];
    if (at.form == ElementPlace::kFloat32) {
      std::memcpy(bytes + at.value, &x, 4);
      continue;
    }
    if (at.form == ElementPlace::kBFloat16) {
      const std::uint16_t bits = core::float_to_bf16(x);
      std::memcpy(bytes + at.value, &bits, 2);
      continue;
    }
    if (at.form == ElementPlace::kE4m3Global) {
      // The quotient is defined in fp32: that is what every engine computes.
      bytes[at.value] = e4m3_code(static_cast<float>(number(dim)) / cache.scale);
      continue;
    }
    const std::int64_t tile = tile_size(cache.layout), begin = dim / tile * tile;
    double amax = 0;
    for (std::int64_t d = begin; d < begin + tile; ++d) {
      if (!std::isnan(number(d))) amax = std::fmax(amax, std::fabs(number(d)));
    }
    int e = 0;
    if (cache.layout == CacheLayout::kIndexerMxfp4) {
      e = scale_exponent(amax, std::ldexp(6.0, -126), 6.0);
    } else if (cache.layout == CacheLayout::kFp8Mla656) {
      e = std::max(scale_exponent(amax, 0x1p-140, 448.0), -13);  // 2^-13 is the first power of two above 1e-4
    } else {
      e = scale_exponent(amax, static_cast<double>(1e-4F), 448.0);
    }
    const double scaled = std::ldexp(number(dim), -e);
    if (at.form == ElementPlace::kE2m1Ue8m0) {
      const int shift = dim % 2 == 0 ? 0 : 4;
      bytes[at.value] = static_cast<std::uint8_t>((bytes[at.value] & ~(15 << shift)) | (e2m1_code(scaled) << shift));
      bytes[at.scale] = static_cast<std::uint8_t>(e + 127);
      continue;
    }
    bytes[at.value] = e4m3_code(scaled);
    if (at.form == ElementPlace::kE4m3Ue8m0) {
      bytes[at.scale] = static_cast<std::uint8_t>(e + 127);
    } else {
      const auto scale = static_cast<float>(std::ldexp(1.0, e));
      std::memcpy(bytes + at.scale, &scale, 4);
    }
  }
  // The eighth scale byte of an entry pads and is zero.
  if (cache.layout == CacheLayout::kFp8Mla584) bytes[place(cache, slot, 0).scale + 7] = 0;
}

// Value of a UE8M0 byte. 255 is never written; it stands for infinity, so what is read with it is no finite number.
inline double ue8m0_value(int byte) { return byte == 255 ? HUGE_VAL : std::ldexp(1.0, byte - 127); }

// Reads one number back; exact in double.
inline double read_element(const ConstPagedCache& cache, std::int64_t slot, std::int64_t dim) {
  const auto* bytes = static_cast<const std::uint8_t*>(cache.data);
  const ElementPlace at = place(cache, slot, dim);
  float number = 0;
  std::uint16_t bits = 0;
  switch (at.form) {
    case ElementPlace::kFloat32: std::memcpy(&number, bytes + at.value, 4); return number;
    case ElementPlace::kBFloat16: std::memcpy(&bits, bytes + at.value, 2); return core::bf16_to_float(bits);
    case ElementPlace::kE4m3Global: return e4m3_value(bytes[at.value]) * cache.scale;
    case ElementPlace::kE4m3Ue8m0: return e4m3_value(bytes[at.value]) * ue8m0_value(bytes[at.scale]);
    case ElementPlace::kE4m3Float:
      std::memcpy(&number, bytes + at.scale, 4);
      return e4m3_value(bytes[at.value]) * number;
    case ElementPlace::kE2m1Ue8m0:
      return e2m1_value(bytes[at.value] >> (dim % 2 == 0 ? 0 : 4) & 15) * ue8m0_value(bytes[at.scale]);
  }
  return 0;
}

}  // namespace tamis::ops::reference
