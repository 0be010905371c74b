// Attention over listed entries of the window cache and the compressed cache, decode and prefill.

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/caches.hpp"
#include "bench/floors.hpp"
#include "bench/memory.hpp"
#include "bench/ops.hpp"
#include "core/check.hpp"
#include "core/float_formats.hpp"
#include "sparse_mla/reference.hpp"

namespace tamis::bench {
namespace {

struct AttendCase {
  std::int64_t rows, heads;
  std::int64_t window, topk;  // keys of the two sources; window 0: gathered rows only
  CacheLayout layout;
};

std::vector<AttendCase> cases_of(const std::string& suite) {
  constexpr auto fp8 = CacheLayout::kFp8Mla584, bf16 = CacheLayout::kBFloat16, fp32 = CacheLayout::kFloat32;
  if (suite == "smoke") return {{2, 4, 16, 32, fp8}, {3, 4, 0, 40, bf16}};
  return {
      // Decode: V4-Flash has 64 heads and 512 entries, V4-Pro 128 and 1,024, tiny-v4 4 and 64. Fewer heads as tensor
      // parallelism leaves them.
      {1, 64, 128, 512, fp8},
      {1, 128, 128, 1024, fp8},
      {1, 32, 128, 512, fp8},
      {1, 16, 128, 512, fp8},
      {1, 8, 128, 512, fp8},
      {1, 4, 128, 512, fp8},
      {1, 4, 128, 64, fp32},
      {8, 64, 128, 512, fp8},
      // Prefill: a gathered chunk, every row with its own list.
      {16, 64, 0, 640, bf16},
      {16, 4, 0, 640, bf16},
  };
}

// A call with its memory; args point into it.
class AttendCall {
 public:
  AttendCall(const AttendCase& shape, int num_threads, RandomBits& random)
      : window_(shape.window > 0 ? shape.layout : CacheLayout::kFloat32, 512, shape.window > 0 ? shape.rows * 2 : 1,
                shape.window > 0 ? 64 : 1, random),
        // Decode: entries of 16,384 tokens at C4. Prefill: 4,096 gathered rows, one page.
        extra_(shape.layout, 512, shape.window > 0 ? 64 : 1, shape.window > 0 ? 64 : 4096, random),
        q_(static_cast<std::size_t>(shape.rows * shape.heads * 512 * 2)),
        out_(static_cast<std::size_t>(shape.rows * shape.heads * 512 * 2)),
        lse_(static_cast<std::size_t>(shape.rows * shape.heads * 4)),
        workspace_(0) {
    for (std::int64_t i = 0; i < shape.rows * shape.heads * 512; ++i) {
      q_.as<std::uint16_t>()[i] = core::float_to_bf16(random.normal());
    }
    for (std::int64_t i = 0; i < shape.heads; ++i) sink_.push_back(random.normal());
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t i = 0; i < shape.window; ++i) {
        window_list_.push_back(static_cast<std::int32_t>((r * 128 + i) % window_.view().num_slots()));
      }
      const std::vector<std::int32_t> list = ascending_sample(shape.topk, extra_.view().num_slots(), random);
      extra_list_.insert(extra_list_.end(), list.begin(), list.end());
    }
    args.q = ConstTensorView(q_.data(), DType::kBFloat16, {shape.rows, shape.heads, 512});
    SparseMlaSource extra;
    extra.cache = extra_.view();
    extra.topk_indices = ConstTensorView(extra_list_.data(), DType::kInt32, {shape.rows, shape.topk});
    if (shape.window > 0) {
      args.main.cache = window_.view();
      args.main.topk_indices = ConstTensorView(window_list_.data(), DType::kInt32, {shape.rows, shape.window});
      args.extra = extra;
    } else {
      args.main = extra;
    }
    args.attn_sink = ConstTensorView(sink_.data(), DType::kFloat32, {shape.heads});
    args.out = TensorView(out_.data(), DType::kBFloat16, {shape.rows, shape.heads, 512});
    args.lse = TensorView(lse_.data(), DType::kFloat32, {shape.rows, shape.heads});
    args.num_threads = num_threads;
    workspace_ = AlignedBytes(sparse_mla_workspace_bytes(args));
    args.workspace = workspace_.data();
    args.workspace_bytes = workspace_.size();
  }
  AttendCall(const AttendCall&) = delete;
  AttendCall& operator=(const AttendCall&) = delete;

  // Empty if the row agrees with the definition. fp32 sums of 512 products and some hundred keys are within 1e-4 of the
  // sum of magnitudes with a hundredfold margin, bf16 rounds the output by 2^-9 of it: tighter bounds are the tests'.
  std::string difference(std::int64_t row) const {
    SparseMlaArgs one = args;
    const auto slice = [&](const SparseMlaSource& source) {
      SparseMlaSource cut = source;
      if (!source.cache.present()) return cut;
      const auto* list = static_cast<const std::int32_t*>(source.topk_indices.data());
      const std::int64_t topk = source.topk_indices.size(1);
      cut.topk_indices = ConstTensorView(list + row * topk, DType::kInt32, {1, topk});
      return cut;
    };
    const std::int64_t heads = args.q.size(1);
    one.q = ConstTensorView(q_.as<std::uint16_t>() + row * heads * 512, DType::kBFloat16, {1, heads, 512});
    one.main = slice(args.main);
    one.extra = slice(args.extra);
    const reference::SparseMlaResult want = reference::sparse_mla(one);
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto pair = static_cast<std::size_t>(h);
      const double lse = lse_.as<float>()[row * heads + h];
      const double lse_allowed = 1e-4 * (1 + want.logit_magnitude[pair]);
      if (!(std::abs(lse - want.lse[pair]) <= lse_allowed)) {
        return core::concat("lse[", row, ", ", h, "] is ", lse, ", must be ", want.lse[pair]);
      }
      for (std::size_t c = 0; c < 512; ++c) {
        const auto at = static_cast<std::size_t>(row * heads + h) * 512 + c;
        const double got = core::bf16_to_float(out_.as<std::uint16_t>()[at]);
        const double expected = want.out[pair * 512 + c];
        const double allowed = 1e-4 * (1 + want.logit_magnitude[pair]) * want.out_magnitude[pair * 512 + c] +
                               0x1p-8 * std::abs(expected) + 1e-30;
        if (!(std::abs(got - expected) <= allowed)) {
          return core::concat("out[", row, ", ", h, ", ", c, "] is ", got, ", must be ", expected);
        }
      }
    }
    return {};
  }

  SparseMlaArgs args;

 private:
  RandomCache window_, extra_;
  AlignedBytes q_, out_, lse_, workspace_;
  std::vector<float> sink_;
  std::vector<std::int32_t> window_list_, extra_list_;
};

void run_case(Session& session, const AttendCase& shape, const std::string& label, Row row) {
  RandomBits random(seed_of(label));
  AttendCall call(shape, session.num_threads(), random);
  sparse_mla(call.args);
  for (const std::int64_t r : {std::int64_t{0}, shape.rows - 1}) {
    if (const std::string why = call.difference(r); !why.empty()) return session.wrong(label, why);
  }
  const std::int64_t keys = shape.window + shape.topk;
  const double flops = 2.0 * static_cast<double>(shape.rows * shape.heads * keys) * (512 + 512);
  // Rows may share keys: each entry that any row lists counts once.
  const std::int64_t entries =
      std::min(shape.rows * shape.topk,
               call.args.extra.cache.present() ? call.args.extra.cache.num_slots() : call.args.main.cache.num_slots()) +
      shape.rows * shape.window;
  const std::int64_t bytes =
      entries * cache_entry_bytes(shape.layout, 512) + shape.rows * keys * 4 + shape.rows * shape.heads * 512 * (2 + 2);
  const double flops_us = flops / fma_flops_per_us(session.num_threads());
  const ReadWork read(bytes, session.num_threads());
  const std::vector<Timing> timings =
      measure({{[&call] { sparse_mla(call.args); }}, read.work()}, session.options().repeats, session.clock());
  row.timing = timings[0];
  row.floor_us = std::max(flops_us, timings[1].us);
  row.checked = true;
  row.more = {{"flops", flops}, {"bytes", bytes}};
  session.row(row);
}

}  // namespace

void bench_sparse_mla(Session& session) {
  for (const AttendCase& shape : cases_of(session.options().suite)) {
    Row row;
    row.op = "sparse_mla";
    row.dtype = cache_layout_name(shape.layout);
    row.shape = {{"rows", shape.rows}, {"heads", shape.heads}, {"window", shape.window}, {"topk", shape.topk}};
    row.clock = clock_name(session.clock());
    row.distribution = "normal";
    row.algorithm = "simd";
    const std::string label = case_label(row.op, row.dtype, row.shape, row.distribution);
    if (session.begin(label)) run_case(session, shape, label, row);
  }
  session.finish(
      {"floor: the larger of 2 x rows x heads x keys x (512 + 512) operations at the measured FMA peak, and a "
       "SIMD sum over the bytes of the entries listed (each once), lists, queries and output",
       "checked: first and last row against the definition in double; queries and output are bf16; window 0 "
       "is prefill over gathered rows"});
}

}  // namespace tamis::bench
