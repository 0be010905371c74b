#include "tamis/compressor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "compressor/cpu/compress_cpu.hpp"
#include "compressor/cuda/compress_cuda.hpp"
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

#ifdef TAMIS_HAS_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

// Where the call runs: where its inputs lie. A build without kernels knows the CPU only, which the checks then say.
Device device_of(const ConstTensorView& first) { return kHasCuda ? first.device() : Device{}; }

void check_numbers(const CompressArgs& a) {
  TAMIS_CHECK(a.compress_ratio >= 1 && a.compress_ratio <= kMaxRatio, Status::kInvalidArgument, kOp,
              ": compress_ratio is ", a.compress_ratio, ", must be in [1, ", kMaxRatio, "]");
  TAMIS_CHECK(a.cache.head_dim >= ops::kRopeDims && a.cache.head_dim <= kMaxHeadDim, Status::kInvalidArgument, kOp,
              ": cache.head_dim is ", a.cache.head_dim, ", must be in [", ops::kRopeDims, ", ", kMaxHeadDim, "]");
  TAMIS_CHECK(std::isfinite(a.rms_norm_eps) && a.rms_norm_eps >= 0, Status::kInvalidArgument, kOp, ": rms_norm_eps is ",
              a.rms_norm_eps, ", must be finite and >= 0");
  TAMIS_CHECK(a.num_threads >= 0, Status::kInvalidArgument, kOp, ": num_threads is ", a.num_threads, ", must be >= 0");
}

void check_cache_layout(const CompressArgs& a, Device device) {
  TAMIS_CHECK(a.cache.layout != CacheLayout::kFp8Mla656, Status::kInvalidArgument, kOp, ": cache.layout is ",
              cache_layout_name(a.cache.layout), ", which holds no compressed entries");
  const std::int64_t d = a.cache.head_dim;
  TAMIS_CHECK(!a.hadamard || ((d & (d - 1)) == 0 && d <= 1024), Status::kInvalidArgument, kOp,
              ": hadamard needs cache.head_dim to be a power of two up to 1024, it is ", d);
  ops::check_cache(a.cache, kOp, "cache", device);
}

void check_state(const CompressArgs& a, std::int64_t tokens, std::int64_t requests, std::int64_t width, Device device) {
  check_view(a.state, {kOp, "state", {DType::kFloat32, DType::kBFloat16}, {kAnyExtent, kAnyExtent, 2 * width}}, device);
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
    check_view(a.state_table, {kOp, "state_table", {DType::kInt32}, {requests, kAnyExtent}}, device);
    check_view(a.state_slots, {kOp, "state_slots", {DType::kInt64}, {tokens}}, device);
  } else {
    check_view(a.state_ring, {kOp, "state_ring", {DType::kInt32}, {requests}}, device);
    const std::int64_t rows = compress_ring_rows(a.compress_ratio, a.overlap, 0);
    TAMIS_CHECK(block_size >= rows, Status::kInvalidArgument, kOp, ": state has ", block_size,
                " rows a block, a ring must have >= ", rows, " (compress_ring_rows)");
  }
}

// Calls f(view, name) for every view that is present.
template <typename F>
void each_view(const CompressArgs& a, F f) {
  const auto call = [&](const auto& view, const char* name) {
    if (view.present()) f(view, name);
  };
  call(a.kv, "kv");
  call(a.gate, "gate");
  call(a.ape, "ape");
  call(a.norm_weight, "norm_weight");
  call(a.cos_sin, "cos_sin");
  call(a.positions, "positions");
  call(a.token_to_request, "token_to_request");
  call(a.query_start_loc, "query_start_loc");
  call(a.state, "state");
  call(a.state_table, "state_table");
  call(a.state_slots, "state_slots");
  call(a.state_ring, "state_ring");
  call(a.kv_slots, "kv_slots");
  call(a.listed_tokens, "listed_tokens");
}

// Where there are two kinds of devices, a call keeps to one.
void check_one_device(const CompressArgs& a, Device device) {
  const auto check = [&](Device of, const char* name) {
    TAMIS_CHECK(of == device, Status::kInvalidArgument, kOp, ": ", name, " is on ", core::describe(of), ", must be on ",
                core::describe(device), " like kv");
  };
  each_view(a, [&](const auto& view, const char* name) { check(view.device(), name); });
  check(a.cache.device, "cache");
}

// What only CUDA asks for: grids hold 2^31 - 1 blocks, and loads and stores take whole elements.
void check_for_cuda(const CompressArgs& a, std::int64_t tokens) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 29;
  TAMIS_CHECK(tokens <= kMostTokens, Status::kInvalidArgument, kOp, ": kv has ", tokens, " rows, must have at most ",
              kMostTokens, " on CUDA");
  each_view(a, [&](const auto& view, const char* name) {
    const auto bytes = static_cast<std::uintptr_t>(dtype_bytes(view.dtype()));
    TAMIS_CHECK(reinterpret_cast<std::uintptr_t>(view.data()) % bytes == 0, Status::kInvalidArgument, kOp, ": ", name,
                " is at ", view.data(), ", must be at a multiple of ", bytes, " on CUDA (", dtype_name(view.dtype()),
                ")");
  });
}

// Every check of metadata, and the arguments as the backends take them.
CompressorParams check_args(const CompressArgs& a, Device device) {
  check_numbers(a);
  if (kHasCuda) check_one_device(a, device);
  const std::int64_t ratio = a.compress_ratio;
  const std::int64_t d = a.cache.head_dim;
  const std::int64_t width = a.overlap ? 2 * d : d;
  check_view(a.kv, {kOp, "kv", {DType::kFloat32, DType::kBFloat16}, {kAnyExtent, width}}, device);
  const std::int64_t tokens = a.kv.size(0);
  check_view(a.gate, {kOp, "gate", {a.kv.dtype()}, {tokens, width}}, device);
  check_view(a.ape, {kOp, "ape", {DType::kFloat32}, {ratio, width}}, device);
  check_view(a.norm_weight, {kOp, "norm_weight", {DType::kFloat32}, {d}}, device);
  check_view(a.cos_sin, {kOp, "cos_sin", {DType::kFloat32}, {kAnyExtent, ops::kRopeDims}}, device);
  check_view(a.positions, {kOp, "positions", {DType::kInt64}, {tokens}}, device);
  check_view(a.token_to_request, {kOp, "token_to_request", {DType::kInt32}, {tokens}}, device);
  check_view(a.query_start_loc, {kOp, "query_start_loc", {DType::kInt32}, {kAnyExtent}}, device);
  TAMIS_CHECK(a.query_start_loc.size(0) >= 1, Status::kInvalidArgument, kOp,
              ": query_start_loc is empty, must have requests + 1 elements");
  const std::int64_t requests = a.query_start_loc.size(0) - 1;
  check_state(a, tokens, requests, width, device);
  check_cache_layout(a, device);
  check_view(a.kv_slots, {kOp, "kv_slots", {DType::kInt64}, {tokens}}, device);

  if (a.listed_tokens.present()) {
    check_view(a.listed_tokens, {kOp, "listed_tokens", {DType::kInt32}, {kAnyExtent}}, device);
  }
  if (device.kind == Device::Kind::kCuda) check_for_cuda(a, tokens);
  TAMIS_CHECK(device.kind == Device::Kind::kCuda || a.algorithm == CompressAlgorithm::kAuto, Status::kInvalidArgument,
              kOp, ": algorithm is ", compress_algorithm_name(a.algorithm), ", on the CPU it must be auto");

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
  if (a.listed_tokens.present()) {
    p.listed = static_cast<const std::int32_t*>(a.listed_tokens.data());
    p.num_listed = a.listed_tokens.size(0);
  }
  return p;
}

// A worker beyond the tokens would find no piece left to take.
std::int64_t useful_workers(const CompressorParams& p, int num_threads) {
  return std::min<std::int64_t>(core::num_workers(num_threads), std::max<std::int64_t>(1, p.tokens));
}

void check_workspace(const CompressArgs& args, std::size_t least, const char* unit) {
  if (least == 0) return;
  const std::size_t given = args.workspace == nullptr ? 0 : args.workspace_bytes;
  TAMIS_CHECK(given >= least, Status::kInvalidArgument, kOp, ": workspace has ", given, " bytes, must have >= ", least,
              unit);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(args.workspace) % kWorkspaceAlignment;
  TAMIS_CHECK(past == 0, Status::kInvalidArgument, kOp, ": workspace is ", past, " bytes past a multiple of ",
              kWorkspaceAlignment, ", must be ", kWorkspaceAlignment, "-byte aligned");
}

void count(const CompressArgs& args, CompressPlan plan) {
  if (args.counts == nullptr) return;
  ++(plan == CompressPlan::kNone ? args.counts->skipped : args.counts->pooled);
}

}  // namespace

bool stream_is_capturing(Device device, Stream stream) {
  if (device.kind == Device::Kind::kCpu) return false;
#ifdef TAMIS_HAS_CUDA
  return compressor_cuda::is_capturing(device.index, stream.handle);
#else
  static_cast<void>(stream);
  core::fail(Status::kUnsupported, "stream_is_capturing: device is ", core::describe(device),
             ", this build works on the CPU only");
#endif
}

CompressorParams compressor::checked_params(const CompressArgs& args) { return check_args(args, device_of(args.kv)); }

std::size_t compress_workspace_bytes(const CompressArgs& args) {
  const Device device = device_of(args.kv);
  const CompressorParams params = check_args(args, device);
#ifdef TAMIS_HAS_CUDA
  if (device.kind == Device::Kind::kCuda)
    return compressor_cuda::make_plan(params, args.algorithm, device.index).workspace_bytes;
#endif
  return static_cast<std::size_t>(useful_workers(params, args.num_threads)) *
         compressor::worker_scratch_bytes(params.window(), params.head_dim);
}

void compress(const CompressArgs& args) {
  const Device device = device_of(args.kv);
  const CompressorParams params = check_args(args, device);
  if (params.tokens == 0) return;
#ifdef TAMIS_HAS_CUDA
  if (device.kind == Device::Kind::kCuda) {
    const compressor_cuda::StepPlan plan = compressor_cuda::make_plan(params, args.algorithm, device.index);
    check_workspace(args, plan.workspace_bytes, " (compress_workspace_bytes)");
    // A graph outlives what the host knows of this step.
    const bool skip = args.plan == CompressPlan::kNone && !stream_is_capturing(device, args.stream);
    compressor_cuda::run(params, plan, !skip, args.workspace, device.index, args.stream.handle);
    return count(args, skip ? CompressPlan::kNone : CompressPlan::kUnknown);
  }
#endif
  // One worker's share is what a call cannot do without. A workspace sized under another thread arena than the one of
  // this call is no error then: the call takes the workers that it has room for.
  const std::size_t scratch = compressor::worker_scratch_bytes(params.window(), params.head_dim);
  check_workspace(args, scratch, " a worker");
  const auto room = static_cast<std::int64_t>(args.workspace_bytes / scratch);
  const auto workers = static_cast<int>(std::min(useful_workers(params, args.num_threads), room));
  compressor::compress_cpu(params, args.plan, workers, static_cast<std::byte*>(args.workspace));
  count(args, args.plan);
}

}  // namespace tamis
