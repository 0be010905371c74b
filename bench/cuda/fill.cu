// Makes scores where they are needed: a GiB of them would take the host seconds.
// Work split: a block a row.
// Bound by:   arithmetic; nobody times it.
// Sync:       none; a score depends on where it is alone.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "bench/cuda/fill.hpp"
#include "core/check.hpp"
#include "core/cuda/cuda_check.hpp"

namespace tamis::bench {
namespace {

constexpr int kFillThreads = 512;
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// The output of SplitMix64 for a state.
__device__ std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// In [0, 1].
__device__ float unit(std::uint32_t bits) { return static_cast<float>(bits) * 0x1p-32F; }

// Box-Muller, one of the two.
__device__ float normal(std::uint64_t bits) {
  const float u = unit(static_cast<std::uint32_t>(bits >> 32)) + 0x1p-33F;  // above 0: its logarithm is finite
  return sqrtf(fmaxf(0.0F, -2.0F * logf(u))) * cospif(2.0F * unit(static_cast<std::uint32_t>(bits)));
}

// Score i of a row of `width`. Sorted rows are quantiles, scaled by row so that rows differ.
__device__ float score(FillKind kind, std::uint64_t row_seed, std::int64_t i, std::int64_t width) {
  const float of_row = 1.0F + 0.25F * unit(static_cast<std::uint32_t>(row_seed));
  const auto quantile = [&] {
    return of_row * normcdfinvf((static_cast<float>(i) + 0.5F) / static_cast<float>(width));
  };
  const float x = normal(mix(row_seed + static_cast<std::uint64_t>(i) * kGolden));
  switch (kind) {
    case FillKind::kNormal: return x;
    case FillKind::kNormalPlus100: return x + 100.0F;
    case FillKind::kNormalTimes1e8: return x * 1e-8F;
    case FillKind::kAscending: return quantile();
    case FillKind::kDescending: return -quantile();
    case FillKind::kQuantised: return rintf(x * 8.0F) / 8.0F;
    case FillKind::kAllEqual: return 0.5F * of_row;
    case FillKind::kRelu90: return fmaxf(0.0F, x - 1.2816F);  // 90% of a normal lies below 1.2816
  }
  return x;
}

template <typename T>
__device__ T rounded(float x);
template <>
__device__ float rounded<float>(float x) {
  return x;
}
template <>
__device__ __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __half rounded<__half>(float x) {
  return __float2half_rn(x);
}

template <typename T>
__global__ void __launch_bounds__(kFillThreads) fill_kernel(const FillArgs a) {
  const std::int64_t row = blockIdx.x;  // of all copies
  const std::uint64_t row_seed = mix(a.seed + static_cast<std::uint64_t>(row) * kGolden);
  T* out = static_cast<T*>(a.scores) + row / a.rows * a.copy_stride + row % a.rows * a.width;
  for (std::int64_t i = threadIdx.x; i < a.width; i += kFillThreads) {
    out[i] = rounded<T>(score(a.kind, row_seed, i, a.width));
  }
}

template <typename T>
void launch_fill(const FillArgs& args, cudaStream_t stream) {
  if (args.copies * args.rows == 0) return;  // a grid of zero blocks is a launch error
  fill_kernel<T><<<static_cast<unsigned>(args.copies * args.rows), kFillThreads, 0, stream>>>(args);
  TAMIS_CUDA_CHECK(cudaGetLastError());
}

struct NamedKind {
  std::string_view name;
  FillKind kind;
};
constexpr NamedKind kKinds[] = {
    {"normal", FillKind::kNormal},
    {"normal_plus_100", FillKind::kNormalPlus100},
    {"normal_times_1e_8", FillKind::kNormalTimes1e8},
    {"ascending", FillKind::kAscending},
    {"descending", FillKind::kDescending},
    {"quantised", FillKind::kQuantised},
    {"all_equal", FillKind::kAllEqual},
    {"relu_90", FillKind::kRelu90},
};

}  // namespace

FillKind fill_kind(std::string_view name) {
  for (const NamedKind& known : kKinds) {
    if (known.name == name) return known.kind;
  }
  core::fail(Status::kInternal, "bench: the GPU makes no scores of kind ", name);
}

void fill_scores(const FillArgs& args, cudaStream_t stream) {
  switch (args.dtype) {
    case DType::kBFloat16: return launch_fill<__nv_bfloat16>(args, stream);
    case DType::kFloat16: return launch_fill<__half>(args, stream);
    default: return launch_fill<float>(args, stream);
  }
}

}  // namespace tamis::bench
