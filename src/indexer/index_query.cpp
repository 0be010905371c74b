#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/float_formats.hpp"
#include "core/parallel.hpp"
#include "core/tensor_check.hpp"
#include "indexer/score_args.hpp"
#include "ops/quantize.hpp"
#include "ops/rows.hpp"
#include "tamis/indexer.hpp"

namespace tamis {
namespace {

using core::kAnyExtent;
using indexer::kHeadDim;

constexpr std::string_view kOp = "index_query";

// Heads that go through the steps together: 16 KiB of fp32 on the stack.
constexpr std::int64_t kHeadBlock = 32;

// Heads of an output must not lie on each other, within a token or between tokens. Tokens over heads and heads over
// tokens are the two orders that nest.
void check_heads_apart(const TensorView& view, std::string_view name) {
  core::check_row_stride(view, kOp, name);
  const std::int64_t tokens = view.size(0);
  const std::int64_t heads = view.size(1);
  if (tokens <= 1 || heads <= 1) return;
  // Whether `count` rows, `inner` apart, fit into one step of `outer`.
  const auto nests = [&](std::int64_t count, std::int64_t inner, std::int64_t outer) {
    return outer >= view.size(2) && (outer - view.size(2)) / inner >= count - 1;
  };
  TAMIS_CHECK(nests(heads, view.stride(1), view.stride(0)) || nests(tokens, view.stride(0), view.stride(1)),
              Status::kInvalidArgument, kOp, ": ", name, " has token stride ", view.stride(0), " and head stride ",
              view.stride(1), ", its ", tokens, " x ", heads, " heads must not overlap");
}

void check(const IndexQueryArgs& args) {
  core::check_view(args.q, {kOp, "q", {DType::kFloat32, DType::kBFloat16}, {kAnyExtent, kAnyExtent, kHeadDim}});
  const std::int64_t tokens = args.q.size(0);
  const std::int64_t heads = args.q.size(1);
  TAMIS_CHECK(heads >= 1, Status::kInvalidArgument, kOp, ": q has ", heads, " heads, must have at least 1");
  core::check_view(args.weights, {kOp, "weights", {DType::kFloat32, DType::kBFloat16}, {tokens, heads}});
  core::check_view(args.positions, {kOp, "positions", {DType::kInt64}, {tokens}});
  core::check_view(args.cos_sin, {kOp, "cos_sin", {DType::kFloat32}, {kAnyExtent, ops::kRopeDims}});
  TAMIS_CHECK(args.cos_sin.size(0) >= 1, Status::kInvalidArgument, kOp, ": cos_sin has ", args.cos_sin.size(0),
              " positions, must have at least 1");
  switch (args.format) {
    case IndexFormat::kFloat32:
      core::check_view(args.index_q, {kOp, "index_q", {DType::kFloat32}, {tokens, heads, kHeadDim}});
      break;
    case IndexFormat::kBFloat16:
      core::check_view(args.index_q, {kOp, "index_q", {DType::kBFloat16}, {tokens, heads, kHeadDim}});
      break;
    case IndexFormat::kFp8:
      core::check_view(args.index_q, {kOp, "index_q", {DType::kUInt8, DType::kFloat8E4M3}, {tokens, heads, kHeadDim}});
      break;
    case IndexFormat::kMxfp4:
      core::check_view(args.index_q, {kOp, "index_q", {DType::kUInt8}, {tokens, heads, kHeadDim / 2}});
      core::check_view(args.index_q_scale, {kOp, "index_q_scale", {DType::kUInt8}, {tokens, heads, ops::kMxfp4Blocks}});
      break;
    default:
      core::fail(Status::kInvalidArgument, kOp, ": format is ", static_cast<int>(args.format),
                 ", must be fp32, bf16, fp8 or mxfp4");
  }
  TAMIS_CHECK(args.format == IndexFormat::kMxfp4 || !args.index_q_scale.present(), Status::kInvalidArgument, kOp,
              ": index_q_scale is ", core::describe(args.index_q_scale), ", must be absent for format ",
              indexer::index_format_name(args.format));
  check_heads_apart(args.index_q, "index_q");
  if (args.format == IndexFormat::kMxfp4) check_heads_apart(args.index_q_scale, "index_q_scale");
  core::check_view(args.index_weights, {kOp, "index_weights", {DType::kFloat32}, {tokens, heads}});
  core::check_row_stride(args.index_weights, kOp, "index_weights");
  indexer::check_num_threads(args.num_threads, kOp);
}

template <typename Pointer>
auto* element(const BasicTensorView<Pointer>& view, std::int64_t i, std::int64_t j) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::uint8_t, std::uint8_t>;
  return static_cast<Byte*>(view.data()) + (i * view.stride(0) + j * view.stride(1)) * dtype_bytes(view.dtype());
}

// Quantises one rotated head and returns the scale that goes into its weight.
float store_head(const IndexQueryArgs& args, std::int64_t token, std::int64_t head, const float* row) {
  auto* out = element(args.index_q, token, head);
  switch (args.format) {
    case IndexFormat::kFp8: return core::exp2_int(ops::quantize_fp8(row, kHeadDim, ops::kFp8AmaxFloor, out));
    case IndexFormat::kMxfp4: {
      auto* scales = element(args.index_q_scale, token, head);
      for (std::int64_t b = 0; b < ops::kMxfp4Blocks; ++b)
        scales[b] = ops::quantize_mxfp4_block(row + b * ops::kMxfp4Block, out + b * ops::kMxfp4Block / 2);
      return 1.0F;
    }
    default: ops::store_row(row, kHeadDim, args.index_q.dtype(), out); return 1.0F;
  }
}

void query_token(const IndexQueryArgs& args, std::int64_t token, float head_factor) {
  constexpr float kDimFactor = 0.08838834764831845F;  // 128^-0.5
  alignas(64) float rows[kHeadBlock * kHeadDim];
  const std::int64_t heads = args.q.size(1);
  std::int64_t position = static_cast<const std::int64_t*>(args.positions.data())[token];
  if (position < 0 || position >= args.cos_sin.size(0)) position = 0;
  const auto* cos_sin = static_cast<const float*>(args.cos_sin.data()) + position * args.cos_sin.stride(0);
  for (std::int64_t begin = 0; begin < heads; begin += kHeadBlock) {
    const std::int64_t count = std::min(heads - begin, kHeadBlock);
    for (std::int64_t i = 0; i < count; ++i) {
      float* row = rows + i * kHeadDim;
      ops::load_row(element(args.q, token, begin + i), args.q.dtype(), kHeadDim, row);
      ops::rope_row(row + kHeadDim - ops::kRopeDims, cos_sin);
    }
    // All formats but fp32 are quantised from bf16 values: S-4.2 rounds between RoPE and Hadamard.
    if (args.format != IndexFormat::kFloat32) ops::round_row_to_bf16(rows, count * kHeadDim);
    for (std::int64_t i = 0; i < count; ++i) {
      if (args.hadamard) ops::hadamard_row(rows + i * kHeadDim, kHeadDim);
      const std::int64_t head = begin + i;
      const float scale = store_head(args, token, head, rows + i * kHeadDim);
      float weight = 0;
      ops::load_row(element(args.weights, token, head), args.weights.dtype(), 1, &weight);
      auto* out = reinterpret_cast<float*>(element(args.index_weights, token, head));
      *out = weight * scale * kDimFactor * head_factor;  // in this order (S-4.3)
    }
  }
}

}  // namespace

void index_query(const IndexQueryArgs& args) {
  check(args);
  const auto head_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.q.size(1))));
  core::parallel_for(args.q.size(0), 4, args.num_threads, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t token = begin; token < end; ++token) query_token(args, token, head_factor);
  });
}

}  // namespace tamis
