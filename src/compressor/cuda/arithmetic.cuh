#pragma once

// Numbers of the inputs and the state, and the exponential. Every operation is rounded, or fused, as on the CPU: the
// intrinsics leave the compiler no choice.

#include <cuda_bf16.h>

#include <cstdint>

#include "core/float_formats.hpp"

namespace tamis::compressor_cuda {

/// Neighbouring numbers.
template <int kCount>
struct Numbers {
  float at[kCount];
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

/// A number as it counts when it is read back from a state of type T.
template <typename T>
__device__ float round_to(float value);
template <>
__device__ inline float round_to<float>(float value) {
  return value;
}
template <>
__device__ inline float round_to<__nv_bfloat16>(float value) {
  return core::round_to_bf16(value);
}

__device__ inline void store(float value, float* to) { *to = value; }
__device__ inline void store(float value, __nv_bfloat16* to) { *to = __ushort_as_bfloat16(core::float_to_bf16(value)); }

/// Bits of two numbers as bf16, the first one low.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  return core::float_to_bf16(low) | static_cast<std::uint32_t>(core::float_to_bf16(high)) << 16;
}

/// Bits of 1 or 4 neighbouring numbers as they lie in memory, kept until they are needed, so that many loads can be
/// under way.
template <typename T, int kCount>
struct Raw;
template <typename T>
struct Raw<T, 1> {
  T bits;
  __device__ Numbers<1> value() const { return {to_float(bits)}; }
};
template <>
struct Raw<float, 4> {
  uint4 bits;
  __device__ Numbers<4> value() const {
    return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
  }
};
template <>
struct Raw<__nv_bfloat16, 4> {
  uint2 bits;
  __device__ Numbers<4> value() const {
    return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000U), __uint_as_float(bits.y << 16),
            __uint_as_float(bits.y & 0xFFFF0000U)};
  }
};
/// The same number kCount times.
template <typename T, int kCount>
__device__ Raw<T, kCount> make_raw(float value) {
  if constexpr (kCount == 1) {
    T number;
    store(value, &number);
    return {number};
  } else {
    const std::uint32_t bits = sizeof(T) == 4 ? __float_as_uint(value) : bf16_pair(value, value);
    if constexpr (sizeof(T) * kCount == 8) return {make_uint2(bits, bits)};
    else return {make_uint4(bits, bits, bits, bits)};
  }
}

/// Aligned to all of them.
template <int kCount, typename T>
__device__ Raw<T, kCount> load_raw(const T* from) {
  return {*reinterpret_cast<const decltype(Raw<T, kCount>::bits)*>(from)};
}

__device__ inline void store_numbers(const Numbers<4>& value, float* to) {
  *reinterpret_cast<float4*>(to) = make_float4(value.at[0], value.at[1], value.at[2], value.at[3]);
}
__device__ inline void store_numbers(const Numbers<4>& value, __nv_bfloat16* to) {
  *reinterpret_cast<uint2*>(to) = make_uint2(bf16_pair(value.at[0], value.at[1]), bf16_pair(value.at[2], value.at[3]));
}

/// exp(x) for x <= 0 with the bits of the CPU's exp_not_positive() (cpu/pool.cpp, which derives it); NaN for NaN.
__device__ inline float exp_not_positive(float x) {
  const float shifted = __fmaf_rn(x, 0x1.715476p+0F, 0x1.8p23F);
  const float n = __fsub_rn(shifted, 0x1.8p23F);
  const float r = __fmaf_rn(n, 0x1.bd0106p-13F, __fmaf_rn(n, -0.693359375F, x));
  float q = __fmaf_rn(0x1.6d113cp-10F, r, 0x1.120ba2p-7F);
  q = __fmaf_rn(q, r, 0x1.55551ap-5F);
  q = __fmaf_rn(q, r, 0x1.5554dcp-3F);
  q = __fmaf_rn(q, r, 0.5F);
  const float exp_r = __fmaf_rn(__fmaf_rn(q, r, 1.0F), r, 1.0F);
  const float two_n = __uint_as_float((__float_as_uint(shifted) << 23) + (127U << 23));
  // Not as a ?: for which the compiler would branch around all of the above.
  float result;
  asm("{\n.reg .pred p;\nsetp.lt.f32 p, %1, 0fC2AC0000;\nselp.f32 %0, 0f00000000, %2, p;\n}"  // -86
      : "=f"(result)
      : "f"(x), "f"(__fmul_rn(exp_r, two_n)));
  return result;
}

}  // namespace tamis::compressor_cuda
