#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tamis/cache.hpp"
#include "tamis/tensor.hpp"

namespace tamis {

/// Whether a step completes a compressed entry, as far as the host knows.
enum class CompressPlan : std::uint8_t {
  kNone,     ///< No token of the step completes an entry: only state is saved.
  kSome,     ///< At least one does.
  kUnknown,  ///< Not known (bounds too wide, or the stream is capturing): treated like kSome.
};

/// Kernels on CUDA; each does the whole step in one launch.
enum class CompressAlgorithm : std::uint8_t {
  kAuto,         ///< The first that fits, by the table that `tamis explain compressor` prints.
  kShortWindow,  ///< Windows of at most 8 rows (C4) in registers.
  kTallWindow,   ///< Windows of at most 128 rows (C128) in registers, 32 channels a block.
  kAnyWindow,    ///< Any shape, stride and alignment.
};

/// Name as printed: auto, short_window, tall_window, any_window.
const char* compress_algorithm_name(CompressAlgorithm algorithm) noexcept;

/// Decides from exact start positions. Request i owns positions [starts[i], starts[i] + query_lens[i]).
/// @param capturing  True while the stream records a graph: the answer is then kUnknown, so that no skip is baked in.
/// @throws Error kInvalidArgument if the sizes differ, compress_ratio < 1, or a start or length is negative.
CompressPlan compress_plan(std::span<const std::int64_t> starts, std::span<const std::int64_t> query_lens,
                           std::int64_t compress_ratio, bool capturing = false);

/// Decides from bounds lo[i] <= start <= hi[i]. kNone only if no start in any range can complete an entry, kSome if
/// every start in some request's range does, else kUnknown.
CompressPlan compress_plan(std::span<const std::int64_t> start_lo, std::span<const std::int64_t> start_hi,
                           std::span<const std::int64_t> query_lens, std::int64_t compress_ratio,
                           bool capturing = false);

/// Rows a ring must hold so that `max_drafts` rejected tokens a step never overwrite a needed row:
/// ratio * ceil((window + max_drafts) / ratio), window = ratio (C128) or 2 * ratio (overlapping).
/// Some engines keep exactly this for C128: 128 without drafts, 256 with up to 128.
/// @throws Error kInvalidArgument unless compress_ratio is in [1, 1024] and max_drafts in [0, 2^31 - 1].
std::int64_t compress_ring_rows(std::int64_t compress_ratio, bool overlap, std::int64_t max_drafts);

/// First earlier position whose state row a request at position `start` can still need: the group's first token, one
/// group earlier when overlapping, never below 0. After a prefix hit at `start`, replay or restore [result, start).
std::int64_t compress_state_begin(std::int64_t start, std::int64_t compress_ratio, bool overlap);

/// True while `stream` of a CUDA device records a graph, as its driver says; false on the CPU.
/// @throws Error kUnsupported for a CUDA device in a build without CUDA.
bool stream_is_capturing(Device device, Stream stream);

/// Most entries that a step can complete: min(tokens, tokens / R + requests). A request completes at most one entry
/// more than its tokens fill groups.
/// @throws Error kInvalidArgument unless tokens >= 0, requests >= 0 and compress_ratio is in [1, 1024].
std::int64_t compress_list_capacity(std::int64_t tokens, std::int64_t requests, std::int64_t compress_ratio);

/// One ratio's part of build_compress_step().
struct CompressList {
  std::int64_t compress_ratio = 0;  ///< R, in [1, 1024].
  TensorView tokens;  ///< [at least compress_list_capacity()] int32, out: the tokens of the step that complete an
                      ///< entry, ascending, then -1 to the end. Contiguous.
};

inline constexpr std::size_t kMaxCompressLists = 4;

/// Arguments of build_compress_step(). The first three are those that compress() gets.
struct CompressStepArgs {
  ConstTensorView positions;            ///< [tokens] int64.
  ConstTensorView token_to_request;     ///< [tokens] int32.
  ConstTensorView query_start_loc;      ///< [requests + 1] int32.
  std::span<const CompressList> lists;  ///< At most kMaxCompressLists, one a ratio of the model.
  Stream stream;
};

/// The plan of a step where the host does not know its positions: lists the tokens that complete an entry, once a step
/// for all layers. Given to compress() as `listed_tokens`, the list spares each layer the search and bounds its work by
/// the list, also in a graph, where the list is filled anew at every replay. Padding is never listed. The order is
/// fixed, so the same step gives the same list. If positions do not ascend by one within a request, which is outside
/// the contract of compress(), a list may be too short: it then holds the first tokens.
/// Does not allocate; on CUDA one small launch on `stream`, asynchronous, safe under graph capture.
/// @throws Error kInvalidArgument on shape, dtype or device mismatch, kUnsupported as compress().
void build_compress_step(const CompressStepArgs& args);

/// Launches that compress() made, for whoever wants to know what a plan saves. The caller's, added to by each call; a
/// graph's replays do not come by here.
struct CompressCounts {
  std::int64_t pooled = 0;   ///< Calls that saved state and looked for entries to pool.
  std::int64_t skipped = 0;  ///< Calls that saved state only, because of CompressPlan::kNone.
};

/// Arguments of compress(): one step of one compressor (C4 main, C4 indexer or C128) over a flattened batch.
/// d = cache.head_dim in [64, 2^20], coff = overlap ? 2 : 1, R = compress_ratio. Arrays are read as the dtype they are
/// declared with, so each must begin at a multiple of its element's size (fp32, int32: 4 bytes, bf16: 2, int64: 8);
/// only the cache may have any alignment. All memory lies on one device, that of kv.
struct CompressArgs {
  std::int64_t compress_ratio = 0;  ///< R: 4 or 128 in DeepSeek-V4; any value in [1, 1024] works.
  bool overlap = false;             ///< C4: each entry pools the previous group's half A and its own half B.

  ConstTensorView kv;           ///< [tokens, coff * d] fp32 or bf16: wkv x. Last dimension contiguous.
  ConstTensorView gate;         ///< [tokens, coff * d] same dtype: wgate x, before the position bias.
  ConstTensorView ape;          ///< [R, coff * d] fp32: gate bias by position modulo R.
  ConstTensorView norm_weight;  ///< [d] fp32.
  float rms_norm_eps = 1e-6F;   ///< Finite, at least 0.
  ConstTensorView cos_sin;  ///< [max_positions, 64] fp32: columns 0..31 cos, 32..63 sin. Entry j is rotated at j * R;
                            ///< an entry past the table is not written.
  bool hadamard = false;    ///< Rotate the 128-vector after RoPE (indexer only; S-4.2).

  // Who owns which token. Padding may stand anywhere, also inside the range of a request: in front of its tokens,
  // behind or between them. Without it, tokens of a request are consecutive and their positions ascend by one. A token
  // outside the range of the request it names is padding, too.
  ConstTensorView positions;         ///< [tokens] int64, absolute; negative = padding, ignored.
  ConstTensorView token_to_request;  ///< [tokens] int32; out of range = padding, ignored.
  ConstTensorView query_start_loc;   ///< [requests + 1] int32: request r owns tokens [qsl[r], qsl[r + 1]).

  // State: rows of coff * d values, then coff * d gates with the bias already added (S-3.6). Exactly one form is used.
  TensorView state;  ///< [blocks, block_size, 2 * coff * d] fp32 or bf16; blocks may be strided.
  ConstTensorView
      state_table;  ///< Paged: [requests, max_blocks] int32; position t is row t % block_size of block t / block_size.
  ConstTensorView state_slots;  ///< Paged: [tokens] int64, where each token's row is saved; -1 saves nothing.
  ConstTensorView state_ring;   ///< Ring: [requests] int32, the block each request owns; position t is row t %
                                ///< block_size >= compress_ring_rows(R, overlap, 0). -1 = none.

  PagedCache cache;          ///< Output: kFp8Mla584, kBFloat16, kFloat32, kFp8PerTensor, kIndexerFp8 or kIndexerMxfp4.
  ConstTensorView kv_slots;  ///< [tokens] int64: where the entry that token i completes goes; -1 writes nothing.
  ConstTensorView
      listed_tokens;  ///< Optional: [any] int32, the list of build_compress_step() for this step and ratio.
                      ///< Tokens that it lacks complete nothing; -1 and other numbers that are no token are
                      ///< skipped. With state_ring it must have all tokens that complete an entry, each once:
                      ///< on CUDA, entries also save rows that take the place of those that they pool.

  CompressPlan plan = CompressPlan::kUnknown;  ///< kNone skips the pooling part; state is saved in every case. While
                                               ///< `stream` records a graph, kNone counts as kUnknown.
  CompressCounts* counts = nullptr;            ///< Optional; host memory.
  CompressAlgorithm algorithm = CompressAlgorithm::kAuto;  ///< CUDA only. One that cannot serve the call is an error.
  int num_threads = 0;  ///< CPU: 0 lets the TBB arena decide, 1 stays on the calling thread. Never changes the result.
                        ///< Must not be negative; more threads than tokens are not used.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  Stream stream;
};

/// Bytes of workspace that compress(args) needs, 64-byte aligned; contents may be anything. On the CPU it is the sum of
/// one share a worker, at least one and at most one a token: one share is enough to run, with as many workers as there
/// are shares. On CUDA 0, but where head_dim is above 8,192. Everything but `workspace` and `workspace_bytes` is
/// checked as by compress(), with the same errors.
std::size_t compress_workspace_bytes(const CompressArgs& args);

/// Saves the state of every token and, for each token that completes a group, pools, norms, rotates, quantises and
/// stores one entry (S-3).
///
/// Entry j of a request pools positions jR .. jR + R - 1 (overlap: also the R before, through half A; absent for j = 0)
/// with a softmax over the gates, channel by channel, in fp32. Rows of the current step are taken from the inputs
/// (after rounding to the state's dtype), older ones from the state, so the same bits come out for any split of a
/// prompt into steps, any batch and any place in it. Which earlier rows are read: compress_state_begin() .. start - 1;
/// an earlier call must have saved them. A row without a block (state_table or state_ring out of range) is left out of
/// its entry. So state that was never written is not reachable, whatever bytes it holds. In rows that count, a gate of
/// -inf weighs nothing; NaN, a gate of +inf, or a channel with no gate above -inf makes the entry NaN.
/// A rejected draft token needs no undo: its rows are overwritten when the position is processed again (ring: as long
/// as the ring has compress_ring_rows()). An entry is written by the token that completes it and is overwritten
/// likewise.
///
/// The same bits on the CPU and on CUDA, NaN excepted, which is NaN on both (in MXFP4, which has none, a 6 of either
/// sign). Does not allocate. On CUDA one launch, asynchronous on `stream`, safe under graph capture: nothing that the
/// host knows of this step's positions is kept in the graph. Blocks wait at most for others of their own cluster, which
/// are on the chip together. From sm_90 on a programmatic dependent launch behind it may begin at once: as always it
/// has to wait (griddepcontrol.wait) before it touches what this call reads or writes.
/// @throws Error kInvalidArgument on shape, dtype, layout, device or workspace mismatch, kUnsupported if an argument is
/// on a device that this build has no code for or a forced algorithm cannot serve the call, kDeviceError if there is no
/// such device.
/// Definition: src/compressor/reference.hpp.
void compress(const CompressArgs& args);

}  // namespace tamis
