#include "tamis/compressor.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "c_api/args.hpp"
#include "c_api/guard.hpp"

namespace tamis::c_api {
namespace {

static_assert(TAMIS_COMPRESS_ALGORITHM_AUTO == static_cast<int>(CompressAlgorithm::kAuto) &&
              TAMIS_COMPRESS_ALGORITHM_SHORT_WINDOW == static_cast<int>(CompressAlgorithm::kShortWindow) &&
              TAMIS_COMPRESS_ALGORITHM_TALL_WINDOW == static_cast<int>(CompressAlgorithm::kTallWindow) &&
              TAMIS_COMPRESS_ALGORITHM_ANY_WINDOW == static_cast<int>(CompressAlgorithm::kAnyWindow));
static_assert(TAMIS_MAX_COMPRESS_LISTS == kMaxCompressLists);
static_assert(sizeof(tamis_compress_args) == offsetof(tamis_compress_args, reserved) + sizeof(std::int32_t));

CompressPlan to_plan(Origin origin, tamis_compress_plan plan) {
  switch (plan) {
    case TAMIS_COMPRESS_PLAN_UNKNOWN: return CompressPlan::kUnknown;
    case TAMIS_COMPRESS_PLAN_NONE: return CompressPlan::kNone;
    case TAMIS_COMPRESS_PLAN_SOME: return CompressPlan::kSome;
    default: break;
  }
  core::fail(Status::kInvalidArgument, origin.op, ": ", origin.argument, " is ", plan, ", must be in [0, ",
             TAMIS_COMPRESS_PLAN_SOME, "]");
}

tamis_compress_plan from_plan(CompressPlan plan) {
  switch (plan) {
    case CompressPlan::kNone: return TAMIS_COMPRESS_PLAN_NONE;
    case CompressPlan::kSome: return TAMIS_COMPRESS_PLAN_SOME;
    case CompressPlan::kUnknown: break;
  }
  return TAMIS_COMPRESS_PLAN_UNKNOWN;
}

using CompressReader = ArgsReader<tamis_compress_args>;

// All but the counts, which have a type of their own in C.
CompressArgs compress_args(const CompressReader& read) {
  using C = tamis_compress_args;
  CompressArgs out;
  out.compress_ratio = read(&C::compress_ratio);
  out.overlap = read(&C::overlap) != 0;
  out.kv = read(&C::kv, "kv");
  out.gate = read(&C::gate, "gate");
  out.ape = read(&C::ape, "ape");
  out.norm_weight = read(&C::norm_weight, "norm_weight");
  const float eps = read(&C::rms_norm_eps);
  if (eps != 0.0F) out.rms_norm_eps = eps;
  out.cos_sin = read(&C::cos_sin, "cos_sin");
  out.hadamard = read(&C::hadamard) != 0;
  out.positions = read(&C::positions, "positions");
  out.token_to_request = read(&C::token_to_request, "token_to_request");
  out.query_start_loc = read(&C::query_start_loc, "query_start_loc");
  out.state = read(&C::state, "state");
  out.state_table = read(&C::state_table, "state_table");
  out.state_slots = read(&C::state_slots, "state_slots");
  out.state_ring = read(&C::state_ring, "state_ring");
  out.cache = read(&C::cache, "cache");
  out.kv_slots = read(&C::kv_slots, "kv_slots");
  out.plan = to_plan({"compress", "plan"}, read(&C::plan));
  out.num_threads = read(&C::num_threads);
  out.workspace = read(&C::workspace);
  out.workspace_bytes = read(&C::workspace_bytes);
  out.stream.handle = read(&C::stream);
  out.listed_tokens = read(&C::listed_tokens, "listed_tokens");
  out.algorithm = read(&C::algorithm, "algorithm", CompressAlgorithm::kAnyWindow);
  const std::int32_t reserved = read(&C::reserved);
  TAMIS_CHECK(reserved == 0, Status::kInvalidArgument, "compress: reserved is ", reserved, ", must be 0");
  return out;
}

void build_step(const tamis_compress_step_args* args) {
  using C = tamis_compress_step_args;
  constexpr const char* kOp = "build_compress_step";
  const ArgsReader read(kOp, args);
  CompressStepArgs out;
  out.positions = read(&C::positions, "positions");
  out.token_to_request = read(&C::token_to_request, "token_to_request");
  out.query_start_loc = read(&C::query_start_loc, "query_start_loc");
  const std::int64_t num_lists = read(&C::num_lists);
  TAMIS_CHECK(num_lists >= 0 && num_lists <= TAMIS_MAX_COMPRESS_LISTS, Status::kInvalidArgument, kOp, ": num_lists is ",
              num_lists, ", must be in [0, ", TAMIS_MAX_COMPRESS_LISTS, "]");
  const auto given = span(kOp, "num_lists", "lists", read(&C::lists), num_lists);
  std::array<CompressList, TAMIS_MAX_COMPRESS_LISTS> lists;
  std::transform(given.begin(), given.end(), lists.begin(), [](const tamis_compress_list& list) {
    return CompressList{list.compress_ratio, tensor({kOp, "lists.tokens"}, list.tokens)};
  });
  out.lists = std::span(lists).first(given.size());
  out.stream.handle = read(&C::stream);
  build_compress_step(out);
}

}  // namespace
}  // namespace tamis::c_api

using namespace tamis::c_api;  // NOLINT(google-build-using-namespace): the entries below are the end of the file

extern "C" {

const char* tamis_compress_algorithm_name(tamis_compress_algorithm algorithm) noexcept {
  if (algorithm < 0 || algorithm > TAMIS_COMPRESS_ALGORITHM_ANY_WINDOW) return "unknown algorithm";
  return tamis::compress_algorithm_name(static_cast<tamis::CompressAlgorithm>(algorithm));
}

tamis_status tamis_compress_plan_exact(const int64_t* starts, const int64_t* query_lens, int64_t num_requests,
                                       int64_t compress_ratio, int32_t capturing, tamis_compress_plan* plan) noexcept {
  return guarded([&] {
    constexpr const char* kOp = "compress_plan";
    require({kOp, "plan"}, plan);
    *plan = from_plan(tamis::compress_plan(span(kOp, "num_requests", "starts", starts, num_requests),
                                           span(kOp, "num_requests", "query_lens", query_lens, num_requests),
                                           compress_ratio, capturing != 0));
  });
}

tamis_status tamis_compress_plan_bounds(const int64_t* start_lo, const int64_t* start_hi, const int64_t* query_lens,
                                        int64_t num_requests, int64_t compress_ratio, int32_t capturing,
                                        tamis_compress_plan* plan) noexcept {
  return guarded([&] {
    constexpr const char* kOp = "compress_plan";
    require({kOp, "plan"}, plan);
    *plan = from_plan(tamis::compress_plan(span(kOp, "num_requests", "start_lo", start_lo, num_requests),
                                           span(kOp, "num_requests", "start_hi", start_hi, num_requests),
                                           span(kOp, "num_requests", "query_lens", query_lens, num_requests),
                                           compress_ratio, capturing != 0));
  });
}

tamis_status tamis_compress_ring_rows(int64_t compress_ratio, int32_t overlap, int64_t max_drafts,
                                      int64_t* rows) noexcept {
  return guarded([&] {
    require({"compress_ring_rows", "rows"}, rows);
    *rows = tamis::compress_ring_rows(compress_ratio, overlap != 0, max_drafts);
  });
}

tamis_status tamis_compress_state_begin(int64_t start, int64_t compress_ratio, int32_t overlap,
                                        int64_t* position) noexcept {
  return guarded([&] {
    require({"compress_state_begin", "position"}, position);
    *position = tamis::compress_state_begin(start, compress_ratio, overlap != 0);
  });
}

tamis_status tamis_stream_is_capturing(int32_t device_kind, int32_t device_index, void* stream,
                                       int32_t* capturing) noexcept {
  return guarded([&] {
    constexpr const char* kOp = "stream_is_capturing";
    require({kOp, "capturing"}, capturing);
    const tamis::Device on = device({kOp, "device"}, {device_kind, device_index});
    *capturing = tamis::stream_is_capturing(on, {stream}) ? 1 : 0;
  });
}

tamis_status tamis_compress_list_capacity(int64_t tokens, int64_t requests, int64_t compress_ratio,
                                          int64_t* capacity) noexcept {
  return guarded([&] {
    require({"compress_list_capacity", "capacity"}, capacity);
    *capacity = tamis::compress_list_capacity(tokens, requests, compress_ratio);
  });
}

tamis_status tamis_build_compress_step(const tamis_compress_step_args* args) noexcept {
  return guarded([&] { build_step(args); });
}

tamis_status tamis_compress_workspace_bytes(const tamis_compress_args* args, size_t* bytes) noexcept {
  return guarded([&] {
    require({"compress", "bytes"}, bytes);
    *bytes = tamis::compress_workspace_bytes(compress_args(CompressReader("compress", args)));
  });
}

tamis_status tamis_compress(const tamis_compress_args* args) noexcept {
  return guarded([&] {
    const CompressReader read("compress", args);
    tamis::CompressArgs step = compress_args(read);
    tamis::CompressCounts made;
    step.counts = &made;
    tamis::compress(step);
    tamis_compress_counts* const counts = read(&tamis_compress_args::counts);
    if (counts == nullptr) return;
    counts->pooled += made.pooled;
    counts->skipped += made.skipped;
  });
}

}  // extern "C"
