#include "tamis/compressor.hpp"

#include "call.hpp"
#include "operations.hpp"

namespace tamis::python {
namespace {

constexpr std::initializer_list<DType> kFloat = {DType::kFloat32};
constexpr std::initializer_list<DType> kFloatOrBf16 = {DType::kFloat32, DType::kBFloat16};
constexpr std::initializer_list<DType> kInt32 = {DType::kInt32};
constexpr std::initializer_list<DType> kInt64 = {DType::kInt64};

void compress(nb::handle kv, nb::handle gate, nb::handle ape, nb::handle norm_weight, nb::handle cos_sin,
              nb::handle positions, nb::handle token_to_request, nb::handle query_start_loc, nb::handle state,
              nb::handle state_table, nb::handle state_slots, nb::handle state_ring, nb::handle cache,
              nb::handle kv_slots, nb::handle compress_ratio, nb::handle overlap, nb::handle hadamard,
              nb::handle rms_norm_eps, nb::handle plan, nb::handle num_threads, nb::handle workspace) {
  Call call("compress");
  CompressArgs args;
  args.kv = call.input(kv, "kv", kFloatOrBf16);
  args.gate = call.input(gate, "gate", kFloatOrBf16);
  args.ape = call.input(ape, "ape", kFloat);
  args.norm_weight = call.input(norm_weight, "norm_weight", kFloat);
  args.cos_sin = call.input(cos_sin, "cos_sin", kFloat);
  args.positions = call.input(positions, "positions", kInt64);
  args.token_to_request = call.input(token_to_request, "token_to_request", kInt32);
  args.query_start_loc = call.input(query_start_loc, "query_start_loc", kInt32);
  args.state = call.output(state, "state", kFloatOrBf16);
  args.state_table = call.optional_input(state_table, "state_table", kInt32);
  args.state_slots = call.optional_input(state_slots, "state_slots", kInt64);
  args.state_ring = call.optional_input(state_ring, "state_ring", kInt32);
  args.cache = call.output_cache(cache, "cache");
  args.kv_slots = call.input(kv_slots, "kv_slots", kInt64);
  args.compress_ratio = call.integer(compress_ratio, "compress_ratio");
  args.overlap = call.boolean(overlap, "overlap");
  args.hadamard = call.boolean(hadamard, "hadamard");
  args.rms_norm_eps = static_cast<float>(call.number(rms_norm_eps, "rms_norm_eps"));
  if (!nb::isinstance<CompressPlan>(plan)) {
    fail_type("compress: plan is ", name_of_type(plan), ", must be a tamis.CompressPlan");
  }
  args.plan = nb::cast<CompressPlan>(plan);
  args.num_threads = call.threads(num_threads);
  args.workspace = call.workspace(workspace, compress_workspace_bytes(args), &args.workspace_bytes);
  args.stream = call.stream();
  call.check_overlaps();
  call.run([&] { tamis::compress(args); });
}

CompressPlan plan_of(nb::handle starts, nb::handle query_lens, nb::handle compress_ratio, nb::handle start_hi,
                     nb::handle capturing) {
  const Call call("compress_plan");
  const auto lo = call.integers<std::int64_t>(starts, "starts");
  const auto lens = call.integers<std::int64_t>(query_lens, "query_lens");
  const std::int64_t ratio = call.integer(compress_ratio, "compress_ratio");
  const bool recording = call.boolean(capturing, "capturing");
  if (start_hi.is_none()) return compress_plan(lo, lens, ratio, recording);
  return compress_plan(lo, call.integers<std::int64_t>(start_hi, "start_hi"), lens, ratio, recording);
}

std::int64_t ring_rows(nb::handle compress_ratio, nb::handle overlap, nb::handle max_drafts) {
  const Call call("compress_ring_rows");
  return compress_ring_rows(call.integer(compress_ratio, "compress_ratio"), call.boolean(overlap, "overlap"),
                            call.integer(max_drafts, "max_drafts"));
}

std::int64_t state_begin(nb::handle start, nb::handle compress_ratio, nb::handle overlap) {
  const Call call("compress_state_begin");
  return compress_state_begin(call.integer(start, "start"), call.integer(compress_ratio, "compress_ratio"),
                              call.boolean(overlap, "overlap"));
}

}  // namespace

void bind_compressor(nb::module_& m) {
  nb::enum_<CompressPlan>(m, "CompressPlan",
                          "Whether a step completes a compressed entry, as far as the host knows.\n\n"
                          "``NONE``: no token of the step does, only state is saved. ``SOME``: at least one does.\n"
                          "``UNKNOWN``: not known, treated like ``SOME``.")
      .value("NONE", CompressPlan::kNone, "No token of the step completes an entry: only state is saved.")
      .value("SOME", CompressPlan::kSome, "At least one does.")
      .value("UNKNOWN", CompressPlan::kUnknown, "Not known: treated like SOME.");
  define(m, "compress", &compress);
  define(m, "compress_plan", &plan_of);
  define(m, "compress_ring_rows", &ring_rows);
  define(m, "compress_state_begin", &state_begin);
}

}  // namespace tamis::python
