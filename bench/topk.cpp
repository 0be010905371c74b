// Top-k on the CPU beside two others: a SIMD sum of the same rows, which is the floor, and std::nth_element over
// (score, position) pairs, which is what people write.

#include <algorithm>
#include <string>
#include <vector>

#include "bench/floors.hpp"
#include "bench/memory.hpp"
#include "bench/ops.hpp"
#include "core/check.hpp"
#include "core/gpu_list.hpp"
#include "core/parallel.hpp"
#include "tests/support/topk_cases.hpp"
#include "topk/reference.hpp"

namespace tamis::bench {
namespace {

struct TopkBenchCase {
  std::int64_t rows, width, k;
  DType dtype;
  const char* distribution;
  bool has_goal;     // half the speed of the sum
  bool nth_element;  // time the pairs, too: a fifth of their time is a goal as well
};

std::vector<TopkBenchCase> cases_of(const std::string& suite) {
  constexpr DType f32 = DType::kFloat32, b16 = DType::kBFloat16, f16 = DType::kFloat16;
  if (suite == "smoke") {
    return {{2, 4096, 64, f32, "normal", false, true},
            {3, 2048, 512, b16, "relu_90", false, false},
            {1, 100, 512, f32, "normal", false, false}};
  }
  std::vector<TopkBenchCase> list;
  // The goal is set for a row of 1 MiB that lies in L2. Where L2 is 1 MiB, that row only just fits: the row of half the
  // width shows whether the sum is then slower for it.
  for (const test::TopkDistribution& kind : test::kTopkDistributions) {
    if (kind.headline) list.push_back({1, 262144, 512, f32, kind.name, true, std::string(kind.name) == "normal"});
  }
  list.push_back({1, 131072, 512, f32, "normal", false, true});
  list.push_back({1, 262144, 2048, f32, "normal", false, true});
  for (const DType dtype : {b16, f16}) {
    for (const std::int64_t k : {512, 2048}) list.push_back({1, 262144, k, dtype, "normal", false, false});
  }
  for (const test::TopkShape& shape : test::kTopkModelShapes) {
    if (shape.rows == 1 && shape.width == 262144) continue;  // above
    list.push_back({shape.rows, shape.width, shape.k, f32, "normal", false, false});
  }
  return list;
}

// (score, position) as std::nth_element moves it; best first, of equal scores the lower position.
struct Pair {
  float score;
  std::int32_t position;
  bool operator<(const Pair& other) const {
    return score > other.score || (score == other.score && position < other.position);
  }
};

// Pairs of every row. Filling them is preparation and not timed: only the selection is compared.
class PairSelection {
 public:
  explicit PairSelection(const TopkArgs& args) : args_(args), rows_(args.scores.size(0)), width_(args.scores.size(1)) {
    pairs_.resize(static_cast<std::size_t>(rows_ * width_));
  }
  Work work() {
    return {[this] { select(); }, [this] { fill(); }};
  }
  /// Positions of a row's winners, ascending.
  std::vector<std::int64_t> winners(std::int64_t row) const {
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < std::min(args_.k, width_); ++i) {
      out.push_back(pairs_[static_cast<std::size_t>(row * width_ + i)].position);
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  void fill() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t i = 0; i < width_; ++i) {
        pairs_[static_cast<std::size_t>(row * width_ + i)] = {
            static_cast<float>(reference::topk_score(args_.scores, row, i)), static_cast<std::int32_t>(i)};
      }
    }
  }
  void select() {
    if (args_.k >= width_) return;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const auto begin = pairs_.begin() + row * width_;
      std::nth_element(begin, begin + args_.k, begin + width_);
    }
  }

 private:
  const TopkArgs& args_;
  std::int64_t rows_, width_;
  std::vector<Pair> pairs_;
};

// The sum of every row, with the threads that the selection has.
Work sum_work(const TopkArgs& args) {
  return {[&args] {
    const std::int64_t width = args.scores.size(1);
    core::parallel_for(args.scores.size(0), 1, args.num_threads, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const auto count = static_cast<std::size_t>(width);
        const std::int64_t at = row * args.scores.stride(0);
        // Sums of fp16 would need a conversion that the selection does not: as many bytes of bf16 stand in.
        [[maybe_unused]] volatile float sink =
            args.scores.dtype() == DType::kFloat32
                ? sum_fp32(static_cast<const float*>(args.scores.data()) + at, count)
                : sum_bf16(static_cast<const std::uint16_t*>(args.scores.data()) + at, count);
      }
    });
  }};
}

// A call with its memory; args point into it.
class TopkCall {
 public:
  TopkCall(const TopkBenchCase& c, int num_threads)
      : scores_(static_cast<std::size_t>(c.rows * c.width * dtype_bytes(c.dtype))),
        indices_(static_cast<std::size_t>(c.rows * c.k * 4)),
        workspace_(0) {
    for (std::int64_t row = 0; row < c.rows; ++row) {
      std::vector<float> values = test::make_topk_row(test::topk_distribution(c.distribution), c.width, row);
      test::encode_topk_scores(values, c.dtype, scores_.as<std::byte>() + row * c.width * dtype_bytes(c.dtype));
    }
    args.scores = ConstTensorView(scores_.data(), c.dtype, {c.rows, c.width});
    args.k = c.k;
    args.indices = TensorView(indices_.data(), DType::kInt32, {c.rows, c.k});
    args.num_threads = num_threads;
    workspace_ = AlignedBytes(topk_workspace_bytes(args));
    args.workspace = workspace_.data();
    args.workspace_bytes = workspace_.size();
  }
  TopkCall(const TopkCall&) = delete;
  TopkCall& operator=(const TopkCall&) = delete;

  // Empty if every row equals the reference, else what differs first.
  std::string difference() const {
    for (std::int64_t row = 0; row < args.scores.size(0); ++row) {
      const std::vector<std::int64_t> want = reference::topk_mapped(args, row, reference::topk_row(args, row));
      for (std::int64_t i = 0; i < args.k; ++i) {
        const std::int64_t got = indices_.as<std::int32_t>()[row * args.k + i];
        const std::int64_t expected = want[static_cast<std::size_t>(i)];
        if (got != expected) return core::concat("indices[", row, ", ", i, "] is ", got, ", must be ", expected);
      }
    }
    return {};
  }

  TopkArgs args;

 private:
  AlignedBytes scores_, indices_, workspace_;
};

void run_case(Session& session, const TopkBenchCase& bench_case, const std::string& label, Row row) {
  TopkCall c(bench_case, session.num_threads());
  topk(c.args);
  if (const std::string why = c.difference(); !why.empty()) return session.wrong(label, why);

  PairSelection pairs(c.args);
  std::vector<Work> works = {{[&c] { topk(c.args); }}, sum_work(c.args)};
  if (bench_case.nth_element) works.push_back(pairs.work());
  const std::vector<Timing> timings = measure(works, session.options().repeats, session.clock());

  row.algorithm = topk_algorithm_name(topk_choose(c.args).algorithm);
  row.timing = timings[0];
  row.floor_us = timings[1].us;
  row.checked = true;
  if (bench_case.has_goal) row.goal_us = 2 * timings[1].us;
  if (bench_case.has_goal && bench_case.nth_element) row.goal_us = std::min(*row.goal_us, timings[2].us / 5);
  session.row(row);
  if (!bench_case.nth_element) return;

  // The comparison answers the same question: its winners are the same set.
  for (std::int64_t r = 0; r < bench_case.rows; ++r) {
    if (pairs.winners(r) != reference::topk_row(c.args, r).positions) {
      return session.wrong(label, core::concat("nth_element_pairs selects other positions in row ", r));
    }
  }
  row.algorithm = "nth_element_pairs";
  row.timing = timings[2];
  row.goal_us.reset();
  session.row(row);
}

}  // namespace

void bench_topk(Session& session) {
  for (const TopkBenchCase& bench_case : cases_of(session.options().suite)) {
    Row row;
    row.op = "topk";
    row.dtype = dtype_name(bench_case.dtype);
    row.shape = {{"rows", bench_case.rows}, {"width", bench_case.width}, {"k", bench_case.k}};
    row.clock = clock_name(session.clock());
    row.distribution = bench_case.distribution;
    const std::string label = case_label(row.op, row.dtype, row.shape, row.distribution);
    if (session.begin(label)) run_case(session, bench_case, label, row);
  }
  session.finish(
      {"floor: a SIMD sum of the same rows, timed turn by turn with the selection (16-bit scores: of as many "
       "bf16)",
       "goal: half the sum's speed, and a fifth of the time of std::nth_element over (score, position) pairs "
       "where that is timed (filling the pairs is not)"});
}

#ifndef TAMIS_HAS_CUDA
void bench_topk_gpu(Session&, const TopkGpuOptions&) {
  core::fail(Status::kUnsupported, "bench: --gpu was asked for, but ", core::kNoCudaInBuild);
}
#endif

}  // namespace tamis::bench
