#ifndef TAMIS_TAMIS_H
#define TAMIS_TAMIS_H

// The C ABI of tamis: every operation with plain structs, for C and for whatever speaks C. Compiles as C11 and as C++,
// without CUDA. The C++ headers beside this one hold the full contracts; what a field means is the same in both.
//
//   tamis_topk_args args = {0};        // In C++: args{}. Zero is the default of every field.
//   args.struct_size = sizeof args;
//   args.scores = tamis_tensor_2d(scores, TAMIS_DTYPE_FLOAT32, rows, width);
//   ...
//   if (tamis_topk(&args) != TAMIS_OK) fprintf(stderr, "%s\n", tamis_last_error());
//
// Growth. Argument structs begin with struct_size = sizeof of the struct in the header that the caller was compiled
// with, and only ever grow at their end. A library newer than the caller takes fields past struct_size as zero. A
// library older than the caller accepts a larger struct as long as every byte that it does not know is zero, and
// answers TAMIS_UNSUPPORTED otherwise: nothing that was asked for is ignored. The structs without a struct_size
// (tensor, cache, device, certificate, compress_list, compress_counts, rope_scaling) are fixed.
//
// Calls. No function throws, prints, exits or keeps a pointer to its arguments. Operations allocate nothing on success.
// Any number of threads may call at once, each with its own outputs and workspace.

#include <stddef.h>
#include <stdint.h>

#define TAMIS_VERSION_MAJOR 0
#define TAMIS_VERSION_MINOR 1
#define TAMIS_VERSION_PATCH 0

#if defined(__GNUC__)
#define TAMIS_API __attribute__((visibility("default")))
#else
#define TAMIS_API
#endif

#ifdef __cplusplus
#define TAMIS_NOEXCEPT noexcept
extern "C" {
#else
#define TAMIS_NOEXCEPT
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Status, errors, version

/// What a call returns. Values of tamis::Status.
typedef int32_t tamis_status;
enum {
  TAMIS_OK = 0,
  TAMIS_INVALID_ARGUMENT = 1,    ///< The caller's mistake: a shape, dtype, device or value outside the contract.
  TAMIS_UNSUPPORTED = 2,         ///< Our gap: a combination this build or machine has no code for.
  TAMIS_RESOURCE_EXHAUSTED = 3,  ///< A pool or memory is too small; the text names need and size.
  TAMIS_DEVICE_ERROR = 4,        ///< A driver or runtime call failed.
  TAMIS_DATA_ERROR = 5,          ///< A byte stream is not what its format promises.
  TAMIS_INTERNAL = 6             ///< A broken invariant of this library.
};

/// Lower-case name of a status, e.g. "invalid argument"; "unknown status" for any other number.
TAMIS_API const char* tamis_status_name(tamis_status status) TAMIS_NOEXCEPT;

/// Why the last call that failed on this thread failed: operation, argument, what was expected and what came. Empty
/// before the first failure; left alone by calls that succeed; valid until the thread's next failure or end.
/// Longer than 1,023 bytes, the text is cut and ends in "...".
TAMIS_API const char* tamis_last_error(void) TAMIS_NOEXCEPT;

/// Version of the library that is loaded, e.g. "0.1.0". TAMIS_VERSION_* are those of the header.
TAMIS_API const char* tamis_version(void) TAMIS_NOEXCEPT;

/// The same as one number that can be compared: 10000 * major + 100 * minor + patch.
TAMIS_API int32_t tamis_version_number(void) TAMIS_NOEXCEPT;

// ---------------------------------------------------------------------------------------------------------------------
// Views

/// Element types. Values of tamis::DType.
typedef int32_t tamis_dtype;
enum {
  TAMIS_DTYPE_FLOAT32 = 0,
  TAMIS_DTYPE_BFLOAT16 = 1,
  TAMIS_DTYPE_FLOAT16 = 2,
  TAMIS_DTYPE_FLOAT8_E4M3 = 3,
  TAMIS_DTYPE_UINT8 = 4,  ///< Also packed bytes: fp8 with separate scales, MXFP4 pairs.
  TAMIS_DTYPE_INT32 = 5,
  TAMIS_DTYPE_INT64 = 6
};

/// fp32, bf16, fp16, fp8_e4m3, uint8, int32, int64; "unknown dtype" for any other number.
TAMIS_API const char* tamis_dtype_name(tamis_dtype dtype) TAMIS_NOEXCEPT;

/// Where memory is. The zero device is the CPU.
typedef struct tamis_device {
  int32_t kind;   ///< TAMIS_DEVICE_CPU or TAMIS_DEVICE_CUDA.
  int32_t index;  ///< Which one; 0 for the CPU.
} tamis_device;
enum { TAMIS_DEVICE_CPU = 0, TAMIS_DEVICE_CUDA = 1 };

#define TAMIS_MAX_RANK 4

/// A view: owns nothing. Rank 0 (a zeroed struct) means absent, which is how optional arguments are left out.
/// Arguments that an operation documents as inputs are never written through.
typedef struct tamis_tensor {
  void* data;  ///< May be null when there are no elements.
  tamis_dtype dtype;
  int32_t rank;                     ///< 0 (absent) to TAMIS_MAX_RANK.
  int64_t shape[TAMIS_MAX_RANK];    ///< Extents; the first `rank` count.
  int64_t strides[TAMIS_MAX_RANK];  ///< In elements, not bytes. Must be set: see the helpers below.
  tamis_device device;
} tamis_tensor;

/// A dense row-major view on the CPU; set `device` or `strides` afterwards where they differ.
static inline tamis_tensor tamis_tensor_nd(const void* data, tamis_dtype dtype, int32_t rank, const int64_t* shape) {
  tamis_tensor tensor;
  uint64_t step = 1;  // Unsigned, so that absurd extents wrap here and are reported by the call.
  int32_t d;
  // By way of an integer: one struct serves inputs and outputs, and inputs are often const.
  tensor.data = (void*)(uintptr_t)data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  tensor.device.kind = TAMIS_DEVICE_CPU;
  tensor.device.index = 0;
  for (d = TAMIS_MAX_RANK - 1; d >= 0; --d) {
    tensor.shape[d] = d < rank ? shape[d] : 0;
    tensor.strides[d] = d < rank ? (int64_t)step : 0;
    if (d < rank) step *= (uint64_t)shape[d];
  }
  return tensor;
}
static inline tamis_tensor tamis_tensor_1d(const void* data, tamis_dtype dtype, int64_t n) {
  return tamis_tensor_nd(data, dtype, 1, &n);
}
static inline tamis_tensor tamis_tensor_2d(const void* data, tamis_dtype dtype, int64_t n0, int64_t n1) {
  int64_t shape[2];
  shape[0] = n0;
  shape[1] = n1;
  return tamis_tensor_nd(data, dtype, 2, shape);
}
static inline tamis_tensor tamis_tensor_3d(const void* data, tamis_dtype dtype, int64_t n0, int64_t n1, int64_t n2) {
  int64_t shape[3];
  shape[0] = n0;
  shape[1] = n1;
  shape[2] = n2;
  return tamis_tensor_nd(data, dtype, 3, shape);
}

// ---------------------------------------------------------------------------------------------------------------------
// Caches (tamis/cache.hpp)

/// How one entry of a paged cache is stored. Values of tamis::CacheLayout.
typedef int32_t tamis_cache_layout;
enum {
  TAMIS_CACHE_FLOAT32 = 0,
  TAMIS_CACHE_BFLOAT16 = 1,
  TAMIS_CACHE_FP8_PER_TENSOR = 2,  ///< e4m3, value = code * scale.
  TAMIS_CACHE_FP8_MLA_584 = 3,     ///< V4 main attention. head_dim 512.
  TAMIS_CACHE_FP8_MLA_656 = 4,     ///< V3.2. head_dim 576.
  TAMIS_CACHE_INDEXER_FP8 = 5,     ///< 132 bytes an entry. head_dim 128.
  TAMIS_CACHE_INDEXER_MXFP4 = 6    ///< 68 bytes an entry. head_dim 128.
};

/// A paged cache: slot s is entry s % page_size of page s / page_size. A zeroed struct means absent.
/// n gathered rows are one page of n entries.
typedef struct tamis_paged_cache {
  void* data;
  tamis_cache_layout layout;
  float scale;  ///< TAMIS_CACHE_FP8_PER_TENSOR only; 0 means 1.
  int64_t head_dim;
  int64_t num_pages;
  int64_t page_size;          ///< Entries a page.
  int64_t page_stride_bytes;  ///< From page to page; may exceed the payload.
  tamis_device device;
} tamis_paged_cache;

/// fp32, bf16, fp8_tensor, fp8_mla584, fp8_mla656, indexer_fp8, indexer_mxfp4; "unknown layout" for any other number.
TAMIS_API const char* tamis_cache_layout_name(tamis_cache_layout layout) TAMIS_NOEXCEPT;

/// Bytes that one entry occupies, data and scales.
TAMIS_API tamis_status tamis_cache_entry_bytes(tamis_cache_layout layout, int64_t head_dim,
                                               int64_t* bytes) TAMIS_NOEXCEPT;

/// Smallest page stride: page_size entries, rounded up to 576 bytes for TAMIS_CACHE_FP8_MLA_584.
TAMIS_API tamis_status tamis_cache_page_bytes(tamis_cache_layout layout, int64_t head_dim, int64_t page_size,
                                              int64_t* bytes) TAMIS_NOEXCEPT;

typedef struct tamis_cache_write_args {
  size_t struct_size;
  tamis_tensor rows;        ///< [n, head_dim] fp32 or bf16; last dimension contiguous.
  tamis_tensor slots;       ///< [n] int32 or int64; < 0 or past the cache writes nothing. Distinct within a call.
  tamis_paged_cache cache;  ///< Out.
} tamis_cache_write_args;

/// Quantises rows and stores row i at slots[i].
TAMIS_API tamis_status tamis_cache_write(const tamis_cache_write_args* args) TAMIS_NOEXCEPT;

typedef struct tamis_cache_read_args {
  size_t struct_size;
  tamis_paged_cache cache;
  tamis_tensor slots;  ///< [n] int32 or int64; < 0 or past the cache gives zeros.
  tamis_tensor rows;   ///< [n, head_dim] fp32 or bf16, out; last dimension contiguous.
} tamis_cache_read_args;

/// Reads entries back as numbers.
TAMIS_API tamis_status tamis_cache_read(const tamis_cache_read_args* args) TAMIS_NOEXCEPT;

// ---------------------------------------------------------------------------------------------------------------------
// Top-k (tamis/topk.hpp)

/// In which order a row's winners are written. Values of tamis::TopkOrder.
typedef int32_t tamis_topk_order;
enum {
  TAMIS_TOPK_ORDER_POSITION = 0,  ///< Ascending position.
  TAMIS_TOPK_ORDER_UNSORTED = 1,  ///< Whatever is cheapest; the set is still exact.
  TAMIS_TOPK_ORDER_BY_VALUE = 2   ///< Largest score first; equal scores by ascending position; NaN last.
};

/// What is written instead of the position. Values of tamis::TopkMapping.
typedef int32_t tamis_topk_mapping;
enum {
  TAMIS_TOPK_MAPPING_NONE = 0,
  TAMIS_TOPK_MAPPING_PAGE_TABLE = 1,  ///< page_table[t][q / page_size] * page_size + q % page_size, q = position +
                                      ///< page_starts[row].
  TAMIS_TOPK_MAPPING_RAGGED = 2       ///< position + ragged_offsets[row].
};

/// Values of tamis::TopkAlgorithm. A forced algorithm that cannot serve the call is an error.
typedef int32_t tamis_topk_algorithm;
enum {
  TAMIS_TOPK_ALGORITHM_AUTO = 0,
  TAMIS_TOPK_ALGORITHM_IDENTITY = 1,
  TAMIS_TOPK_ALGORITHM_SIMD_FILTER = 2,
  TAMIS_TOPK_ALGORITHM_SELECT = 3,
  TAMIS_TOPK_ALGORITHM_REGISTERS = 4,
  TAMIS_TOPK_ALGORITHM_STREAM = 5,
  TAMIS_TOPK_ALGORITHM_GRID = 6,
  TAMIS_TOPK_ALGORITHM_CUB = 7
};

/// auto, identity, simd_filter, select, registers, ...; "unknown algorithm" for any other number.
TAMIS_API const char* tamis_topk_algorithm_name(tamis_topk_algorithm algorithm) TAMIS_NOEXCEPT;

/// Evidence for one row: enough to check a selection without sorting the row.
typedef struct tamis_topk_certificate {
  float threshold;        ///< Score of the last winner, as fp32. NaN if there is none.
  int32_t num_above;      ///< Positions that rank strictly above the threshold; all are winners.
  int32_t num_equal;      ///< Positions whose score equals the threshold.
  int32_t num_equal_won;  ///< How many of those won: the lowest positions.
} tamis_topk_certificate;

typedef struct tamis_topk_args {
  size_t struct_size;
  tamis_tensor scores;       ///< [rows, width] fp32, bf16 or fp16; last dimension contiguous, any row stride >= width.
  tamis_tensor row_starts;   ///< [rows] int32, optional (0). Clamped to [0, width].
  tamis_tensor row_ends;     ///< [rows] int32, optional (width). Clamped to [start, width].
  int64_t k;                 ///< Winners a row; equals the columns of indices.
  tamis_tensor indices;      ///< [rows, k] int32 or int64, out. Every element is written; a short row ends in -1.
  tamis_tensor values;       ///< [rows, k] of the dtype of scores, optional out. Past the winners: quiet NaN.
  tamis_tensor certificate;  ///< [rows, 4] int32, optional out: one tamis_topk_certificate a row.
  tamis_topk_order order;
  tamis_topk_mapping mapping;
  tamis_tensor page_table;      ///< [tables, max_pages] int32 for PAGE_TABLE. A negative or missing page gives -1.
  tamis_tensor row_to_table;    ///< [rows] int32, optional (row r uses table r). Out of range gives -1.
  tamis_tensor page_starts;     ///< [rows] int32, optional (0).
  int64_t page_size;            ///< Entries a page for PAGE_TABLE.
  tamis_tensor ragged_offsets;  ///< [rows] int32 or int64 for RAGGED.
  tamis_topk_algorithm algorithm;
  int32_t num_threads;     ///< CPU: 0 lets the library decide, 1 stays on this thread. Never changes the result.
  void* workspace;         ///< tamis_topk_workspace_bytes(), 64-byte aligned; contents may be anything.
  size_t workspace_bytes;  ///< Size of what workspace points to.
  void* stream;            ///< A cudaStream_t on CUDA; ignored on the CPU.
} tamis_topk_args;

/// Bytes of workspace that tamis_topk(args) needs. Depends on shapes and choices, not on contents.
TAMIS_API tamis_status tamis_topk_workspace_bytes(const tamis_topk_args* args, size_t* bytes) TAMIS_NOEXCEPT;

/// Writes, for each row, the positions of its k largest scores inside [row_start, row_end), relative to row_start.
/// Exact and a pure function of the input: NaN < -inf < finite < +inf, -0 equals +0, of equal scores the lower position
/// wins. The min(k, n) winners come first, then -1.
TAMIS_API tamis_status tamis_topk(const tamis_topk_args* args) TAMIS_NOEXCEPT;

/// The algorithm that tamis_topk(args) would use, and why. Either output may be null; the text lives as long as the
/// library is loaded.
TAMIS_API tamis_status tamis_topk_choose(const tamis_topk_args* args, tamis_topk_algorithm* algorithm,
                                         const char** why) TAMIS_NOEXCEPT;

/// Whether calls on a device can take an algorithm at all, or with TAMIS_TOPK_ALGORITHM_AUTO any algorithm: whether it
/// was built, and whether there is a device that runs it. A device that is not there is an answer, not an error.
/// @param device_kind  TAMIS_DEVICE_CPU or TAMIS_DEVICE_CUDA.
/// @param available    Out: 1 or 0.
/// @param why          Out, may be null: the reason for 0, empty for 1. Belongs to the calling thread and is valid
/// until
///                     its next call of this function or its end; longer than 1,023 bytes, it is cut and ends in "...".
TAMIS_API tamis_status tamis_topk_support(int32_t device_kind, int32_t device_index, tamis_topk_algorithm algorithm,
                                          int32_t* available, const char** why) TAMIS_NOEXCEPT;

/// Row ends for next_n query rows a request: max(0, seq_lens[r] - next_n + 1 + i) / compress_ratio.
/// @param row_ends  [num_requests * next_n], out.
TAMIS_API tamis_status tamis_topk_row_ends(const int32_t* seq_lens, int64_t num_requests, int64_t next_n,
                                           int64_t compress_ratio, int32_t* row_ends) TAMIS_NOEXCEPT;

// ---------------------------------------------------------------------------------------------------------------------
// Compressor (tamis/compressor.hpp)

/// Whether a step completes a compressed entry. Zero is the safe answer, so the values differ from
/// tamis::CompressPlan's.
typedef int32_t tamis_compress_plan;
enum {
  TAMIS_COMPRESS_PLAN_UNKNOWN = 0,  ///< Not known: treated like SOME.
  TAMIS_COMPRESS_PLAN_NONE = 1,     ///< No token completes an entry: only state is saved.
  TAMIS_COMPRESS_PLAN_SOME = 2      ///< At least one does.
};

/// Kernels of the compressor on CUDA; on the CPU it must be AUTO. Values of tamis::CompressAlgorithm. A forced
/// algorithm that cannot serve the call is an error.
typedef int32_t tamis_compress_algorithm;
enum {
  TAMIS_COMPRESS_ALGORITHM_AUTO = 0,
  TAMIS_COMPRESS_ALGORITHM_SHORT_WINDOW = 1,
  TAMIS_COMPRESS_ALGORITHM_TALL_WINDOW = 2,
  TAMIS_COMPRESS_ALGORITHM_ANY_WINDOW = 3
};

/// auto, short_window, tall_window, any_window; "unknown algorithm" for any other number.
TAMIS_API const char* tamis_compress_algorithm_name(tamis_compress_algorithm algorithm) TAMIS_NOEXCEPT;

/// Decides from exact start positions: request i owns positions [starts[i], starts[i] + query_lens[i]).
/// @param capturing  Not 0 while the stream records a graph: the answer is then UNKNOWN.
TAMIS_API tamis_status tamis_compress_plan_exact(const int64_t* starts, const int64_t* query_lens, int64_t num_requests,
                                                 int64_t compress_ratio, int32_t capturing,
                                                 tamis_compress_plan* plan) TAMIS_NOEXCEPT;

/// Decides from bounds start_lo[i] <= start <= start_hi[i]: NONE only if no start can complete an entry.
TAMIS_API tamis_status tamis_compress_plan_bounds(const int64_t* start_lo, const int64_t* start_hi,
                                                  const int64_t* query_lens, int64_t num_requests,
                                                  int64_t compress_ratio, int32_t capturing,
                                                  tamis_compress_plan* plan) TAMIS_NOEXCEPT;

/// Rows a state ring must hold so that max_drafts rejected tokens a step never overwrite a needed row.
TAMIS_API tamis_status tamis_compress_ring_rows(int64_t compress_ratio, int32_t overlap, int64_t max_drafts,
                                                int64_t* rows) TAMIS_NOEXCEPT;

/// First earlier position whose state row a request at position `start` can still need.
TAMIS_API tamis_status tamis_compress_state_begin(int64_t start, int64_t compress_ratio, int32_t overlap,
                                                  int64_t* position) TAMIS_NOEXCEPT;

/// Whether a stream of a device records a graph, as its driver says; never on the CPU.
/// @param device_kind  TAMIS_DEVICE_CPU or TAMIS_DEVICE_CUDA.
/// @param stream       A cudaStream_t on CUDA; ignored on the CPU.
/// @param capturing    Out: 1 or 0.
TAMIS_API tamis_status tamis_stream_is_capturing(int32_t device_kind, int32_t device_index, void* stream,
                                                 int32_t* capturing) TAMIS_NOEXCEPT;

/// Most entries that a step of so many tokens and requests can complete.
TAMIS_API tamis_status tamis_compress_list_capacity(int64_t tokens, int64_t requests, int64_t compress_ratio,
                                                    int64_t* capacity) TAMIS_NOEXCEPT;

/// One ratio's part of tamis_build_compress_step().
typedef struct tamis_compress_list {
  int64_t compress_ratio;  ///< In [1, 1024].
  tamis_tensor tokens;     ///< [at least tamis_compress_list_capacity()] int32, out: the tokens that complete an entry,
                           ///< ascending, then -1 to the end. Contiguous.
} tamis_compress_list;

#define TAMIS_MAX_COMPRESS_LISTS 4

typedef struct tamis_compress_step_args {
  size_t struct_size;
  tamis_tensor positions;            ///< This and the next two: as in tamis_compress_args.
  tamis_tensor token_to_request;     ///< [tokens] int32.
  tamis_tensor query_start_loc;      ///< [requests + 1] int32.
  const tamis_compress_list* lists;  ///< [num_lists], one a ratio of the model. May be null when there are none.
  int64_t num_lists;                 ///< At most TAMIS_MAX_COMPRESS_LISTS.
  void* stream;
} tamis_compress_step_args;

/// Lists the tokens of a step that complete an entry, once for all layers: `listed_tokens` of tamis_compress(). On CUDA
/// one launch, asynchronous and safe under graph capture, where a replay fills the lists anew.
TAMIS_API tamis_status tamis_build_compress_step(const tamis_compress_step_args* args) TAMIS_NOEXCEPT;

/// Launches that tamis_compress() made. The caller's, in host memory; each call adds to it, a graph's replay does not.
typedef struct tamis_compress_counts {
  int64_t pooled;   ///< Calls that saved state and looked for entries to pool.
  int64_t skipped;  ///< Calls that saved state only, because of TAMIS_COMPRESS_PLAN_NONE.
} tamis_compress_counts;

/// One step of one compressor over a flattened batch. d = cache.head_dim, coff = overlap ? 2 : 1, R = compress_ratio.
typedef struct tamis_compress_args {
  size_t struct_size;
  int64_t compress_ratio;    ///< R in [1, 1024]; 4 or 128 in DeepSeek-V4.
  int32_t overlap;           ///< Not 0 for C4: each entry also pools the previous group's half A.
  float rms_norm_eps;        ///< 0 means 1e-6.
  tamis_tensor kv;           ///< [tokens, coff * d] fp32 or bf16.
  tamis_tensor gate;         ///< [tokens, coff * d] same dtype, before the position bias.
  tamis_tensor ape;          ///< [R, coff * d] fp32.
  tamis_tensor norm_weight;  ///< [d] fp32.
  tamis_tensor cos_sin;      ///< [max_positions, 64] fp32: columns 0..31 cos, 32..63 sin. Entry j is rotated at j * R.
  int32_t hadamard;          ///< Not 0: rotate the 128-vector after RoPE (indexer only).
  tamis_compress_plan plan;
  tamis_tensor positions;         ///< [tokens] int64, absolute; negative = padding.
  tamis_tensor token_to_request;  ///< [tokens] int32; out of range = padding.
  tamis_tensor query_start_loc;   ///< [requests + 1] int32.
  tamis_tensor state;        ///< [blocks, block_size, 2 * coff * d] fp32 or bf16, in and out; blocks may be strided.
  tamis_tensor state_table;  ///< Paged state: [requests, max_blocks] int32.
  tamis_tensor state_slots;  ///< Paged state: [tokens] int64; -1 saves nothing.
  tamis_tensor state_ring;   ///< Ring state: [requests] int32, the block each request owns; -1 = none.
  tamis_paged_cache cache;   ///< Out.
  tamis_tensor kv_slots;     ///< [tokens] int64: where the entry that token i completes goes; -1 writes nothing.
  int32_t num_threads;       ///< CPU: 0 lets the library decide, 1 stays on this thread. Never changes the result.
  void* workspace;           ///< tamis_compress_workspace_bytes(), 64-byte aligned; contents may be anything.
  size_t workspace_bytes;
  void* stream;
  tamis_tensor listed_tokens;     ///< Optional: [any] int32, the list of tamis_build_compress_step() for this step and
                                  ///< ratio. Tokens that it lacks complete nothing; what is no token is skipped.
                                  ///< With state_ring it must have all tokens that complete an entry, each once.
  tamis_compress_counts* counts;  ///< Optional, in and out.
  tamis_compress_algorithm algorithm;
  int32_t reserved;  ///< Must be 0.
} tamis_compress_args;

TAMIS_API tamis_status tamis_compress_workspace_bytes(const tamis_compress_args* args, size_t* bytes) TAMIS_NOEXCEPT;

/// Saves the state of every token and, for each token that completes a group, pools, norms, rotates, quantises and
/// stores one entry. The same bits come out for any split of a prompt into steps, any batch and any place in it.
TAMIS_API tamis_status tamis_compress(const tamis_compress_args* args) TAMIS_NOEXCEPT;

// ---------------------------------------------------------------------------------------------------------------------
// Indexer (tamis/indexer.hpp)

/// How indexer queries are stored. Values of tamis::IndexFormat.
typedef int32_t tamis_index_format;
enum {
  TAMIS_INDEX_FLOAT32 = 0,   ///< Keys fp32 or bf16.
  TAMIS_INDEX_BFLOAT16 = 1,  ///< Keys fp32 or bf16.
  TAMIS_INDEX_FP8 = 2,       ///< Keys TAMIS_CACHE_INDEXER_FP8.
  TAMIS_INDEX_MXFP4 = 3      ///< Keys TAMIS_CACHE_INDEXER_MXFP4.
};

typedef struct tamis_index_query_args {
  size_t struct_size;
  tamis_index_format format;
  int32_t hadamard;            ///< Not 0: rotate after RoPE; must agree with how the keys were written.
  tamis_tensor q;              ///< [tokens, index_heads, 128] fp32 or bf16.
  tamis_tensor weights;        ///< [tokens, index_heads] fp32 or bf16.
  tamis_tensor positions;      ///< [tokens] int64; out of the table's range = padding, treated as position 0.
  tamis_tensor cos_sin;        ///< [max_positions, 64] fp32.
  tamis_tensor index_q;        ///< Out: [tokens, index_heads, 128] fp32, bf16 or uint8/fp8; MXFP4: [.., 64] uint8.
  tamis_tensor index_q_scale;  ///< Out, MXFP4 only: [tokens, index_heads, 4] uint8.
  tamis_tensor index_weights;  ///< Out: [tokens, index_heads] fp32.
  int32_t num_threads;
  void* stream;
} tamis_index_query_args;

/// From the projection to scored form: RoPE, Hadamard, quantisation, scale folded into the head weights.
TAMIS_API tamis_status tamis_index_query(const tamis_index_query_args* args) TAMIS_NOEXCEPT;

/// score[r, j] = sum_h index_weights[r, h] * max(0, index_q[r, h] . key[j]), times the key's scale.
typedef struct tamis_index_logits_args {
  size_t struct_size;
  tamis_index_format format;
  int32_t clean;               ///< Not 0: write -inf outside each row's window; otherwise those columns are left alone.
  tamis_tensor index_q;        ///< As tamis_index_query() writes it.
  tamis_tensor index_q_scale;  ///< MXFP4 only.
  tamis_tensor index_weights;  ///< [rows, index_heads] fp32.
  tamis_paged_cache index_k;   ///< Keys; the layout matches `format`.
  tamis_tensor page_table;     ///< [tables, max_pages] int32. Absent: keys are gathered, column j is slot j.
  tamis_tensor row_to_table;   ///< [rows] int32, optional (row r uses table r).
  tamis_tensor row_starts;     ///< [rows] int32, optional (0), clamped.
  tamis_tensor row_ends;       ///< [rows] int32, clamped to [start, max_columns].
  int64_t max_columns;         ///< Columns of the logits matrix.
  tamis_tensor logits;         ///< [rows, max_columns] fp32 or bf16, out; last dimension contiguous.
  int32_t num_threads;
  void* stream;
} tamis_index_logits_args;

/// Writes the scores of every row's window. A column whose page is negative or out of the pool scores -inf.
TAMIS_API tamis_status tamis_index_logits(const tamis_index_logits_args* args) TAMIS_NOEXCEPT;

typedef struct tamis_index_topk_args {
  size_t struct_size;
  tamis_index_format format;
  tamis_topk_order order;
  tamis_tensor index_q;  ///< This and the next eight fields: as in tamis_index_logits_args.
  tamis_tensor index_q_scale;
  tamis_tensor index_weights;
  tamis_paged_cache index_k;
  tamis_tensor page_table;
  tamis_tensor row_to_table;
  tamis_tensor row_starts;
  tamis_tensor row_ends;
  int64_t max_columns;
  int64_t k;
  tamis_tensor indices;  ///< [rows, k] int32 or int64, out: relative to the row's start; short rows end in -1.
  tamis_tensor values;   ///< [rows, k] fp32, optional out; NaN past the winners.
  tamis_topk_mapping mapping;
  int32_t num_threads;
  tamis_tensor ragged_offsets;      ///< RAGGED: [rows] int32 or int64.
  tamis_tensor mapping_page_table;  ///< PAGE_TABLE: table of the cache attended to (same row_to_table).
  int64_t mapping_page_size;        ///< PAGE_TABLE: its page size.
  void* workspace;                  ///< tamis_index_topk_workspace_bytes(), 64-byte aligned; contents may be anything.
  size_t workspace_bytes;
  void* stream;
  tamis_tensor page_starts;  ///< PAGE_TABLE: [rows] int32, optional (0): added to the position before translation only.
} tamis_index_topk_args;

TAMIS_API tamis_status tamis_index_topk_workspace_bytes(const tamis_index_topk_args* args,
                                                        size_t* bytes) TAMIS_NOEXCEPT;

/// Equal, element for element, to tamis_index_logits() in fp32 followed by tamis_topk(); the matrix is never stored.
TAMIS_API tamis_status tamis_index_topk(const tamis_index_topk_args* args) TAMIS_NOEXCEPT;

// ---------------------------------------------------------------------------------------------------------------------
// Sparse MLA (tamis/sparse_mla.hpp)

typedef struct tamis_sparse_mla_args {
  size_t struct_size;
  float softmax_scale;            ///< 0 means head_dim_qk^-0.5.
  int32_t num_threads;            ///< CPU: 0 lets the library decide, 1 stays on this thread.
  tamis_tensor q;                 ///< [rows, num_q_heads, head_dim_qk] fp32 or bf16; last dimension contiguous.
  tamis_paged_cache cache;        ///< Raw window cache, or the gathered rows.
  tamis_tensor topk_indices;      ///< [rows, topk] int32 slots of `cache`; < 0 or past it is invalid in any lane.
  tamis_tensor topk_lens;         ///< [rows] int32, optional (topk). Clamped; lanes at or past it are never read.
  tamis_paged_cache extra_cache;  ///< Compressed cache; optional, with its own indices.
  tamis_tensor extra_topk_indices;
  tamis_tensor extra_topk_lens;
  tamis_tensor attn_sink;   ///< [num_q_heads] fp32, optional: a logit that adds to the denominator only.
  tamis_tensor out;         ///< [rows, num_q_heads, 512] fp32 or bf16, out.
  tamis_tensor lse;         ///< [rows, num_q_heads] fp32, optional out: natural log, without the sink.
  tamis_tensor max_logits;  ///< [rows, num_q_heads] fp32, optional out.
  void* workspace;          ///< tamis_sparse_mla_workspace_bytes(), 64-byte aligned; contents may be anything.
  size_t workspace_bytes;
  void* stream;
} tamis_sparse_mla_args;

TAMIS_API tamis_status tamis_sparse_mla_workspace_bytes(const tamis_sparse_mla_args* args,
                                                        size_t* bytes) TAMIS_NOEXCEPT;

/// Attention of each row over the listed slots of both caches, with the sink in the denominator. A row without a valid
/// key gives 0 and lse -inf. V is the first 512 dims of the key.
TAMIS_API tamis_status tamis_sparse_mla(const tamis_sparse_mla_args* args) TAMIS_NOEXCEPT;

// ---------------------------------------------------------------------------------------------------------------------
// Small operations (tamis/ops.hpp). Views are passed by pointer; null or a zeroed view means absent.

/// y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension.
/// @param x       [rows, n] fp32 or bf16.   @param weight  [n] fp32, optional (1).   @param y  [rows, n]; may be x.
TAMIS_API tamis_status tamis_rmsnorm(const tamis_tensor* x, const tamis_tensor* weight, float eps,
                                     const tamis_tensor* y) TAMIS_NOEXCEPT;

/// YaRN parameters. factor <= 1 means plain rotary frequencies.
typedef struct tamis_rope_scaling {
  double factor;
  double original_max_positions;
  double beta_fast;
  double beta_slow;
} tamis_rope_scaling;

/// frequencies[i] = base^(-i / num_frequencies), bent by YaRN. @param scaling  Null: none.
TAMIS_API tamis_status tamis_rope_frequencies(double base, const tamis_rope_scaling* scaling, int64_t num_frequencies,
                                              double* frequencies) TAMIS_NOEXCEPT;

/// Fills [max_positions, 2n] fp32: row p holds cos(p * f_i), then sin(p * f_i).
TAMIS_API tamis_status tamis_rope_table(const double* frequencies, int64_t num_frequencies,
                                        const tamis_tensor* cos_sin) TAMIS_NOEXCEPT;

/// Rotates the last 64 dims of each vector in place, in interleaved pairs. A position outside the table leaves its
/// token unchanged.
/// @param x  [tokens, heads, n] fp32 or bf16.   @param positions  [tokens] int64.   @param inverse  Not 0: rotate back.
TAMIS_API tamis_status tamis_rope(const tamis_tensor* x, const tamis_tensor* positions, const tamis_tensor* cos_sin,
                                  int32_t inverse) TAMIS_NOEXCEPT;

/// Hadamard rotation of each row in place, n^-0.5 * H x. @param x  [rows, n] fp32, n a power of two up to 1024.
TAMIS_API tamis_status tamis_hadamard(const tamis_tensor* x) TAMIS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif  // TAMIS_TAMIS_H
