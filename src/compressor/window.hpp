#pragma once

// Which rows an entry pools, and where they are (S-3.2, S-3.5). One description for the CPU and, being constexpr, for
// device code.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "compressor/params.hpp"
#include "ops/layouts.hpp"

namespace tamis::compressor {

/// Both sums of an entry run over its rows in ascending position, in blocks of so many: each block from zero, then the
/// blocks' sums from zero. So a block can be summed by threads of its own.
inline constexpr int kSumRows = 8;

/// One row that an entry pools, at the first channel of the half that counts. Null pointers: left out.
struct PoolRow {
  const std::byte* value = nullptr;
  const std::byte* gate = nullptr;
  const float* bias = nullptr;  // rows of the inputs: their position bias. Rows of the state have it in the gate.
};

/// Rows of one entry, row k that of position window_begin() + k: first those from the state, of which some may be left
/// out, then those from the inputs of this step.
struct PoolWindow {
  const PoolRow* rows = nullptr;
  std::int64_t state_rows = 0;
  std::int64_t all_rows = 0;  // >= 1
  DType state_dtype = DType::kFloat32;
  DType input_dtype = DType::kFloat32;
};

/// First position of the group that ends at `position`.
constexpr std::int64_t group_of(const CompressorParams& p, std::int64_t position) { return position - (p.ratio - 1); }

/// First position that the entry completed at `position` pools.
constexpr std::int64_t window_begin(const CompressorParams& p, std::int64_t position) {
  return std::max<std::int64_t>(0, group_of(p, position) - (p.coff - 1) * p.ratio);
}

/// Rows that the entry completed at `position` pools.
constexpr int rows_of_entry(const CompressorParams& p, std::int64_t position) {
  return static_cast<int>(position - window_begin(p, position)) + 1;
}

/// Whether a real token that completes an entry also writes it, to `slot`: the cache has it, and cos_sin a row for the
/// entry's own position.
constexpr bool writes_entry(const CompressorParams& p, std::int64_t slot, std::int64_t position) {
  return ops::slot_in_cache(p.cache, slot) && group_of(p, position) < p.max_positions;
}

/// Channels of a row that count: half A of the group before, half B of the own group; without overlap there is one
/// half.
constexpr std::int64_t column_of(const CompressorParams& p, std::int64_t position, std::int64_t group) {
  return p.coff == 2 && position >= group ? p.head_dim : 0;
}

/// The row of a token of this step at `position`, for an entry of `group`.
constexpr PoolRow input_row(const CompressorParams& p, std::int64_t token, std::int64_t position, std::int64_t group) {
  const std::int64_t column = column_of(p, position, group);
  const std::int64_t bytes = dtype_bytes(p.input_dtype);
  return {p.kv + (token * p.kv_stride + column) * bytes, p.gate + (token * p.gate_stride + column) * bytes,
          p.ape + core::remainder(position, p.ratio) * p.ape_stride + column};
}

/// The row of an earlier position of a request; with null pointers where the request has no block for it.
constexpr PoolRow state_row(const CompressorParams& p, std::int64_t request, std::int64_t position,
                            std::int64_t group) {
  const std::byte* row = find_state_row(p, request, position);
  if (row == nullptr) return {};
  const std::int64_t column = column_of(p, position, group);
  const std::int64_t bytes = dtype_bytes(p.state_dtype);
  return {row + column * bytes, row + (p.width() + column) * bytes, nullptr};
}

/// Rows are found from the last one down: tokens of this step as far as they go, stepping over padding, then state.
/// @param rows  [window()]; the first `position - window_begin() + 1` are written.
constexpr PoolWindow find_window(const CompressorParams& p, std::int64_t token, const TokenPlace& place,
                                 PoolRow* rows) {
  const std::int64_t group = group_of(p, place.position);
  const std::int64_t first = window_begin(p, place.position);
  PoolRow* const end = rows + (place.position - first + 1);
  PoolRow* row = end;
  std::int64_t t = place.position;
  for (std::int64_t i = token; t >= first && i >= 0; i = find_token_before(p, place, i, --t)) {
    *--row = input_row(p, i, t, group);
  }
  PoolRow* const inputs = row;
  for (; t >= first; --t) *--row = state_row(p, place.request, t, group);
  return {rows, inputs - rows, end - rows, p.state_dtype, p.input_dtype};
}

}  // namespace tamis::compressor
