#include "tamis/compressor.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "call.hpp"
#include "operations.hpp"

namespace tamis::python {
namespace {

constexpr std::initializer_list<DType> kFloat = {DType::kFloat32};
constexpr std::initializer_list<DType> kFloatOrBf16 = {DType::kFloat32, DType::kBFloat16};
constexpr std::initializer_list<DType> kInt32 = {DType::kInt32};
constexpr std::initializer_list<DType> kInt64 = {DType::kInt64};

constexpr std::array kCompressAlgorithms = {
    std::pair{std::string_view("auto"), CompressAlgorithm::kAuto},
    std::pair{std::string_view("short_window"), CompressAlgorithm::kShortWindow},
    std::pair{std::string_view("tall_window"), CompressAlgorithm::kTallWindow},
    std::pair{std::string_view("any_window"), CompressAlgorithm::kAnyWindow},
};

// A number of a tamis.CompressCounts.
std::int64_t count_of(nb::handle counts, const char* name) {
  const nb::object value = nb::getattr(counts, name, nb::none());
  std::int64_t count = 0;
  if (PyType_Check(counts.ptr()) != 0 || PyLong_Check(value.ptr()) == 0 || !nb::try_cast(value, count)) {
    fail_type("compress: counts is ", name_of_type(counts), ", must be a tamis.CompressCounts with integers");
  }
  return count;
}

void compress(nb::handle kv, nb::handle gate, nb::handle ape, nb::handle norm_weight, nb::handle cos_sin,
              nb::handle positions, nb::handle token_to_request, nb::handle query_start_loc, nb::handle state,
              nb::handle state_table, nb::handle state_slots, nb::handle state_ring, nb::handle cache,
              nb::handle kv_slots, nb::handle compress_ratio, nb::handle overlap, nb::handle hadamard,
              nb::handle rms_norm_eps, nb::handle plan, nb::handle listed_tokens, nb::handle algorithm,
              nb::handle counts, nb::handle num_threads, nb::handle workspace) {
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
  args.listed_tokens = call.optional_input(listed_tokens, "listed_tokens", kInt32);
  args.algorithm = call.choice(algorithm, "algorithm", kCompressAlgorithms);
  CompressCounts before;
  if (!counts.is_none()) before = {count_of(counts, "pooled"), count_of(counts, "skipped")};
  CompressCounts made;
  args.counts = &made;
  args.num_threads = call.threads(num_threads);
  args.workspace = call.workspace(workspace, compress_workspace_bytes(args), &args.workspace_bytes);
  args.stream = call.stream();
  call.check_overlaps();
  call.run([&] { tamis::compress(args); });
  if (counts.is_none()) return;
  counts.attr("pooled") = before.pooled + made.pooled;
  counts.attr("skipped") = before.skipped + made.skipped;
}

// One array for one ratio, a tuple of arrays for a sequence of ratios.
nb::object build_step(nb::handle positions, nb::handle token_to_request, nb::handle query_start_loc,
                      nb::handle compress_ratios, nb::handle out) {
  constexpr const char* kOp = "build_compress_step";
  constexpr std::array kOutNames = {"out[0]", "out[1]", "out[2]", "out[3]"};
  static_assert(kOutNames.size() == kMaxCompressLists);
  Call call(kOp);
  CompressStepArgs args;
  args.positions = call.input(positions, "positions", kInt64);
  args.token_to_request = call.input(token_to_request, "token_to_request", kInt32);
  args.query_start_loc = call.input(query_start_loc, "query_start_loc", kInt32);
  const std::int64_t tokens = args.positions.size(0);
  const std::int64_t requests = std::max<std::int64_t>(args.query_start_loc.size(0) - 1, 0);

  std::array<CompressList, kMaxCompressLists> lists;
  std::array<Output, kMaxCompressLists> outputs;
  const auto add_list = [&](std::size_t i, std::int64_t ratio, nb::handle array, const char* name) {
    lists[i].compress_ratio = ratio;
    const std::int64_t capacity = compress_list_capacity(tokens, requests, ratio);
    const Py_ssize_t given = PyObject_Length(array.ptr());  // a longer list will do as well
    if (given < 0) PyErr_Clear();
    outputs[i] = call.output_or_new(array, name, DType::kInt32, {std::max<std::int64_t>(capacity, given)});
    lists[i].tokens = outputs[i].view;
  };
  const bool one = PySequence_Check(compress_ratios.ptr()) == 0;
  const std::vector<std::int64_t> ratios = one ? std::vector{call.integer(compress_ratios, "compress_ratios")}
                                               : call.integers<std::int64_t>(compress_ratios, "compress_ratios");
  const std::size_t count = ratios.size();
  TAMIS_CHECK(count <= kMaxCompressLists, Status::kInvalidArgument, kOp, ": compress_ratios has ", count,
              " elements, must have at most ", kMaxCompressLists);
  if (one) {
    add_list(0, ratios[0], out, "out");
  } else {
    if (!out.is_none() && PySequence_Check(out.ptr()) == 0) {
      fail_type(kOp, ": out is ", name_of_type(out), ", must be a sequence of arrays like compress_ratios");
    }
    TAMIS_CHECK(out.is_none() || nb::len(out) == count, Status::kInvalidArgument, kOp, ": out has ",
                out.is_none() ? 0 : nb::len(out), " arrays, must have ", count, " like compress_ratios");
    for (std::size_t i = 0; i < count; ++i) {
      const nb::object array = out.is_none() ? nb::none() : nb::object(out[i]);
      add_list(i, ratios[i], array, kOutNames[i]);
    }
  }

  args.lists = std::span(lists).first(count);
  args.stream = call.stream();
  call.check_overlaps();
  call.run([&] { build_compress_step(args); });
  if (one) return call.result(outputs[0]);
  nb::list results;
  for (const Output& output : std::span(outputs).first(count)) results.append(call.result(output));
  return nb::tuple(results);
}

bool is_capturing(nb::handle stream, nb::handle device) {
  const Call call("stream_is_capturing");
  const Device on = call.parse_device(device, "device");
  return stream_is_capturing(on, {reinterpret_cast<void*>(call.integer(stream, "stream"))});
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

std::int64_t list_capacity(nb::handle tokens, nb::handle requests, nb::handle compress_ratio) {
  const Call call("compress_list_capacity");
  return compress_list_capacity(call.integer(tokens, "tokens"), call.integer(requests, "requests"),
                                call.integer(compress_ratio, "compress_ratio"));
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
  define(m, "compress_list_capacity", &list_capacity);
  define(m, "build_compress_step", &build_step);
  define(m, "stream_is_capturing", &is_capturing);
}

}  // namespace tamis::python
