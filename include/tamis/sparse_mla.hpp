#pragma once

#include <cstddef>
#include <cstdint>

#include "tamis/cache.hpp"
#include "tamis/tensor.hpp"

namespace tamis {

/// One source of keys: a cache and, for each query row, the slots to attend to.
struct SparseMlaSource {
  ConstPagedCache cache;  ///< kFp8Mla584, kBFloat16, kFloat32 (d_qk 512 or 576) or kFp8Mla656. Absent: no such source.
  ConstTensorView topk_indices;  ///< [rows, topk] int32 physical slots; < 0 or >= num_slots() is invalid in any lane.
  ConstTensorView
      topk_lens;  ///< [rows] int32, optional (topk). Clamped to [0, topk]; lanes at or past it are never read.
};

/// Arguments of sparse_mla(): decode over two caches, or prefill over gathered rows (one page, one source).
struct SparseMlaArgs {
  ConstTensorView q;          ///< [rows, num_q_heads, head_dim_qk] fp32 or bf16; last dimension contiguous.
  SparseMlaSource main;       ///< Raw window cache, or the gathered rows.
  SparseMlaSource extra;      ///< Compressed cache; optional.
  ConstTensorView attn_sink;  ///< [num_q_heads] fp32, optional: a logit that adds to the denominator only.
  float softmax_scale = 0;    ///< 0 means head_dim_qk^-0.5.

  TensorView out;  ///< [rows, num_q_heads, 512] fp32 or bf16, out. V is the first 512 dims of the key.
  TensorView lse;  ///< [rows, num_q_heads] fp32, optional out: natural log, sink excluded; -inf for an empty row.
  TensorView max_logits;  ///< [rows, num_q_heads] fp32, optional out; -inf for an empty row.
  int num_threads = 0;
  void* workspace = nullptr;  ///< sparse_mla_workspace_bytes(args), 64-byte aligned; contents may be anything.
  std::size_t workspace_bytes = 0;
  Stream stream;
};

/// Bytes of workspace that sparse_mla(args) needs; depends on shapes, head_dim and workers, not on lists or their
/// width. With num_threads = 0 ask from the TBB arena that will make the call: its workers count.
/// @throws Error as sparse_mla() does for everything but the workspace.
std::size_t sparse_mla_workspace_bytes(const SparseMlaArgs& args);

/// out = sum_k softmax(l)_k * V_k with l_k = softmax_scale * (q . key_k) over the union of both sources and the sink in
/// the denominator (S-2.5, S-6.1). A slot listed twice counts twice. Invalid lanes contribute nothing and are not read,
/// so bytes of unused slots (NaN included) cannot reach the result. A row without a valid key gives 0 and lse -inf,
/// with or without a sink; sink = -inf changes nothing, +inf gives 0. A row's result does not depend on the batch, the
/// threads, or on where in its list the -1 lanes stand. A NaN in a key that a row uses makes that row's outputs NaN.
/// @throws Error kInvalidArgument on shape, dtype, layout or workspace mismatch. Definition:
/// src/sparse_mla/reference.hpp.
void sparse_mla(const SparseMlaArgs& args);

}  // namespace tamis
