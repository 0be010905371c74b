#pragma once

// Scores as numbers that compare as the contract ranks them, and what the filter compares scores with.
//
// key:        32 bits, monotone in the score; NaN is kNanKey, below the key of -inf; -0 and +0 share one key. Below
// them all
//             kNoKey stands for "no score here".
// composite:  key in the high word, inverted position in the low word. Of two positions the better one has the larger
//             composite, and no two positions of a row share one: "the k best" is "the k largest composites".

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tamis::topk_cuda {

using Composite = unsigned long long;  // what 64-bit atomics and intrinsics take

inline constexpr std::uint32_t kNoKey = 0, kNanKey = 1;

__device__ inline std::uint32_t key_of(float score) {
  const std::uint32_t bits = __float_as_uint(score + 0.0F);  // -0 + 0 is +0
  // Flips the sign bit so that unsigned order equals float order; negatives are inverted whole.
  const std::uint32_t key = bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000U);
  return score != score ? kNanKey : key;
}

/// The score of a key; NaN for kNanKey. A zero is +0.
__device__ inline float score_of_key(std::uint32_t key) {
  if (key <= kNanKey) return __uint_as_float(0x7FC00000U);
  return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

__device__ inline Composite composite_of(std::uint32_t key, std::uint32_t position) {
  return static_cast<Composite>(key) << 32 | static_cast<std::uint32_t>(~position);
}
/// At or below every score's, above kNoKey's.
__device__ inline Composite lowest_composite() { return static_cast<Composite>(kNanKey) << 32; }
__device__ inline std::uint32_t key_of(Composite c) { return static_cast<std::uint32_t>(c >> 32); }
__device__ inline std::uint32_t position_of(Composite c) { return ~static_cast<std::uint32_t>(c); }

/// A score as it stands and its position: cheaper to write than a composite, which is made of it where it is read.
using Candidate = unsigned long long;
__device__ inline Candidate candidate_of(float score, std::uint32_t position) {
  return static_cast<Candidate>(__float_as_uint(score)) << 32 | position;
}
__device__ inline std::uint32_t key_of_candidate(Candidate c) {
  return key_of(__uint_as_float(static_cast<std::uint32_t>(c >> 32)));
}
__device__ inline std::uint32_t position_of_candidate(Candidate c) { return static_cast<std::uint32_t>(c); }
__device__ inline Composite composite_of_candidate(Candidate c) {
  return composite_of(key_of_candidate(c), position_of_candidate(c));
}

/// What differs between score formats. A vector is 16 bytes of neighbouring scores. A bar is what scores are compared
/// with, in the score's own format: `at_least` a key's score, or strictly `above` it. NaN reaches no bar.
template <typename T>
struct ScoreFormat;

template <>
struct ScoreFormat<float> {
  static constexpr int kPerVector = 4;
  using Bar = float;

  __device__ static float widen(float score) { return score; }
  __device__ static float element(const uint4& v, int i) {
    return __uint_as_float(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
  }
  __device__ static Bar at_least(std::uint32_t key) { return key <= kNanKey ? -INFINITY : score_of_key(key); }
  // The next key is the next float; past +inf it is a NaN, which nothing reaches.
  __device__ static Bar above(std::uint32_t key) { return key <= kNanKey ? -INFINITY : score_of_key(key + 1); }

  /// Largest score of a vector; NaN gives way to numbers.
  __device__ static float largest(const uint4& v) {
    return fmaxf(fmaxf(element(v, 0), element(v, 1)), fmaxf(element(v, 2), element(v, 3)));
  }
  __device__ static float larger(float a, float b) { return fmaxf(a, b); }
  __device__ static bool reaches(float largest_score, Bar bar) { return largest_score >= bar; }
  __device__ static bool reaches_one(float score, Bar bar) { return score >= bar; }
  /// Scores of a vector that reach the bar.
  __device__ static std::uint32_t count(const uint4& v, Bar bar) {
    std::uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) sum += element(v, i) >= bar ? 1U : 0U;
    return sum;
  }
};

// bf16 and fp16 differ in their intrinsics only.
template <typename T>
struct HalfTraits;
template <>
struct HalfTraits<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  __device__ static float widen(std::uint32_t bits) { return __uint_as_float(bits << 16); }
  __device__ static std::uint32_t narrow(float score) { return __float_as_uint(score) >> 16; }  // exact here
};
template <>
struct HalfTraits<__half> {
  using Pair = __half2;
  __device__ static float widen(std::uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }
  __device__ static std::uint32_t narrow(float score) {
    return __half_as_ushort(__float2half_rn(score));
  }  // exact here
};

template <typename T>
struct HalfFormat {
  static constexpr int kPerVector = 8;
  using Traits = HalfTraits<T>;
  using Pair = typename Traits::Pair;
  using Bar = std::uint32_t;  // the same score in both halves

  __device__ static float widen(T score) { return Traits::widen(reinterpret_cast<const std::uint16_t&>(score)); }
  __device__ static std::uint32_t word(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
  __device__ static float element(const uint4& v, int i) {
    return Traits::widen((word(v, i / 2) >> (i % 2 * 16)) & 0xFFFFU);
  }
  __device__ static Bar twice(std::uint32_t bits) { return bits | bits << 16; }
  __device__ static Bar at_least(std::uint32_t key) {
    return twice(Traits::narrow(key <= kNanKey ? -INFINITY : score_of_key(key)));
  }
  __device__ static Bar above(std::uint32_t key) {
    if (key <= kNanKey) return at_least(key);
    const std::uint32_t bits = Traits::narrow(score_of_key(key));
    // Of a positive score the next bits, of a negative one those before; -smallest is followed by -0, which equals 0.
    return twice((bits & 0x8000U) != 0 ? bits - 1 : bits + 1);
  }

  __device__ static Pair pair(std::uint32_t bits) { return reinterpret_cast<const Pair&>(bits); }
  __device__ static Pair largest(const uint4& v) {
    return __hmax2(__hmax2(pair(v.x), pair(v.y)), __hmax2(pair(v.z), pair(v.w)));
  }
  __device__ static Pair larger(Pair a, Pair b) { return __hmax2(a, b); }
  __device__ static bool reaches(Pair largest_scores, Bar bar) { return __hge2_mask(largest_scores, pair(bar)) != 0; }
  __device__ static bool reaches_one(float score, Bar bar) { return score >= Traits::widen(bar & 0xFFFFU); }
  __device__ static std::uint32_t count(const uint4& v, Bar bar) {
    std::uint32_t sum = 0;  // of the low halves; the high halves add 65,536 each
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += __hge2_mask(pair(word(v, i)), pair(bar)) & 0x00010001U;
    return (sum & 0xFFFFU) + (sum >> 16);
  }
};
template <>
struct ScoreFormat<__nv_bfloat16> : HalfFormat<__nv_bfloat16> {};
template <>
struct ScoreFormat<__half> : HalfFormat<__half> {};

}  // namespace tamis::topk_cuda
