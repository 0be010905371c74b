#pragma once

#include <cstddef>
#include <cstdint>

#include "tamis/cache.hpp"
#include "tamis/tensor.hpp"
#include "tamis/topk.hpp"

namespace tamis {

/// How indexer queries are stored. Keys must be in the matching cache layout.
enum class IndexFormat : std::uint8_t {
  kFloat32,   ///< [.., 128] fp32; keys kFloat32 or kBFloat16.
  kBFloat16,  ///< [.., 128] bf16; keys kFloat32 or kBFloat16.
  kFp8,       ///< [.., 128] e4m3, its power-of-two scale folded into the head weight; keys kIndexerFp8.
  kMxfp4,     ///< [.., 64] bytes of e2m1 pairs plus [.., 4] UE8M0 bytes; keys kIndexerMxfp4.
};

/// Arguments of index_query(): from the projection to scored form (S-4.1 to S-4.4).
struct IndexQueryArgs {
  ConstTensorView q;          ///< [tokens, index_heads, 128] fp32 or bf16: wq_b qr; last dimension contiguous.
  ConstTensorView weights;    ///< [tokens, index_heads] fp32 or bf16: weights_proj x.
  ConstTensorView positions;  ///< [tokens] int64; out of the table's range = padding, treated as position 0.
  ConstTensorView cos_sin;  ///< [max_positions, 64] fp32: columns 0..31 cos, 32..63 sin. The last 64 dims are rotated.
  bool hadamard = false;    ///< Rotate after RoPE; must agree with how the keys were written.
  IndexFormat format = IndexFormat::kFp8;

  TensorView
      index_q;  ///< Out: [tokens, index_heads, 128] fp32, bf16 or uint8/fp8; kMxfp4: [tokens, index_heads, 64] uint8.
  TensorView index_q_scale;  ///< Out, kMxfp4 only: [tokens, index_heads, 4] uint8.
  TensorView index_weights;  ///< Out: [tokens, index_heads] fp32 = weight (* q scale) * 128^-0.5 * index_heads^-0.5.
  int num_threads = 0;       ///< >= 0: 0 lets the TBB arena decide, 1 stays on the calling thread. Never the result.
  Stream stream;
};

/// @throws Error kInvalidArgument on shape or dtype mismatch. Does not allocate. Definition: src/indexer/reference.hpp.
void index_query(const IndexQueryArgs& args);

/// What a score needs, shared by index_logits() and index_topk():
/// score[r, j] = sum_h index_weights[r, h] * max(0, index_q[r, h] . key[j]), times the key's scale.
/// Here and in the other structs of this header arrays of int32, int64 and fp32 have the natural alignment of their
/// type; queries, their scales and keys may start at any byte.
struct IndexScoreArgs {
  IndexFormat format = IndexFormat::kFp8;
  ConstTensorView index_q;        ///< [rows, index_heads, 128 or 64], as index_query() writes it.
  ConstTensorView index_q_scale;  ///< kMxfp4 only.
  ConstTensorView index_weights;  ///< [rows, index_heads] fp32.

  ConstPagedCache index_k;       ///< Keys; the layout matches `format`.
  ConstTensorView page_table;    ///< [tables, max_pages] int32. Absent: keys are gathered, column j is slot j.
  ConstTensorView row_to_table;  ///< [rows] int32, optional (row r uses table r).
  ConstTensorView row_starts;    ///< [rows] int32, optional (0): first column of the row's window, clamped.
  ConstTensorView row_ends;      ///< [rows] int32: one past the last column, clamped to [start, max_columns].
  std::int64_t max_columns = 0;  ///< Columns of the (virtual) logits matrix.
};

/// Arguments of index_logits().
struct IndexLogitsArgs {
  IndexScoreArgs score;
  TensorView logits;   ///< [rows, max_columns] fp32 or bf16, out; last dimension contiguous.
  bool clean = false;  ///< Write -inf outside each row's window; otherwise those columns are left alone.
  int num_threads = 0;
  Stream stream;
};

/// Writes the scores of every row's window. A column whose page is negative or out of the pool scores -inf.
/// Each score is the same fp32 number whatever the batch, window or thread count. NaN and infinities follow the
/// formula. Does not allocate: its scratch is on the stack, up to 256 KiB of each thread that takes part, the caller's
/// included.
/// @throws Error kInvalidArgument on shape, dtype or layout mismatch. Definition: src/indexer/reference.hpp.
void index_logits(const IndexLogitsArgs& args);

/// Arguments of index_topk(): scores as index_logits(), selection as topk(); the matrix is never stored.
struct IndexTopkArgs {
  IndexScoreArgs score;
  std::int64_t k = 0;
  TensorView indices;  ///< [rows, k] int32 or int64, out: relative to the row's start; short rows end in -1.
  TensorView values;   ///< [rows, k] fp32, optional out; NaN past the winners.
  TopkOrder order = TopkOrder::kPosition;
  TopkMapping mapping = TopkMapping::kNone;
  ConstTensorView ragged_offsets;      ///< kRagged: [rows] int32 or int64.
  ConstTensorView mapping_page_table;  ///< kPageTable: table of the cache attended to (same row_to_table).
  std::int64_t mapping_page_size = 0;  ///< kPageTable: its page size.
  ConstTensorView page_starts;  ///< kPageTable: [rows] int32, optional (0): added to the position before translation
                                ///< only, as in TopkArgs. With score.row_starts given here, too, columns of the
                                ///< logits matrix are translated.
  int num_threads = 0;
  void* workspace = nullptr;  ///< See index_topk_workspace_bytes(); 64-byte aligned; contents may be anything.
  std::size_t workspace_bytes = 0;
  Stream stream;
};

/// Bytes of workspace that let index_topk(args) use all its threads: bounded by threads, k and a fixed block of
/// columns, never by rows x columns. With num_threads = 0 it is sized for the calling thread's TBB arena. index_topk()
/// accepts less, down to what one thread needs for one row, and then runs with the threads that fit: a size that was
/// asked for in a smaller arena than the one of the call, or for any other num_threads, is enough.
std::size_t index_topk_workspace_bytes(const IndexTopkArgs& args);

/// Equal, element for element, to index_logits() in fp32 followed by topk(). Rows with at most k columns are not scored
/// unless values are asked for or the order is kByValue.
/// @throws Error kInvalidArgument on shape, dtype, layout or workspace mismatch.
void index_topk(const IndexTopkArgs& args);

}  // namespace tamis
