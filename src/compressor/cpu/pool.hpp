#pragma once

// The two SIMD kernels of the compressor. Both work channel by channel, without exchange between channels, so any cut
// of the channels (vectors, tiles, threads) gives the same bits. Only adds, multiplications and divisions that are
// rounded one by one are used, no FMA: the same bits on every instruction set.

#include <cstddef>
#include <cstdint>

#include "tamis/tensor.hpp"

namespace tamis::compressor {

/// One row that an entry pools, at the first channel of the half that counts.
struct PoolRow {
  const std::byte* value = nullptr;
  const std::byte* gate = nullptr;
  const float* bias = nullptr;  // rows of the inputs: their position bias. Rows of the state have it in the gate.
};

/// Rows of one entry in ascending position: first those from the state, then those from the inputs of this step.
struct PoolWindow {
  const PoolRow* rows = nullptr;
  std::int64_t state_rows = 0;
  std::int64_t all_rows = 0;  // >= 1
  DType state_dtype = DType::kFloat32;
  DType input_dtype = DType::kFloat32;
};

/// out[c] = sum_k softmax_k(gate_k[c]) * value_k[c] for c in [begin, end), fp32, rows in their order. Input rows are
/// rounded to the state's dtype first, so that they count as they would when read back later.
void pool_channels(const PoolWindow& window, std::int64_t begin, std::int64_t end, float* out);

/// Writes a state row: width values, then width gates with the bias added.
void save_row(const std::byte* value, const std::byte* gate, const float* bias, std::int64_t width, DType input_dtype,
              DType state_dtype, std::byte* row);

}  // namespace tamis::compressor
