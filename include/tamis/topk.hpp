#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tamis/tensor.hpp"

namespace tamis {

/// In which order a row's winners are written.
enum class TopkOrder : std::uint8_t {
  kPosition,  ///< Ascending position (default): reproducible, and gathers walk memory forwards.
  kUnsorted,  ///< Whatever is cheapest; the set is still exact. Today this equals kPosition on every backend.
  kByValue,   ///< Largest score first; equal scores by ascending position; NaN last.
};

/// What is written instead of the position relative to the row's start.
enum class TopkMapping : std::uint8_t {
  kNone,       ///< The position itself.
  kPageTable,  ///< Physical slot: page_table[t][q / page_size] * page_size + q % page_size, q = position +
               ///< page_starts[row].
  kRagged,     ///< position + ragged_offsets[row]: the row of a concatenated buffer.
};

/// Names as `tamis explain topk` prints them. A forced algorithm that cannot serve the call is an error.
enum class TopkAlgorithm : std::uint8_t {
  kAuto,
  kIdentity,    ///< Every row has at most k positions: no scan.
  kSimdFilter,  ///< CPU: one SIMD pass with a rising threshold, exact finish over the survivors.
  kSelect,  ///< Any k, no assumptions, the slow exact path. CPU: keys of the whole row and nth_element. CUDA: several
            ///< passes over the row by one block.
  kRegisters,  ///< CUDA: one block holds a short row in registers.
  kStream,     ///< CUDA: one pass by one block a row against a sampled bar.
  kGrid,       ///< CUDA: the same with several blocks a row that meet in the workspace; two launches.
  kCub,        ///< CUDA: select, then CUB sorts the winners: any k by value.
};

/// Evidence for one row, 16 bytes: enough to check a selection without sorting the row.
struct TopkCertificate {
  float threshold;             ///< Score of the last winner, as fp32 (exact for bf16 and fp16); a zero is +0. NaN if
                               ///< there is none.
  std::int32_t num_above;      ///< Positions of the window that rank strictly above the threshold; all are winners.
  std::int32_t num_equal;      ///< Positions of the window whose score equals the threshold (NaN equals NaN here).
  std::int32_t num_equal_won;  ///< How many of those won: the lowest positions. num_above + num_equal_won = min(k, n).
};
static_assert(sizeof(TopkCertificate) == 16);

/// Arguments of topk(). Optional views are left default-constructed.
struct TopkArgs {
  ConstTensorView
      scores;  ///< [rows, width] fp32, bf16 or fp16; last dimension contiguous, any row stride >= width,
               ///< any address on the CPU, whole elements on CUDA. width < 2^31. The call runs on its device.
  ConstTensorView row_starts;  ///< [rows] int32, optional (0). Clamped to [0, width].
  ConstTensorView row_ends;    ///< [rows] int32, optional (width). Clamped to [start, width].
  std::int64_t k = 0;          ///< Winners a row, >= 0; must equal indices.size(1).

  TensorView indices;  ///< [rows, k] int32 or int64, out. Every element is written; a short row ends in -1. A mapped
                       ///< number that does not fit is written as -1.
  TensorView values;   ///< [rows, k] of the dtype of scores, optional out. Past the winners: quiet NaN.
  TensorView certificate;  ///< [rows, 4] int32, optional out: one TopkCertificate a row.

  TopkOrder order = TopkOrder::kPosition;
  TopkMapping mapping = TopkMapping::kNone;
  ConstTensorView page_table;      ///< [tables, max_pages] int32 for kPageTable. A negative or missing page gives -1.
  ConstTensorView row_to_table;    ///< [rows] int32, optional (row r uses table r). Out of range gives -1.
  ConstTensorView page_starts;     ///< [rows] int32, optional (0): added to the position before translation only.
  std::int64_t page_size = 0;      ///< Entries a page for kPageTable.
  ConstTensorView ragged_offsets;  ///< [rows] int32 or int64 for kRagged.

  TopkAlgorithm algorithm = TopkAlgorithm::kAuto;
  int num_threads = 0;        ///< CPU: 0 uses all cores, 1 stays on the calling thread. Never changes the result.
  void* workspace = nullptr;  ///< At least topk_workspace_bytes(args), 64-byte aligned; contents may be anything. One
                              ///< for each call that may run at the same time.
  std::size_t workspace_bytes = 0;
  Stream stream;  ///< CUDA: of the device of scores. Everything a call points to lies on that device.
};

/// Bytes of workspace that topk(args) needs; depends on shapes, k, dtype, order, algorithm, num_threads and device, not
/// on contents.
/// @throws Error as topk() does for everything but the workspace.
std::size_t topk_workspace_bytes(const TopkArgs& args);

/// Writes, for each row, the positions of its k largest scores inside the row's window, relative to the window's start.
///
/// The result is a pure function of the input: NaN < -inf < finite < +inf, -0 equals +0, and of equal scores the lower
/// position wins. The min(k, n) winners come first, then -1. Positions outside the window are never looked at.
/// Rows are independent: neither the batch, the thread count nor the algorithm changes a row's result.
/// Does not allocate; on CUDA asynchronous on `stream` and safe under graph capture.
/// @throws Error kInvalidArgument on shape, dtype or device mismatch or a short workspace; kUnsupported if a forced
///         algorithm cannot serve the call, listing every unmet constraint.
/// Definition: src/topk/reference.hpp.
void topk(const TopkArgs& args);

/// Row ends for `next_n` query rows a request: row i of request r ends at max(0, seq_lens[r] - next_n + 1 + i) / ratio
/// (the division comes after the clamp). A ratio of 0 or 1 leaves raw lengths.
/// @param seq_lens  [requests], tokens including the next_n of this step; may be stale or negative.
/// @param row_ends  [requests * next_n], out.
/// @throws Error kInvalidArgument if next_n < 1, compress_ratio < 0 or the sizes disagree.
void topk_row_ends(std::span<const std::int32_t> seq_lens, std::int64_t next_n, std::int64_t compress_ratio,
                   std::span<std::int32_t> row_ends);

/// The rule that topk(args) would follow: its algorithm and why. Text lives as long as the program.
struct TopkChoice {
  TopkAlgorithm algorithm;
  const char* why;
};
TopkChoice topk_choose(const TopkArgs& args);

/// Whether calls on a device can take an algorithm at all; which of them a given call takes, topk_choose() says.
struct TopkSupport {
  TopkAlgorithm algorithm;
  bool available;
  std::string why;  ///< Why not: no CUDA in this build, no device and what the driver says, no kernel for this GPU in
                    ///< this binary and what it was built for, or what the GPU lacks. Empty where available.
};

/// The algorithms of a kind of device, each once, in the order in which the rules try them. On the CPU all are
/// available. For CUDA the device is asked, so the first call may take as long as starting the driver takes; a device
/// that is not there is an answer, not an error.
/// @throws Error kInvalidArgument if device.kind is neither kCpu nor kCuda.
std::vector<TopkSupport> topk_support(Device device);

/// Name of an algorithm: auto, identity, simd_filter, select, registers, stream, grid, cub.
const char* topk_algorithm_name(TopkAlgorithm algorithm) noexcept;

}  // namespace tamis
