#pragma once

// What happens to a pooled entry before it is in the cache (S-3.3): norm, rotation, Hadamard, quantisation. The order
// of sums and every rounding are those of ops/rows.cpp and ops/quantize.cpp, so the bytes are, too.

#include <cstdint>

#include "compressor/cuda/arithmetic.cuh"
#include "compressor/cuda/step.cuh"
#include "ops/layouts.hpp"
#include "ops/quantize.hpp"
#include "ops/rows.hpp"

namespace tamis::compressor_cuda {

/// Stores a number of the cache, which may have any alignment.
template <typename T>
__device__ void store_bytes(T value, std::uint8_t* to) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0) {
    *reinterpret_cast<T*>(to) = value;
    return;
  }
#pragma unroll
  for (unsigned i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

/// Stores a number where it is aligned.
template <typename T>
__device__ void store_number(T value, std::uint8_t* to) {
  *reinterpret_cast<T*>(to) = value;
}
template <bool kAligned, typename T>
__device__ void store_either(T value, std::uint8_t* to) {
  if constexpr (kAligned) store_number(value, to);
  else store_bytes(value, to);
}

/// Codes of two numbers, the first one low: core::float_to_e4m3() by the instruction, which drops the sign of NaN.
__device__ inline std::uint16_t e4m3_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  const std::uint32_t signs = (__float_as_uint(low) >> 24 & 0x80U) | (__float_as_uint(high) >> 16 & 0x8000U);
  return static_cast<std::uint16_t>(codes | signs);
#else
  return static_cast<std::uint16_t>(core::float_to_e4m3(low) | core::float_to_e4m3(high) << 8);
#endif
}

/// Magnitude of a number as bits, which order like it; 0 for NaN, which does not count towards a tile's scale.
__device__ inline std::uint32_t magnitude_bits(float x) {
  const std::uint32_t magnitude = __float_as_uint(x) & 0x7FFFFFFFU;
  return magnitude > 0x7F800000U ? 0 : magnitude;
}

/// One fp8 tile of 32 * kEach values by a warp, each lane with neighbouring ones. Returns the exponent of its scale.
template <bool kAligned, int kEach>
__device__ int store_fp8_tile(const float (&x)[kEach], float amax_floor, std::uint8_t* codes) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) largest = max(largest, magnitude_bits(x[i]));
  largest = __reduce_max_sync(~0U, largest);
  const int e = ops::fp8_exponent(fmaxf(__uint_as_float(largest), amax_floor));
  const float factor = core::exp2_int(-e);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint16_t first = e4m3_pair(__fmul_rn(x[0], factor), __fmul_rn(x[1], factor));
  if constexpr (kEach == 4) {
    const std::uint32_t second = e4m3_pair(__fmul_rn(x[2], factor), __fmul_rn(x[3], factor));
    store_either<kAligned>(first | second << 16, codes + 4 * lane);
  } else {
    store_either<kAligned>(first, codes + 2 * lane);
  }
  return e;
}

/// Four blocks of MXFP4 by a warp, four neighbouring values a lane, eight lanes a block.
template <bool kAligned>
__device__ void store_mxfp4(const float (&x)[4], std::uint8_t* packed, std::uint8_t* scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, magnitude_bits(x[i]));
#pragma unroll
  for (int step = 4; step > 0; step /= 2) largest = max(largest, __shfl_xor_sync(~0U, largest, step));
  const int e = ops::mxfp4_exponent(fmaxf(__uint_as_float(largest), ops::kMxfp4AmaxFloor));
  const float factor = core::exp2_int(-e);
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes |= static_cast<std::uint32_t>(core::float_to_e2m1(__fmul_rn(x[i], factor))) << (4 * i);
  }
  store_either<kAligned>(static_cast<std::uint16_t>(codes), packed + 2 * lane);
  if (lane % 8 == 0) scales[lane / 8] = static_cast<std::uint8_t>(e + 127);
}

/// 1 / sqrt(mean of squares + eps); the same in every thread. 32 partial sums, then halves, as ops/rows.hpp says.
__device__ inline float rms_factor(const float* entry, std::int64_t d, float eps) {
  static_assert(ops::kPartialSums == 32, "a lane a partial sum");
  float sum = 0;
  for (std::int64_t i = threadIdx.x % 32; i < d; i += 32) sum = __fadd_rn(sum, __fmul_rn(entry[i], entry[i]));
#pragma unroll
  for (int half = 16; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, half));
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(d)), eps)));
}

/// By a team. Begins and ends without a sync: the caller syncs after the entry is written, and before it is again.
/// @param position  The entry's own: the first of its group, inside the cos/sin table.
/// @param entry     [d], the pooled values, in shared memory or the team's part of the workspace; overwritten.
template <typename Threads>
__device__ __noinline__ void finish_entry(const StepParams& step, std::int64_t position, std::int64_t slot,
                                          float* entry) {
  const CompressorParams& p = step.p;
  const std::int64_t d = p.head_dim, nope = d - ops::kRopeDims;
  const int rank = Threads::rank(), warp = Threads::warp(), lane = Threads::lane();
  const CacheLayout layout = p.cache.layout;

  // 1. Norm, and rotation of the last 64. Entries that go through Hadamard are rounded before it and not after (S-4.2);
  //    fp32 entries are for parity with fp32 references, which round nowhere.
  const float factor = rms_factor(entry, d, p.rms_norm_eps);
  Threads::sync();
  const bool rounded = p.hadamard && layout != CacheLayout::kFloat32;
  const auto keep = [&](std::int64_t c, float x) { entry[c] = rounded ? core::round_to_bf16(x) : x; };
  const auto normed = [&](std::int64_t c) { return __fmul_rn(__fmul_rn(entry[c], factor), p.norm_weight[c]); };
  for (std::int64_t c = rank; c < nope; c += Threads::kThreads) keep(c, normed(c));
  // The last threads rotate: where a row is short of threads, they have one channel less above.
  const int pair = Threads::kThreads - 1 - rank;
  if (pair < 32) {
    const float* angles = p.cos_sin + position * p.cos_sin_stride;
    const float cosine = angles[pair], sine = angles[32 + pair];
    const float even = normed(nope + 2 * pair), odd = normed(nope + 2 * pair + 1);
    keep(nope + 2 * pair, __fmaf_rn(even, cosine, -__fmul_rn(odd, sine)));
    keep(nope + 2 * pair + 1, __fmaf_rn(odd, cosine, __fmul_rn(even, sine)));
  }
  Threads::sync();

  // 2. Hadamard.
  if (p.hadamard) {
    for (std::int64_t stride = d / 2; stride > 0; stride /= 2) {
      for (std::int64_t i = rank; i < d / 2; i += Threads::kThreads) {
        const std::int64_t at = i / stride * 2 * stride + i % stride;
        const float a = entry[at], b = entry[at + stride];
        entry[at] = __fadd_rn(a, b);
        entry[at + stride] = __fsub_rn(a, b);
      }
      Threads::sync();
    }
    for (std::int64_t c = rank; c < d; c += Threads::kThreads) entry[c] = __fmul_rn(entry[c], step.hadamard_factor);
    Threads::sync();
  }

  // 3. Store. What is quantised is rounded to bf16 first, unless it came through Hadamard.
  const auto value = [&](std::int64_t c) { return p.hadamard ? entry[c] : core::round_to_bf16(entry[c]); };
  auto* data = static_cast<std::uint8_t*>(p.cache.data) + ops::data_offset(p.cache, slot);
  auto* scales = static_cast<std::uint8_t*>(p.cache.data) + ops::scale_offset(p.cache, slot);
  switch (layout) {
    case CacheLayout::kFloat32:
      for (std::int64_t c = rank; c < d; c += Threads::kThreads) store_bytes(__float_as_uint(entry[c]), data + 4 * c);
      break;
    case CacheLayout::kBFloat16:
      for (std::int64_t c = rank; c < d; c += Threads::kThreads) {
        store_bytes(core::float_to_bf16(entry[c]), data + 2 * c);
      }
      break;
    case CacheLayout::kFp8PerTensor:
      for (std::int64_t c = rank; c < d; c += Threads::kThreads) {
        data[c] = core::float_to_e4m3(__fdiv_rn(value(c), p.cache.scale));
      }
      break;
    case CacheLayout::kFp8Mla584:
      for (int tile = warp; tile <= ops::kMla584Tiles; tile += Threads::kWarps) {
        const std::int64_t c = tile * ops::kMla584Tile + 2 * lane;
        if (tile < ops::kMla584Tiles) {
          const float x[2] = {value(c), value(c + 1)};
          const int e = store_fp8_tile<false>(x, ops::kFp8AmaxFloor, data + tile * ops::kMla584Tile);
          if (lane == 0) scales[tile] = static_cast<std::uint8_t>(e + 127);
        } else {
          const std::uint32_t bits =
              core::float_to_bf16(entry[c]) | static_cast<std::uint32_t>(core::float_to_bf16(entry[c + 1])) << 16;
          store_bytes(bits, data + ops::kMla584NopeDims + 4 * lane);
          if (lane == 0) scales[ops::kMla584Tiles] = 0;
        }
      }
      break;
    case CacheLayout::kIndexerFp8:
      if (warp == 0) {
        const std::int64_t c = 4 * lane;
        const float x[4] = {value(c), value(c + 1), value(c + 2), value(c + 3)};
        const int e = store_fp8_tile<false>(x, ops::kFp8AmaxFloor, data);
        if (lane == 0) store_bytes(__float_as_uint(core::exp2_int(e)), scales);
      }
      break;
    case CacheLayout::kIndexerMxfp4:
      if (warp == 0) {
        const std::int64_t c = 4 * lane;
        const float x[4] = {value(c), value(c + 1), value(c + 2), value(c + 3)};
        store_mxfp4<false>(x, data, scales);
      }
      break;
    case CacheLayout::kFp8Mla656: break;  // refused: it holds no compressed entries
  }
}

}  // namespace tamis::compressor_cuda
