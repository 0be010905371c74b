#pragma once

// finish_entry() for the kernels of the model's shapes: what an entry is multiplied with is fetched while it is pooled,
// and after the norm every number stays in the registers of one thread. The same bytes as finish_entry().

#include <cstdint>

#include "compressor/cuda/finish_entry.cuh"

namespace tamis::compressor_cuda {

/// rms_factor() of at most kMaxDims values.
template <int kMaxDims>
__device__ float rms_factor_of(const float* entry, int d, float eps) {
  float squares[kMaxDims / 32];
#pragma unroll
  for (int i = 0; i < kMaxDims / 32; ++i) {
    const int c = i * 32 + static_cast<int>(threadIdx.x) % 32;
    const float x = c < d ? entry[c] : 0.0F;  // adding +0 leaves a sum of squares as it is
    squares[i] = __fmul_rn(x, x);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxDims / 32; ++i) sum = __fadd_rn(sum, squares[i]);
#pragma unroll
  for (int half = 16; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, half));
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(d)), eps)));
}

/// Turns a pair of neighbours by an angle.
__device__ inline void rotate(float& even, float& odd, float cosine, float sine) {
  const float e = even, o = odd;
  even = __fmaf_rn(e, cosine, -__fmul_rn(o, sine));
  odd = __fmaf_rn(o, cosine, __fmul_rn(e, sine));
}

/// Entries of main attention: d a multiple of 64 up to kMaxDims, no Hadamard, no layout of an indexer. Pairs of
/// neighbours are dealt to the threads of a team, so that a tile of 64 is a warp's.
template <typename Threads, int kMaxDims>
class PairFinish {
 public:
  __device__ static bool serves(const StepParams& step) {
    const CacheLayout layout = step.p.cache.layout;
    return step.cache_aligned && !step.p.hadamard && layout != CacheLayout::kIndexerFp8 &&
           layout != CacheLayout::kIndexerMxfp4;
  }

  /// Reads what does not depend on the entry's values.
  __device__ PairFinish(const CompressorParams& p, std::int64_t position, std::int64_t slot)
      : data_(static_cast<std::uint8_t*>(p.cache.data) + ops::data_offset(p.cache, slot)),
        scales_(static_cast<std::uint8_t*>(p.cache.data) + ops::scale_offset(p.cache, slot)) {
    const int nope = static_cast<int>(p.head_dim - ops::kRopeDims);
    const float* angles = p.cos_sin + position * p.cos_sin_stride;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int c = channel(e);
      if (c >= p.head_dim) continue;
      weight_[e][0] = p.norm_weight[c];
      weight_[e][1] = p.norm_weight[c + 1];
      if (c < nope) continue;
      cosine_[e] = angles[(c - nope) / 2];
      sine_[e] = angles[32 + (c - nope) / 2];
    }
  }

  /// @param entry  [d] in shared memory, only read.
  __device__ void finish(const StepParams& step, const float* entry) const {
    const CompressorParams& p = step.p;
    const int d = static_cast<int>(p.head_dim), nope = d - static_cast<int>(ops::kRopeDims);
    const float factor = rms_factor_of<kMaxDims>(entry, d, p.rms_norm_eps);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int c = channel(e);
      if (c >= d) continue;  // whole warps: 64 channels each
      float x[2] = {__fmul_rn(__fmul_rn(entry[c], factor), weight_[e][0]),
                    __fmul_rn(__fmul_rn(entry[c + 1], factor), weight_[e][1])};
      if (c >= nope) rotate(x[0], x[1], cosine_[e], sine_[e]);
      store_pair(p, c, x);
    }
  }

 private:
  static constexpr int kEach = (kMaxDims / 2 + Threads::kThreads - 1) / Threads::kThreads;

  __device__ static int channel(int e) { return 2 * (e * Threads::kThreads + Threads::rank()); }

  __device__ void store_pair(const CompressorParams& p, int c, float (&x)[2]) const {
    switch (p.cache.layout) {
      case CacheLayout::kFloat32:
        store_number(__float_as_uint(x[0]), data_ + 4 * c);
        store_number(__float_as_uint(x[1]), data_ + 4 * c + 4);
        break;
      case CacheLayout::kBFloat16: store_number(bf16_pair(x[0], x[1]), data_ + 2 * c); break;
      case CacheLayout::kFp8PerTensor: {
        const auto scaled = [&](float value) { return __fdiv_rn(core::round_to_bf16(value), p.cache.scale); };
        store_number(e4m3_pair(scaled(x[0]), scaled(x[1])), data_ + c);
        break;
      }
      default: {  // kFp8Mla584
        const int tile = c / static_cast<int>(ops::kMla584Tile);
        if (tile == ops::kMla584Tiles) {
          store_number(bf16_pair(x[0], x[1]), data_ + ops::kMla584NopeDims + 2 * (c - ops::kMla584NopeDims));
          if (Threads::lane() == 0) scales_[tile] = 0;
          break;
        }
        x[0] = core::round_to_bf16(x[0]);
        x[1] = core::round_to_bf16(x[1]);
        const int e = store_fp8_tile<true>(x, ops::kFp8AmaxFloor, data_ + tile * ops::kMla584Tile);
        if (Threads::lane() == 0) scales_[tile] = static_cast<std::uint8_t>(e + 127);
      }
    }
  }

  std::uint8_t *data_, *scales_;
  float weight_[kEach][2] = {}, cosine_[kEach] = {}, sine_[kEach] = {};
};

/// Entries of 128 channels, by one warp, 4 neighbours a lane: those of an indexer, with or without Hadamard.
class WarpFinish {
 public:
  __device__ static bool serves(const StepParams& step) { return step.cache_aligned; }

  __device__ WarpFinish(const CompressorParams& p, std::int64_t position, std::int64_t slot)
      : data_(static_cast<std::uint8_t*>(p.cache.data) + ops::data_offset(p.cache, slot)),
        scales_(static_cast<std::uint8_t*>(p.cache.data) + ops::scale_offset(p.cache, slot)) {
    const float* angles = p.cos_sin + position * p.cos_sin_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) weight_[i] = p.norm_weight[4 * lane() + i];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pair = 2 * (lane() - 16) + i;  // the last 64 channels are those of lanes 16 to 31
      cosine_[i] = pair >= 0 ? angles[pair] : 0.0F;
      sine_[i] = pair >= 0 ? angles[32 + pair] : 0.0F;
    }
  }

  /// @param entry  [128] in shared memory, only read.
  __device__ void finish(const StepParams& step, const float* entry) const {
    const CompressorParams& p = step.p;
    const float factor = rms_factor_of<128>(entry, 128, p.rms_norm_eps);
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(__fmul_rn(entry[4 * lane() + i], factor), weight_[i]);
    if (lane() >= 16) {
      rotate(x[0], x[1], cosine_[0], sine_[0]);
      rotate(x[2], x[3], cosine_[1], sine_[1]);
    }
    if (p.hadamard) hadamard(x, p.cache.layout != CacheLayout::kFloat32, step.hadamard_factor);
    store(p, x);
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ static void hadamard(float (&x)[4], bool rounded, float factor) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = rounded ? core::round_to_bf16(x[i]) : x[i];
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {  // lanes: 4 channels each
      const bool upper = (lane() & apart) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float other = __shfl_xor_sync(~0U, x[i], apart);
        x[i] = upper ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
      }
    }
#pragma unroll
    for (int apart = 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & apart) != 0) continue;
        const float a = x[i], b = x[i + apart];
        x[i] = __fadd_rn(a, b);
        x[i + apart] = __fsub_rn(a, b);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(x[i], factor);
  }

  __device__ void store(const CompressorParams& p, float (&x)[4]) const {
    const int c = 4 * lane();
    if (p.cache.layout == CacheLayout::kFloat32) {
#pragma unroll
      for (int i = 0; i < 4; ++i) store_number(__float_as_uint(x[i]), data_ + 4 * (c + i));
      return;
    }
    if (p.cache.layout == CacheLayout::kBFloat16) {
      store_number(bf16_pair(x[0], x[1]), data_ + 2 * c);
      store_number(bf16_pair(x[2], x[3]), data_ + 2 * c + 4);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = p.hadamard ? x[i] : core::round_to_bf16(x[i]);
    if (p.cache.layout == CacheLayout::kIndexerFp8) {
      const int e = store_fp8_tile<true>(x, ops::kFp8AmaxFloor, data_);
      if (lane() == 0) store_number(__float_as_uint(core::exp2_int(e)), scales_);
    } else if (p.cache.layout == CacheLayout::kIndexerMxfp4) {
      store_mxfp4<true>(x, data_, scales_);
    } else {  // kFp8PerTensor
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = __fdiv_rn(x[i], p.cache.scale);
      store_number(e4m3_pair(x[0], x[1]) | static_cast<std::uint32_t>(e4m3_pair(x[2], x[3])) << 16, data_ + c);
    }
  }

  std::uint8_t *data_, *scales_;
  float weight_[4], cosine_[2], sine_[2];
};

}  // namespace tamis::compressor_cuda
