#include "tamis/compressor.hpp"

#include "c_api/args.hpp"
#include "c_api/guard.hpp"

namespace tamis::c_api {
namespace {

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

CompressArgs compress_args(const tamis_compress_args* args) {
  using C = tamis_compress_args;
  const ArgsReader read("compress", args);
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
  return out;
}

}  // namespace
}  // namespace tamis::c_api

using namespace tamis::c_api;  // NOLINT(google-build-using-namespace): the entries below are the end of the file

extern "C" {

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

tamis_status tamis_compress_workspace_bytes(const tamis_compress_args* args, size_t* bytes) noexcept {
  return guarded([&] {
    require({"compress", "bytes"}, bytes);
    *bytes = tamis::compress_workspace_bytes(compress_args(args));
  });
}

tamis_status tamis_compress(const tamis_compress_args* args) noexcept {
  return guarded([&] { tamis::compress(compress_args(args)); });
}

}  // extern "C"
