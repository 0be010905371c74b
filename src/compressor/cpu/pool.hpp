#pragma once

// The two SIMD kernels of the compressor. Both work channel by channel, without exchange between channels, and say
// which products are fused into a sum: any width of vectors and any instruction set gives the same bits.

#include <cstddef>
#include <cstdint>

#include "compressor/window.hpp"
#include "tamis/tensor.hpp"

namespace tamis::compressor {

/// out[c] = sum_k softmax_k(gate_k[c]) * value_k[c] for c in [0, channels), fp32; sums in the order
/// that kSumRows says. Input rows are rounded to the state's dtype first, so that they count as they would when read
/// back later.
/// @param scratch  [2 * channels]; contents may be anything.
void pool_channels(const PoolWindow& window, std::int64_t channels, float* scratch, float* out);

/// A token's inputs and the state row they go to: width values, then width gates with the bias added.
struct SaveRow {
  const std::byte* value = nullptr;
  const std::byte* gate = nullptr;
  const float* bias = nullptr;
  std::byte* row = nullptr;
  std::int64_t width = 0;
  DType input_dtype = DType::kFloat32;
  DType state_dtype = DType::kFloat32;
  bool stream = false;  // write past the caches where the row is aligned to a cache line
};
void save_row(const SaveRow& r);

/// After the last streamed row of a thread, before another thread may look.
void finish_streaming();

}  // namespace tamis::compressor
