#pragma once

// What sparse_mla() hands to its backends once everything is checked, and how a worker's scratch memory is laid out.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tamis/cache.hpp"
#include "tamis/tensor.hpp"

namespace tamis::sparse_mla_detail {

inline constexpr std::int64_t kHeadDimV = 512;

/// Keys decoded and attended together. Part of the result's bits: it decides where the online softmax rescales.
/// 64 keys of 512 dims are 132 KiB, which stay in a 512 KiB L2 beside the queries of 64 heads.
inline constexpr std::int64_t kKeysPerBlock = 64;

/// Heads and keys of one register tile. Rows of queries are padded with zeros to whole tiles.
inline constexpr std::int64_t kTileHeads = 4;
inline constexpr std::int64_t kTileKeys = 4;

/// Floats added to every row in scratch. 512 floats are half a 4 KiB cache way: without the extra line, the same
/// columns of many rows would share two sets of the L1 and evict each other.
inline constexpr std::int64_t kRowPadding = 16;

struct SourceParams {
  ConstPagedCache cache;
  const std::int32_t* indices = nullptr;  // null where topk is 0
  std::int64_t indices_stride = 0;
  std::int64_t topk = 0;
  const std::int32_t* lens = nullptr;  // null: topk
};

struct SparseMlaParams {
  const std::byte* q = nullptr;
  DType q_dtype = DType::kFloat32;
  std::int64_t q_row_stride = 0, q_head_stride = 0;  // elements
  std::int64_t rows = 0, num_heads = 0, head_dim_qk = 0;
  std::array<SourceParams, 2> sources;
  const float* sink = nullptr;  // null: none
  float softmax_scale = 0;

  std::byte* out = nullptr;
  DType out_dtype = DType::kFloat32;
  std::int64_t out_row_stride = 0, out_head_stride = 0;  // elements
  float* lse = nullptr;                                  // null: not asked for
  std::int64_t lse_row_stride = 0;
  float* max_logits = nullptr;
  std::int64_t max_logits_row_stride = 0;
};

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Scratch of one worker that attends to up to `heads` heads of a row at a time, in floats from a 64-byte boundary.
struct Scratch {
  std::int64_t padded_heads, key_stride;
  std::int64_t keys, q, acc, weights, max, sum, alpha, size;  // offsets, and the size of it all

  static constexpr std::int64_t kAccStride = kHeadDimV + kRowPadding;

  constexpr Scratch(std::int64_t heads, std::int64_t head_dim_qk)
      : padded_heads(round_up(heads, kTileHeads)), key_stride(head_dim_qk + kRowPadding) {
    const std::int64_t per_head = round_up(padded_heads, 16);  // whole vectors and whole cache lines
    keys = 0;                                                  // [kKeysPerBlock, key_stride]
    q = keys + kKeysPerBlock * key_stride;                     // [padded_heads, key_stride]
    acc = q + padded_heads * key_stride;                       // [padded_heads, kAccStride]
    weights = acc + padded_heads * kAccStride;                 // [padded_heads, kKeysPerBlock]
    max = weights + padded_heads * kKeysPerBlock;              // [per_head], and so the next two
    sum = max + per_head;
    alpha = sum + per_head;
    size = alpha + per_head;
  }
};
static_assert(Scratch(5, 512).size % 16 == 0 && Scratch(5, 576).size % 16 == 0, "workers must not share a cache line");

}  // namespace tamis::sparse_mla_detail
