#include "tamis/compressor.hpp"

#include <algorithm>
#include <cstdint>

#include "compressor/cpu/compress_cpu.hpp"
#include "compressor/params.hpp"
#include "core/parallel.hpp"
#include "core/tensor_check.hpp"
#include "ops/layouts.hpp"

namespace tamis {
namespace {

using compressor::CompressorParams;
using compressor::kMaxRatio;
using core::check_view;
using core::kAnyExtent;

constexpr const char* kOp = "compress";
// Far above any model. With kMaxRatio it bounds the scratch memory of a worker, and no product of shapes wraps.
constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 20;
constexpr std::size_t kWorkspaceAlignment = 64;

void check_numbers(const CompressArgs& a) {
  TAMIS_CHECK(a.compress_ratio >= 1 && a.compress_ratio <= kMaxRatio, Status::kInvalidArgument, kOp,
              ": compress_ratio is ", a.compress_ratio, ", must be in [1, ", kMaxRatio, "]");
  TAMIS_CHECK(a.cache.head_dim >= ops::kRopeDims && a.cache.head_dim <= kMaxHeadDim, Status::kInvalidArgument, kOp,
              ": cache.head_dim is ", a.cache.head_dim, ", must be in [", ops::kRopeDims, ", ", kMaxHeadDim, "]");
  TAMIS_CHECK(a.num_threads >= 0, Status::kInvalidArgument, kOp, ": num_threads is ", a.num_threads, ", must be >= 0");
}

void check_on_cpu(const CompressArgs& a) {
  const struct {
    const char* name;
    Device device;
  } places[] = {{"kv", a.kv.device()},
                {"gate", a.gate.device()},
                {"ape", a.ape.device()},
                {"norm_weight", a.norm_weight.device()},
                {"cos_sin", a.cos_sin.device()},
                {"positions", a.positions.device()},
                {"token_to_request", a.token_to_request.device()},
                {"query_start_loc", a.query_start_loc.device()},
                {"state", a.state.device()},
                {"state_table", a.state_table.device()},
                {"state_slots", a.state_slots.device()},
                {"state_ring", a.state_ring.device()},
                {"cache", a.cache.device},
                {"kv_slots", a.kv_slots.device()}};
  for (const auto& [name, device] : places) {
    TAMIS_CHECK(device.kind == Device::Kind::kCpu, Status::kUnsupported, kOp, ": ", name, " is on cuda:", device.index,
                ", this build works on the CPU only");
  }
}

void check_cache_layout(const CompressArgs& a) {
  TAMIS_CHECK(a.cache.layout != CacheLayout::kFp8Mla656, Status::kInvalidArgument, kOp, ": cache.layout is ",
              cache_layout_name(a.cache.layout), ", which holds no compressed entries");
  const std::int64_t d = a.cache.head_dim;
  TAMIS_CHECK(!a.hadamard || ((d & (d - 1)) == 0 && d <= 1024), Status::kInvalidArgument, kOp,
              ": hadamard needs cache.head_dim to be a power of two up to 1024, it is ", d);
  ops::check_cache(a.cache, kOp, "cache");
}

void check_state(const CompressArgs& a, std::int64_t tokens, std::int64_t requests, std::int64_t width) {
  check_view(a.state, {kOp, "state", {DType::kFloat32, DType::kBFloat16}, {kAnyExtent, kAnyExtent, 2 * width}});
  const std::int64_t blocks = a.state.size(0);
  const std::int64_t block_size = a.state.size(1);
  TAMIS_CHECK(block_size >= 1, Status::kInvalidArgument, kOp, ": state has ", block_size,
              " rows a block, must be >= 1");
  TAMIS_CHECK(block_size == 1 || a.state.stride(1) >= 2 * width, Status::kInvalidArgument, kOp, ": state has rows ",
              a.state.stride(1), " apart, must be >= their width ", 2 * width);
  const std::int64_t extent = (block_size - 1) * a.state.stride(1) + 2 * width;
  TAMIS_CHECK(blocks <= 1 || a.state.stride(0) >= extent, Status::kInvalidArgument, kOp, ": state has blocks ",
              a.state.stride(0), " apart, must be >= their extent ", extent);

  const bool paged = a.state_table.present() || a.state_slots.present();
  TAMIS_CHECK(paged != a.state_ring.present(), Status::kInvalidArgument, kOp,
              paged ? ": state_ring and state_table or state_slots are given, must be one form"
                    : ": state_table with state_slots or state_ring must be given, none is");
  if (paged) {
    check_view(a.state_table, {kOp, "state_table", {DType::kInt32}, {requests, kAnyExtent}});
    check_view(a.state_slots, {kOp, "state_slots", {DType::kInt64}, {tokens}});
  } else {
    check_view(a.state_ring, {kOp, "state_ring", {DType::kInt32}, {requests}});
    const std::int64_t rows = compress_ring_rows(a.compress_ratio, a.overlap, 0);
    TAMIS_CHECK(block_size >= rows, Status::kInvalidArgument, kOp, ": state has ", block_size,
                " rows a block, a ring must have >= ", rows, " (compress_ring_rows)");
  }
}

// Every check of metadata, and the arguments as the backends take them.
CompressorParams check_args(const CompressArgs& a) {
  check_numbers(a);
  check_on_cpu(a);
  const std::int64_t ratio = a.compress_ratio;
  const std::int64_t d = a.cache.head_dim;
  const std::int64_t width = a.overlap ? 2 * d : d;
  check_view(a.kv, {kOp, "kv", {DType::kFloat32, DType::kBFloat16}, {kAnyExtent, width}});
  const std::int64_t tokens = a.kv.size(0);
  check_view(a.gate, {kOp, "gate", {a.kv.dtype()}, {tokens, width}});
  check_view(a.ape, {kOp, "ape", {DType::kFloat32}, {ratio, width}});
  check_view(a.norm_weight, {kOp, "norm_weight", {DType::kFloat32}, {d}});
  check_view(a.cos_sin, {kOp, "cos_sin", {DType::kFloat32}, {kAnyExtent, ops::kRopeDims}});
  check_view(a.positions, {kOp, "positions", {DType::kInt64}, {tokens}});
  check_view(a.token_to_request, {kOp, "token_to_request", {DType::kInt32}, {tokens}});
  check_view(a.query_start_loc, {kOp, "query_start_loc", {DType::kInt32}, {kAnyExtent}});
  TAMIS_CHECK(a.query_start_loc.size(0) >= 1, Status::kInvalidArgument, kOp,
              ": query_start_loc is empty, must have requests + 1 elements");
  const std::int64_t requests = a.query_start_loc.size(0) - 1;
  check_state(a, tokens, requests, width);
  check_cache_layout(a);
  check_view(a.kv_slots, {kOp, "kv_slots", {DType::kInt64}, {tokens}});

  CompressorParams p;
  p.ratio = ratio;
  p.coff = a.overlap ? 2 : 1;
  p.head_dim = d;
  p.tokens = tokens;
  p.requests = requests;
  p.kv = static_cast<const std::byte*>(a.kv.data());
  p.gate = static_cast<const std::byte*>(a.gate.data());
  p.input_dtype = a.kv.dtype();
  p.kv_stride = a.kv.stride(0);
  p.gate_stride = a.gate.stride(0);
  p.ape = static_cast<const float*>(a.ape.data());
  p.ape_stride = a.ape.stride(0);
  p.norm_weight = static_cast<const float*>(a.norm_weight.data());
  p.rms_norm_eps = a.rms_norm_eps;
  p.cos_sin = static_cast<const float*>(a.cos_sin.data());
  p.cos_sin_stride = a.cos_sin.stride(0);
  p.max_positions = a.cos_sin.size(0);
  p.hadamard = a.hadamard;
  p.positions = static_cast<const std::int64_t*>(a.positions.data());
  p.token_to_request = static_cast<const std::int32_t*>(a.token_to_request.data());
  p.query_start_loc = static_cast<const std::int32_t*>(a.query_start_loc.data());
  p.state = static_cast<std::byte*>(a.state.data());
  p.state_dtype = a.state.dtype();
  p.num_blocks = a.state.size(0);
  p.block_size = a.state.size(1);
  p.block_stride = a.state.stride(0);
  p.row_stride = a.state.stride(1);
  if (a.state_ring.present()) {
    p.state_ring = static_cast<const std::int32_t*>(a.state_ring.data());
  } else {
    p.state_table = static_cast<const std::int32_t*>(a.state_table.data());
    p.state_table_stride = a.state_table.stride(0);
    p.max_blocks = a.state_table.size(1);
    p.state_slots = static_cast<const std::int64_t*>(a.state_slots.data());
  }
  p.cache = a.cache;
  p.kv_slots = static_cast<const std::int64_t*>(a.kv_slots.data());
  return p;
}

// A worker beyond the tokens would find no piece left to take.
std::int64_t useful_workers(const CompressorParams& p, int num_threads) {
  return std::min<std::int64_t>(core::num_workers(num_threads), std::max<std::int64_t>(1, p.tokens));
}

}  // namespace

std::size_t compress_workspace_bytes(const CompressArgs& args) {
  const CompressorParams params = check_args(args);
  return static_cast<std::size_t>(useful_workers(params, args.num_threads)) *
         compressor::worker_scratch_bytes(params.window(), params.head_dim);
}

void compress(const CompressArgs& args) {
  const CompressorParams params = check_args(args);
  if (params.tokens == 0) return;
  // One worker's share is what a call cannot do without. A workspace sized under another thread arena than the one of
  // this call is no error then: the call takes the workers that it has room for.
  const std::size_t scratch = compressor::worker_scratch_bytes(params.window(), params.head_dim);
  const auto room = static_cast<std::int64_t>(args.workspace_bytes / scratch);
  TAMIS_CHECK(args.workspace != nullptr && room >= 1, Status::kInvalidArgument, kOp, ": workspace has ",
              args.workspace == nullptr ? 0 : args.workspace_bytes, " bytes, must have >= ", scratch, " a worker");
  const std::size_t past = reinterpret_cast<std::uintptr_t>(args.workspace) % kWorkspaceAlignment;
  TAMIS_CHECK(past == 0, Status::kInvalidArgument, kOp, ": workspace is ", past, " bytes past a multiple of ",
              kWorkspaceAlignment, ", must be ", kWorkspaceAlignment, "-byte aligned");
  const auto workers = static_cast<int>(std::min(useful_workers(params, args.num_threads), room));
  compressor::compress_cpu(params, args.plan, workers, static_cast<std::byte*>(args.workspace));
}

}  // namespace tamis
