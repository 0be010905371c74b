#pragma once

// The step of a compressor as it is commonly launched: pool, finish, save. Kept to measure what one launch is worth.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tamis/compressor.hpp"

namespace tamis::bench {

/// Bytes between the launches: pooled entries, one a token.
std::size_t three_launches_bytes(const CompressArgs& args);

/// The three launches, or with CompressPlan::kNone the one that saves. `args` are those of a valid compress() on CUDA
/// with fp32 inputs and state and aligned rows of windows up to 128; listed_tokens and algorithm are ignored.
void enqueue_three_launches(const CompressArgs& args, void* pooled, cudaStream_t stream);

}  // namespace tamis::bench
