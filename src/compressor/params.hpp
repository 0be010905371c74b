#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/divide.hpp"
#include "tamis/cache.hpp"
#include "tamis/compressor.hpp"
#include "tamis/tensor.hpp"

namespace tamis::compressor {

inline constexpr std::int64_t kMaxRatio = 1024;  // most rows of a group

/// Checked arguments of one step, as every backend takes them. Strides are in elements of the tensor's dtype.
struct CompressorParams {
  std::int64_t ratio = 0;     // R
  std::int64_t coff = 1;      // 2 where groups overlap
  std::int64_t head_dim = 0;  // d
  std::int64_t tokens = 0;
  std::int64_t requests = 0;

  const std::byte* kv = nullptr;
  const std::byte* gate = nullptr;
  DType input_dtype = DType::kFloat32;
  std::int64_t kv_stride = 0;
  std::int64_t gate_stride = 0;
  const float* ape = nullptr;
  std::int64_t ape_stride = 0;
  const float* norm_weight = nullptr;
  float rms_norm_eps = 0;
  const float* cos_sin = nullptr;
  std::int64_t cos_sin_stride = 0;
  std::int64_t max_positions = 0;
  bool hadamard = false;

  const std::int64_t* positions = nullptr;
  const std::int32_t* token_to_request = nullptr;
  const std::int32_t* query_start_loc = nullptr;

  std::byte* state = nullptr;
  DType state_dtype = DType::kFloat32;
  std::int64_t num_blocks = 0;
  std::int64_t block_size = 0;
  std::int64_t block_stride = 0;
  std::int64_t row_stride = 0;
  const std::int32_t* state_table = nullptr;  // paged, else null
  std::int64_t state_table_stride = 0;
  std::int64_t max_blocks = 0;
  const std::int64_t* state_slots = nullptr;  // paged, else null
  const std::int32_t* state_ring = nullptr;   // ring, else null

  PagedCache cache;
  const std::int64_t* kv_slots = nullptr;
  const std::int32_t* listed = nullptr;  // tokens that may complete an entry, else null: all are asked
  std::int64_t num_listed = 0;

  constexpr std::int64_t width() const { return coff * head_dim; }  // values of a row; as many gates follow
  constexpr std::int64_t window() const { return coff * ratio; }    // L: rows that an entry pools
};

/// The arguments of compress() with every check but that of the workspace, and its errors.
CompressorParams checked_params(const CompressArgs& args);

/// Where a token stands, with everything from outside clamped or rejected.
struct TokenPlace {
  bool valid = false;  // false: padding, no effect at all
  std::int64_t position = 0;
  std::int64_t request = 0;
  std::int64_t chunk_begin = 0;  // the request's first token of this step, in [0, token]
  std::int64_t chunk_end = 0;    // one past its last, in (token, tokens]
};

/// A token is real if its position is not negative and it lies inside the range of the request it names. Everything
/// else that padding may carry (stale requests, stale positions past the last request) fails one of these. Padding may
/// stand inside a range, too, so places in a range say nothing about positions.
constexpr TokenPlace place_token(const CompressorParams& p, std::int64_t token) {
  TokenPlace place;
  place.position = p.positions[token];
  place.request = p.token_to_request[token];
  if (place.position < 0 || place.request < 0 || place.request >= p.requests) return place;
  place.chunk_begin = std::max<std::int64_t>(0, p.query_start_loc[place.request]);
  place.chunk_end = std::min<std::int64_t>(p.tokens, p.query_start_loc[place.request + 1]);
  place.valid = place.chunk_begin <= token && token < place.chunk_end;
  return place;
}

/// For tokens inside the range of `request`: false for padding.
constexpr bool is_token_of(const CompressorParams& p, std::int64_t token, std::int64_t request) {
  return p.positions[token] >= 0 && p.token_to_request[token] == request;
}

/// The request's last token in front of `token`, stepping over padding, if it has this position; else -1.
constexpr std::int64_t find_token_before(const CompressorParams& p, const TokenPlace& place, std::int64_t token,
                                         std::int64_t position) {
  for (std::int64_t i = token - 1; i >= place.chunk_begin; --i) {
    if (is_token_of(p, i, place.request)) return p.positions[i] == position ? i : -1;
  }
  return -1;
}

constexpr bool completes_entry(const CompressorParams& p, std::int64_t position) {
  return core::remainder(position, p.ratio) ==
         p.ratio - 1;  // not (position + 1) % R, which overflows for a stale maximum
}

/// False for what fills up a list behind its tokens.
constexpr bool is_listed(const CompressorParams& p, std::int64_t i) {
  return p.listed[i] >= 0 && p.listed[i] < p.tokens;
}

/// Byte offset of a state row; block and row must be in range.
constexpr std::int64_t state_offset(const CompressorParams& p, std::int64_t block, std::int64_t row) {
  return (block * p.block_stride + row * p.row_stride) * dtype_bytes(p.state_dtype);
}

/// Row of an earlier position of a request, or null where the request has no block for it.
constexpr const std::byte* find_state_row(const CompressorParams& p, std::int64_t request, std::int64_t position) {
  std::int64_t block = -1;
  if (p.state_ring != nullptr) {
    block = p.state_ring[request];
  } else {
    const std::int64_t column = core::quotient(position, p.block_size);
    if (column < p.max_blocks) block = p.state_table[request * p.state_table_stride + column];
  }
  if (block < 0 || block >= p.num_blocks) return nullptr;
  return p.state + state_offset(p, block, core::remainder(position, p.block_size));
}

/// True if a later token of the same request and step belongs in the same row of the ring: the one that is block_size
/// positions on, or any past it. Without padding between them it is block_size tokens on, where the search begins.
constexpr bool is_replaced_in_ring(const CompressorParams& p, const TokenPlace& place, std::int64_t token) {
  if (p.block_size >= place.chunk_end - token) return false;
  for (std::int64_t i = token + p.block_size; i < place.chunk_end; ++i) {
    if (is_token_of(p, i, place.request) && p.positions[i] - p.block_size >= place.position) return true;
  }
  return false;
}

/// Where a token's row goes in a paged state; -1 in a ring.
constexpr std::int64_t save_slot(const CompressorParams& p, std::int64_t token) {
  return p.state_slots != nullptr ? p.state_slots[token] : -1;
}

/// Row that a token of this step is saved to, or null where nothing is to be saved. A ring keeps the last block_size
/// positions of a step only: earlier ones would be overwritten by them.
/// @param slot  save_slot(p, token)
constexpr std::byte* find_save_row(const CompressorParams& p, const TokenPlace& place, std::int64_t token,
                                   std::int64_t slot) {
  if (p.state_ring != nullptr) {
    const std::int64_t block = p.state_ring[place.request];
    if (block < 0 || block >= p.num_blocks || is_replaced_in_ring(p, place, token)) return nullptr;
    return p.state + state_offset(p, block, core::remainder(place.position, p.block_size));
  }
  if (slot < 0 || slot >= p.num_blocks * p.block_size) return nullptr;
  return p.state + state_offset(p, core::quotient(slot, p.block_size), core::remainder(slot, p.block_size));
}

}  // namespace tamis::compressor
