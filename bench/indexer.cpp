// Index scores, and scores with the selection behind them, decode over pages and prefill over gathered keys.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bench/caches.hpp"
#include "bench/floors.hpp"
#include "bench/memory.hpp"
#include "bench/ops.hpp"
#include "core/check.hpp"
#include "core/float_formats.hpp"
#include "indexer/reference.hpp"
#include "topk/reference.hpp"

namespace tamis::bench {
namespace {

struct ScoreCase {
  std::int64_t rows, columns, heads;
  std::int64_t k;  // 0: the logits alone
  IndexFormat format;
  bool paged;
};

std::vector<ScoreCase> cases_of(const std::string& suite) {
  constexpr auto fp8 = IndexFormat::kFp8, mxfp4 = IndexFormat::kMxfp4, fp32 = IndexFormat::kFloat32;
  if (suite == "smoke") return {{2, 300, 4, 0, fp8, true}, {3, 400, 4, 16, mxfp4, false}};
  return {
      {1, 65536, 64, 0, fp8, true},  {1, 65536, 64, 0, mxfp4, true},  {1, 65536, 8, 0, fp8, true},
      {1, 16384, 8, 0, fp32, true},  {64, 8192, 64, 0, fp8, false},   {1, 65536, 64, 512, fp8, true},
      {1, 65536, 8, 512, fp8, true}, {64, 8192, 64, 512, fp8, false},
  };
}

const char* format_name(IndexFormat format) {
  switch (format) {
    case IndexFormat::kFloat32: return "fp32";
    case IndexFormat::kBFloat16: return "bf16";
    case IndexFormat::kFp8: return "fp8";
    case IndexFormat::kMxfp4: return "mxfp4";
  }
  return "?";
}

CacheLayout layout_of(IndexFormat format) {
  switch (format) {
    case IndexFormat::kFp8: return CacheLayout::kIndexerFp8;
    case IndexFormat::kMxfp4: return CacheLayout::kIndexerMxfp4;
    case IndexFormat::kBFloat16: return CacheLayout::kBFloat16;
    case IndexFormat::kFloat32: break;
  }
  return CacheLayout::kFloat32;
}

class ScoreCall {
 public:
  ScoreCall(const ScoreCase& shape, int num_threads, RandomBits& random)
      : keys_(layout_of(shape.format), 128, shape.paged ? (shape.columns + 63) / 64 : 1,
              shape.paged ? 64 : shape.columns, random),
        logits_(static_cast<std::size_t>(shape.rows * shape.columns * 4)),
        indices_(static_cast<std::size_t>(shape.rows * shape.k * 4)),
        workspace_(0) {
    const std::int64_t pairs = shape.rows * shape.heads;
    for (std::int64_t i = 0; i < pairs; ++i) {
      weights_.push_back(0.1F * random.normal());
      for (std::int64_t c = 0; c < 128; ++c) add_query(shape.format, c, random);
    }
    const bool halves = shape.format == IndexFormat::kMxfp4;
    const bool wide = shape.format == IndexFormat::kFloat32;
    score.format = shape.format;
    score.index_q = ConstTensorView(q_.data(), wide ? DType::kFloat32 : DType::kUInt8,
                                    {shape.rows, shape.heads, halves ? 64 : 128});
    if (halves) score.index_q_scale = ConstTensorView(q_scale_.data(), DType::kUInt8, {shape.rows, shape.heads, 4});
    score.index_weights = ConstTensorView(weights_.data(), DType::kFloat32, {shape.rows, shape.heads});
    score.index_k = keys_.view();
    score.max_columns = shape.columns;
    row_ends_.assign(static_cast<std::size_t>(shape.rows), static_cast<std::int32_t>(shape.columns));
    score.row_ends = ConstTensorView(row_ends_.data(), DType::kInt32, {shape.rows});
    if (shape.paged) {
      // All rows look at one request's pages, which lie in random order.
      page_table_ = shuffled(keys_.view().num_pages, random);
      row_to_table_.assign(static_cast<std::size_t>(shape.rows), 0);
      score.page_table = ConstTensorView(page_table_.data(), DType::kInt32, {1, keys_.view().num_pages});
      score.row_to_table = ConstTensorView(row_to_table_.data(), DType::kInt32, {shape.rows});
    }
    logits.score = score;
    logits.logits = TensorView(logits_.data(), DType::kFloat32, {shape.rows, shape.columns});
    logits.num_threads = num_threads;
    if (shape.k == 0) return;
    select.score = score;
    select.k = shape.k;
    select.indices = TensorView(indices_.data(), DType::kInt32, {shape.rows, shape.k});
    select.num_threads = num_threads;
    workspace_ = AlignedBytes(index_topk_workspace_bytes(select));
    select.workspace = workspace_.data();
    select.workspace_bytes = workspace_.size();
  }
  ScoreCall(const ScoreCall&) = delete;
  ScoreCall& operator=(const ScoreCall&) = delete;

  // Empty if a row's logits agree with the definition. A term passes through 128 products and sums, one weight and the
  // sum over heads: 2 * (128 + heads) roundings of 2^-24 bound any order.
  std::string logits_difference(std::int64_t row) const {
    const std::vector<indexer::ReferenceScore> want = indexer::reference_index_scores(score, row);
    const double bound = 2.0 * static_cast<double>(128 + score.index_q.size(1)) * 0x1p-24;
    for (std::size_t j = 0; j < want.size(); ++j) {
      const double got = logits_.as<float>()[row * score.max_columns + static_cast<std::int64_t>(j)];
      if (!(std::abs(got - want[j].score) <= bound * want[j].magnitude + 1e-30)) {
        return core::concat("logits[", row, ", ", j, "] is ", got, ", must be ", want[j].score);
      }
    }
    return {};
  }
  // Empty if every row selects what the definition of top-k selects of the logits.
  std::string topk_difference() const {
    TopkArgs args;
    args.scores = logits.logits;
    args.k = select.k;
    args.indices = select.indices;
    for (std::int64_t row = 0; row < args.scores.size(0); ++row) {
      const std::vector<std::int64_t> want = reference::topk_mapped(args, row, reference::topk_row(args, row));
      for (std::int64_t i = 0; i < args.k; ++i) {
        const std::int64_t got = indices_.as<std::int32_t>()[row * args.k + i];
        if (got != want[static_cast<std::size_t>(i)]) {
          return core::concat("indices[", row, ", ", i, "] is ", got, ", must be ", want[static_cast<std::size_t>(i)]);
        }
      }
    }
    return {};
  }

  IndexScoreArgs score;
  IndexLogitsArgs logits;
  IndexTopkArgs select;

 private:
  void add_query(IndexFormat format, std::int64_t c, RandomBits& random) {
    const float value = random.normal();
    if (format == IndexFormat::kFloat32) {
      std::uint8_t raw[4];
      std::memcpy(raw, &value, 4);
      q_.insert(q_.end(), raw, raw + 4);
    } else if (format == IndexFormat::kFp8) {
      q_.push_back(core::float_to_e4m3(64 * value));
    } else {
      if (c % 2 == 0) q_.push_back(core::float_to_e2m1(2 * value));
      else q_.back() = static_cast<std::uint8_t>(q_.back() | (core::float_to_e2m1(2 * value) << 4));
      if (c % 32 == 0) q_scale_.push_back(static_cast<std::uint8_t>(125 + random.below(4)));
    }
  }

  RandomCache keys_;
  AlignedBytes logits_, indices_, workspace_;
  std::vector<std::uint8_t> q_, q_scale_;
  std::vector<float> weights_;
  std::vector<std::int32_t> row_ends_, page_table_, row_to_table_;
};

void run_case(Session& session, const ScoreCase& shape, const std::string& label, Row row) {
  RandomBits random(seed_of(label));
  ScoreCall call(shape, session.num_threads(), random);
  index_logits(call.logits);
  for (const std::int64_t r : {std::int64_t{0}, shape.rows - 1}) {
    if (const std::string why = call.logits_difference(r); !why.empty()) return session.wrong(label, why);
  }
  if (shape.k > 0) {
    index_topk(call.select);
    if (const std::string why = call.topk_difference(); !why.empty()) return session.wrong(label, why);
  }
  const double flops = 2.0 * 128 * static_cast<double>(shape.rows * shape.columns * shape.heads);
  // Rows of a call may share what they read, so keys count once; logits are written where they are the result.
  const std::int64_t bytes = shape.columns * cache_entry_bytes(layout_of(shape.format), 128) +
                             (shape.k == 0 ? shape.rows * shape.columns * 4 : shape.rows * shape.k * 4);
  const ReadWork read(bytes, session.num_threads());
  const Work work =
      shape.k == 0 ? Work{[&call] { index_logits(call.logits); }} : Work{[&call] { index_topk(call.select); }};
  const std::vector<Timing> timings = measure({work, read.work()}, session.options().repeats, session.clock());
  row.timing = timings[0];
  row.floor_us = std::max(flops / fma_flops_per_us(session.num_threads()), timings[1].us);
  row.checked = true;
  row.more = {{"flops", flops}, {"bytes", bytes}};
  session.row(row);
}

}  // namespace

void bench_indexer(Session& session) {
  for (const ScoreCase& shape : cases_of(session.options().suite)) {
    Row row;
    row.op = shape.k == 0 ? "index_logits" : "index_topk";
    row.dtype = format_name(shape.format);
    row.shape = {{"rows", shape.rows}, {"columns", shape.columns}, {"heads", shape.heads}};
    if (shape.k > 0) row.shape.emplace_back("k", shape.k);
    row.clock = clock_name(session.clock());
    row.distribution = "normal";
    row.algorithm = shape.paged ? "paged" : "gathered";
    const std::string label = case_label(row.op, row.dtype, row.shape, row.distribution);
    if (session.begin(label)) run_case(session, shape, label, row);
  }
  session.finish(
      {"floor: the larger of 2 x 128 x rows x columns x heads operations at the measured FMA peak, and a SIMD "
       "sum over the keys' bytes (once) plus the result's",
       "checked: logits of the first and last row against the definition in double; selections of every row "
       "against the definition of top-k over those logits"});
}

}  // namespace tamis::bench
