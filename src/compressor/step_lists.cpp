// The device plan of a step: which tokens complete an entry, once for all layers.

#include <algorithm>
#include <cstdint>

#include "compressor/cuda/compress_cuda.hpp"
#include "compressor/params.hpp"
#include "core/tensor_check.hpp"
#include "tamis/compressor.hpp"

namespace tamis {
namespace {

using compressor::CompressorParams;
using compressor::kMaxRatio;
using core::check_view;
using core::kAnyExtent;

constexpr const char* kOp = "build_compress_step";

Device device_of(const CompressStepArgs& args) {
#ifdef TAMIS_HAS_CUDA
  return args.positions.device();
#else
  static_cast<void>(args);
  return {};
#endif
}

void check_ratio(const char* op, std::int64_t ratio) {
  TAMIS_CHECK(ratio >= 1 && ratio <= kMaxRatio, Status::kInvalidArgument, op, ": compress_ratio is ", ratio,
              ", must be in [1, ", kMaxRatio, "]");
}

// The part of a step's parameters that says which token stands where.
CompressorParams check_args(const CompressStepArgs& a, Device device) {
  check_view(a.positions, {kOp, "positions", {DType::kInt64}, {kAnyExtent}}, device);
  const std::int64_t tokens = a.positions.size(0);
  check_view(a.token_to_request, {kOp, "token_to_request", {DType::kInt32}, {tokens}}, device);
  check_view(a.query_start_loc, {kOp, "query_start_loc", {DType::kInt32}, {kAnyExtent}}, device);
  TAMIS_CHECK(a.query_start_loc.size(0) >= 1, Status::kInvalidArgument, kOp,
              ": query_start_loc is empty, must have requests + 1 elements");
  TAMIS_CHECK(tokens <= INT32_MAX, Status::kInvalidArgument, kOp, ": positions has ", tokens,
              " elements, must have at most 2147483647: lists are int32");
  TAMIS_CHECK(a.lists.size() <= kMaxCompressLists, Status::kInvalidArgument, kOp, ": lists has ", a.lists.size(),
              " elements, must have at most ", kMaxCompressLists);
  CompressorParams p;
  p.tokens = tokens;
  p.requests = a.query_start_loc.size(0) - 1;
  p.positions = static_cast<const std::int64_t*>(a.positions.data());
  p.token_to_request = static_cast<const std::int32_t*>(a.token_to_request.data());
  p.query_start_loc = static_cast<const std::int32_t*>(a.query_start_loc.data());
  for (const CompressList& list : a.lists) {
    check_ratio(kOp, list.compress_ratio);
    check_view(list.tokens, {kOp, "lists.tokens", {DType::kInt32}, {kAnyExtent}}, device);
    const std::int64_t capacity = compress_list_capacity(tokens, p.requests, list.compress_ratio);
    TAMIS_CHECK(list.tokens.size(0) >= capacity, Status::kInvalidArgument, kOp, ": lists.tokens of ratio ",
                list.compress_ratio, " has ", list.tokens.size(0), " elements, must have >= ", capacity,
                " (compress_list_capacity)");
  }
  return p;
}

void build_list(CompressorParams p, const CompressList& list) {
  p.ratio = list.compress_ratio;
  auto* out = static_cast<std::int32_t*>(list.tokens.data());
  std::int32_t* const end = out + list.tokens.size(0);
  for (std::int64_t i = 0; i < p.tokens && out < end; ++i) {
    const compressor::TokenPlace place = place_token(p, i);
    if (place.valid && completes_entry(p, place.position)) *out++ = static_cast<std::int32_t>(i);
  }
  std::fill(out, end, -1);
}

}  // namespace

std::int64_t compress_list_capacity(std::int64_t tokens, std::int64_t requests, std::int64_t compress_ratio) {
  constexpr const char* kName = "compress_list_capacity";
  TAMIS_CHECK(tokens >= 0, Status::kInvalidArgument, kName, ": tokens is ", tokens, ", must be >= 0");
  TAMIS_CHECK(requests >= 0, Status::kInvalidArgument, kName, ": requests is ", requests, ", must be >= 0");
  check_ratio(kName, compress_ratio);
  // Compared without the sum, which could overflow.
  const std::int64_t groups = tokens / compress_ratio;
  return requests >= tokens - groups ? tokens : groups + requests;
}

void build_compress_step(const CompressStepArgs& args) {
  const Device device = device_of(args);
  const CompressorParams params = check_args(args, device);
#ifdef TAMIS_HAS_CUDA
  if (device.kind == Device::Kind::kCuda) {
    return compressor_cuda::build_lists(params, args.lists, device.index, args.stream.handle);
  }
#endif
  for (const CompressList& list : args.lists) build_list(params, list);
}

}  // namespace tamis
