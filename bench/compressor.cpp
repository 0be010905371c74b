// One step of one compressor: decode steps that complete nothing (state is saved), decode steps at a boundary, prefill.

#include <algorithm>
#include <vector>

#include "bench/compressor_case.hpp"
#include "bench/floors.hpp"
#include "bench/memory.hpp"
#include "bench/ops.hpp"
#include "core/check.hpp"
#include "core/gpu_list.hpp"
#include "tamis/compressor.hpp"

namespace tamis::bench {
namespace {

std::vector<StepCase> cases_of(const std::string& suite) {
  constexpr auto fp8 = CacheLayout::kFp8Mla584, key = CacheLayout::kIndexerFp8;
  if (suite == "smoke") {
    return {{"save_only", 128, 512, 2, 200, 1, 1, fp8},
            {"boundary", 128, 512, 1, 255, 1, 1, fp8},
            {"steady", 4, 512, 8, 64, 1, 4, fp8},
            {"prefill", 4, 128, 1, 0, 40, 1, key}};
  }
  std::vector<StepCase> list = {
      {"save_only", 128, 512, 1, 4159, 1, 1, fp8},  {"boundary", 128, 512, 1, 4223, 1, 1, fp8},
      {"save_only", 128, 512, 64, 4159, 1, 1, fp8}, {"boundary", 128, 512, 64, 4223, 1, 1, fp8},
      {"save_only", 4, 512, 1, 4096, 1, 1, fp8},    {"boundary", 4, 512, 1, 4099, 1, 1, fp8},
      {"steady", 4, 512, 256, 4096, 1, 4, fp8},     {"boundary", 4, 128, 1, 4099, 1, 1, key},
  };
  for (const std::int64_t tokens : {512, 2048, 8192}) {
    list.push_back({"prefill", 128, 512, 1, 0, tokens, 1, fp8});
    list.push_back({"prefill", 4, 512, 1, 0, tokens, 1, fp8});
    list.push_back({"prefill", 4, 128, 1, 0, tokens, 1, key});
  }
  return list;
}

void run_case(Session& session, const StepCase& shape, const std::string& label, Row row) {
  RandomBits random(seed_of(label));
  StepCall call(shape, session.num_threads(), random);
  compress(call.args);
  if (const std::string why = call.difference(); !why.empty()) return session.wrong(label, why);
  const ReadWork read(call.bytes(), session.num_threads());
  const std::vector<Timing> timings =
      measure({{[&call] { compress(call.args); }}, read.work()}, session.options().repeats, session.clock());
  row.timing = timings[0];
  row.floor_us = std::max(call.flops() / fma_flops_per_us(session.num_threads()), timings[1].us);
  row.checked = true;
  row.more = {{"entries", call.num_entries()}, {"flops", call.flops()}, {"bytes", call.bytes()}};
  session.row(row);
}

}  // namespace

void bench_compressor(Session& session) {
  for (const StepCase& shape : cases_of(session.options().suite)) {
    Row row;
    row.op = "compressor";
    row.dtype = cache_layout_name(shape.layout);
    row.shape = {{"ratio", shape.ratio},
                 {"head_dim", shape.head_dim},
                 {"requests", shape.requests},
                 {"tokens", shape.requests * shape.tokens}};
    row.clock = clock_name(session.clock());
    row.distribution = "normal";
    row.algorithm = shape.step;
    const std::string label = case_label(row.op, row.dtype, row.shape, row.algorithm);
    if (session.begin(label)) run_case(session, shape, label, row);
  }
  session.finish(
      {"floor: the larger of a SIMD sum over the least bytes (inputs read and saved once, earlier rows that "
       "entries need, entries) and",
       "       20 operations for each pooled value (an exponential counts as 16) at the measured FMA peak; "
       "inputs and state are fp32",
       "save_only steps complete no entry; checked: all saved state exactly, the first and last entry against "
       "the definition in double"});
}

#ifndef TAMIS_HAS_CUDA
void bench_compressor_gpu(Session&) {
  core::fail(Status::kUnsupported, "bench: --gpu was asked for, but ", core::kNoCudaInBuild);
}
#endif

}  // namespace tamis::bench
