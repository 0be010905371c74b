#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "tamis/tensor.hpp"

namespace tamis::bench {

/// Kinds of scores, by the names of tests/support/topk_cases.hpp: those that must not slow a selection down.
enum class FillKind : std::uint8_t {
  kNormal,
  kNormalPlus100,
  kNormalTimes1e8,
  kAscending,
  kDescending,
  kQuantised,
  kAllEqual,
  kRelu90,
};

/// @throws Error kInternal for a name that there is no kind for.
FillKind fill_kind(std::string_view name);

/// Scores to be made: `copies` of [rows, width], each copy_stride elements behind the one before. No two rows agree, in
/// whichever copy (16-bit rows of one value may).
struct FillArgs {
  void* scores;
  DType dtype;  // fp32, bf16 or fp16: made in fp32 and rounded to nearest
  std::int64_t copies, rows, width, copy_stride;
  FillKind kind;
  std::uint64_t seed;
};

/// Enqueues the making. A score is a function of seed, copy, row, position, and the shape of the copies.
void fill_scores(const FillArgs& args, cudaStream_t stream);

}  // namespace tamis::bench
