// Top-k on the GPU beside its floor, which is a kernel that only reads the scores, and beside torch.topk.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cuda/fill.hpp"
#include "bench/cuda/gpu_machine.hpp"
#include "bench/cuda/gpu_timing.hpp"
#include "bench/cuda/read_floor.hpp"
#include "bench/cuda/topk_answer.hpp"
#include "bench/cuda/topk_targets.hpp"
#include "bench/cuda/torch_topk.hpp"
#include "bench/memory.hpp"
#include "bench/ops.hpp"
#include "core/check.hpp"
#include "core/cuda/gpu.hpp"
#include "core/parallel.hpp"
#include "tests/support/topk_cases.hpp"
#include "topk/cuda/topk_cuda.hpp"

namespace tamis::bench {
namespace {

constexpr int kDevice = 0;
constexpr std::string_view kNormal = "normal";

struct GpuCase {
  std::int64_t rows, width, k;
  DType dtype;
  std::string_view distribution;
  const TopkTarget* target = nullptr;  // of the shape; its times are those of the normal distribution

  bool is_normal() const { return distribution == kNormal; }
  std::int64_t row_bytes() const { return width * dtype_bytes(dtype); }
  std::int64_t input_bytes() const { return rows * row_bytes(); }
  // From one copy to the next: each begins where an allocation of its own might.
  std::int64_t stride_bytes() const { return (input_bytes() + 255) / 256 * 256; }

  Row row() const {
    Row row;
    row.op = "topk";
    row.dtype = dtype_name(dtype);
    row.shape = {{"rows", rows}, {"width", width}, {"k", k}};
    row.distribution = distribution;
    row.checked = true;
    return row;
  }
  std::string label() const {
    const Row r = row();
    return case_label(r.op, r.dtype, r.shape, r.distribution);
  }
};

std::vector<GpuCase> cases_of(const std::string& suite) {
  constexpr DType f32 = DType::kFloat32, b16 = DType::kBFloat16, f16 = DType::kFloat16;
  if (suite == "smoke") {
    return {{2, 4096, 64, f32, kNormal},
            {3, 2048, 512, b16, "relu_90"},
            {1, 100, 512, f32, kNormal},
            {4, 65536, 512, f16, kNormal},
            {200, 32768, 512, f32, "quantised"}};
  }
  std::vector<GpuCase> list;
  for (const TopkTarget& target : kTopkTargets) {
    list.push_back({target.rows, target.width, target.k, target.dtype, kNormal, &target});
    for (const test::TopkDistribution& kind : test::kTopkDistributions) {
      if (!target.every_kind || !kind.headline || kind.name == kNormal) continue;
      list.push_back({target.rows, target.width, target.k, target.dtype, kind.name, &target});
    }
  }
  return list;
}

// Rows that are compared with the answer: all of a small case, else some from the first to the last.
std::vector<std::int64_t> checked_rows(const GpuCase& c) {
  constexpr std::int64_t kMostScores = 16 << 20, kSpreadRows = 8;
  const std::int64_t count = c.rows * c.width <= kMostScores ? c.rows : std::min(c.rows, kSpreadRows);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i) rows.push_back(count > 1 ? i * (c.rows - 1) / (count - 1) : 0);
  return rows;
}

// A call with its memory: as many copies of the scores as a rotation needs, one output, one workspace.
class GpuTopkCall {
 public:
  GpuTopkCall(const GpuCase& c, TopkAlgorithm algorithm, std::int64_t copies, cudaStream_t stream)
      : case_(c),
        copies_(copies),
        scores_(static_cast<std::size_t>(copies * c.stride_bytes())),
        indices_(static_cast<std::size_t>(c.rows * c.k * 4)),
        workspace_(0) {
    args_.k = c.k;
    args_.indices = TensorView(indices_.data(), DType::kInt32, {c.rows, c.k}, kGpu);
    args_.algorithm = algorithm;
    args_.stream.handle = stream;
    set_copy(0);
    workspace_ = GpuBytes(topk_workspace_bytes(args_));
    workspace_.set(0xFF, stream);  // its contents may be anything
    args_.workspace = workspace_.data();
    args_.workspace_bytes = workspace_.size();
    fill_scores({scores_.data(), c.dtype, copies, c.rows, c.width, c.stride_bytes() / dtype_bytes(c.dtype),
                 fill_kind(c.distribution), seed_of(c.label())},
                stream);
  }

  GpuCopies copies() const { return {scores_.data(), case_.input_bytes(), case_.stride_bytes(), copies_}; }
  const char* algorithm() const { return topk_algorithm_name(topk_choose(args_).algorithm); }

  void enqueue(std::int64_t copy, cudaStream_t stream) {
    set_copy(copy);
    args_.stream.handle = stream;
    topk(args_);
  }

  // Empty if the result of a copy is right, else what differs first.
  std::string difference(std::int64_t copy, cudaStream_t stream) {
    indices_.set(0xC7, stream);  // what is not written differs
    enqueue(copy, stream);
    const auto got =
        copy_from_gpu<std::int32_t>(indices_.data(), static_cast<std::size_t>(case_.rows * case_.k), stream);
    const std::vector<std::int64_t> rows = checked_rows(case_);
    std::vector<std::string> differences(rows.size());
    core::parallel_for(static_cast<std::int64_t>(rows.size()), 1, 0, [&](std::int64_t begin, std::int64_t end, int) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        differences[i] = row_difference(copy, rows[i], got.data() + rows[i] * case_.k, stream);
      }
    });
    const auto first = std::find_if(differences.begin(), differences.end(), [](const auto& d) { return !d.empty(); });
    return first == differences.end() ? std::string() : *first;
  }

 private:
  static constexpr Device kGpu = {Device::Kind::kCuda, kDevice};

  const std::byte* scores_of(std::int64_t copy) const { return scores_.data() + copy * case_.stride_bytes(); }
  void set_copy(std::int64_t copy) {
    args_.scores = ConstTensorView(scores_of(copy), case_.dtype, {case_.rows, case_.width}, kGpu);
  }

  std::string row_difference(std::int64_t copy, std::int64_t row, const std::int32_t* got, cudaStream_t stream) const {
    const auto scores = copy_from_gpu<std::byte>(scores_of(copy) + row * case_.row_bytes(),
                                                 static_cast<std::size_t>(case_.row_bytes()), stream);
    const std::vector<std::int32_t> want = topk_answer(scores.data(), case_.dtype, case_.width, case_.k);
    const auto [expected, found] = std::mismatch(want.begin(), want.end(), got);
    if (expected == want.end()) return {};
    return core::concat("indices[", row, ", ", expected - want.begin(), "] of copy ", copy, " is ", *found,
                        ", must be ", *expected);
  }

  GpuCase case_;
  std::int64_t copies_;
  GpuBytes scores_, indices_, workspace_;
  TopkArgs args_;
};

struct Measured {
  Timing cold, hot;
  double floor_us;
  std::string algorithm;
};

class GpuTopkBench {
 public:
  GpuTopkBench(Session& session, const TopkGpuOptions& options)
      : session_(session), options_(options), timer_(session.options().repeats) {
    TAMIS_CUDA_CHECK(cudaDeviceGetAttribute(&l2_bytes_, cudaDevAttrL2CacheSize, kDevice));
  }

  void run(const GpuCase& c) {
    if (!session_.begin(c.label())) return;
    if (c.is_normal() && c.k <= c.width) torch_cases_.push_back(c);  // torch.topk refuses a larger k
    const std::optional<Measured>& measured = measure(c);
    if (!measured) return;
    Row row = c.row();
    row.algorithm = measured->algorithm;
    row.timing = measured->cold;
    row.floor_us = measured->floor_us;
    row.goal_us = goal_us(c);
    row.more["hot_us"] = measured->hot.us;
    if (c.target != nullptr && c.is_normal()) {
      row.more["best_other_us"] = c.target->best_other_us;
      row.more["best_other"] = c.target->best_other;
      row.more["table_torch_us"] = c.target->torch_us;
    }
    session_.row(row);
  }

  void run_torch() {
    if (torch_cases_.empty()) return;
    std::vector<TorchCase> cases;
    for (const GpuCase& c : torch_cases_) cases.push_back({c.rows, c.width, c.k, c.dtype, copies_of(c)});
    const std::string why = time_torch_topk(cases, timer_.repeats(), [&](std::size_t index, const TorchTiming& torch) {
      const GpuCase& c = torch_cases_.at(index);
      Row row = c.row();
      row.algorithm = "torch.topk";
      row.timing = torch.cold;
      if (const auto& ours = measured_.at(c.label())) row.floor_us = ours->floor_us;
      row.more["hot_us"] = torch.hot.us;
      row.more["torch"] = torch.version;
      session_.row(row);
    });
    if (!why.empty()) session_.note("torch.topk is left out: " + why);
  }

 private:
  std::int64_t copies_of(const GpuCase& c) const { return rotation_copies(c.stride_bytes(), l2_bytes_); }

  // Measured once; nothing where the result is wrong, or where the forced algorithm cannot serve the call.
  const std::optional<Measured>& measure(const GpuCase& c) {
    const auto [known, is_new] = measured_.try_emplace(c.label());
    if (is_new) known->second = measure_now(c);
    return known->second;
  }

  std::optional<Measured> measure_now(const GpuCase& c) {
    try {
      GpuTopkCall call(c, options_.algorithm, copies_of(c), timer_.stream());
      const GpuCopies copies = call.copies();
      for (const std::int64_t copy : std::set<std::int64_t>{0, copies.count - 1}) {
        const std::string why = call.difference(copy, timer_.stream());
        if (why.empty()) continue;
        session_.wrong(c.label(), why);
        return {};
      }
      const GpuWork work = [&call](std::int64_t copy, cudaStream_t stream) { call.enqueue(copy, stream); };
      Measured measured;
      measured.algorithm = call.algorithm();
      measured.cold = timer_.time(work, copies.count);
      measured.hot = timer_.time(work, 1);
      measured.floor_us = read_floor_us(timer_, copies, core::gpu(kDevice).num_sms);
      return measured;
    } catch (const Error& error) {
      if (error.status() != Status::kUnsupported || options_.algorithm == TopkAlgorithm::kAuto) throw;
      session_.note(core::concat("left out: ", c.label(), ": ", error.what()));
      return {};
    }
  }

  // Of a normal case the target's, of another kind a multiple of the normal time, which is measured even where the
  // filter leaves its row out.
  std::optional<double> goal_us(const GpuCase& c) {
    if (c.target == nullptr) return {};
    if (c.is_normal()) return c.target->goal_us;
    GpuCase normal = c;
    normal.distribution = kNormal;
    const std::optional<Measured>& measured = measure(normal);
    if (!measured) return {};
    return kOtherKindsGoal * measured->cold.us;
  }

  Session& session_;
  TopkGpuOptions options_;
  GpuTimer timer_;
  int l2_bytes_ = 0;
  std::map<std::string, std::optional<Measured>> measured_;  // by label
  std::vector<GpuCase> torch_cases_;
};

}  // namespace

void bench_topk_gpu(Session& session, const TopkGpuOptions& options) {
  std::string why;
  TAMIS_CHECK(core::num_gpus(&why) > 0, Status::kDeviceError,
              "bench: --gpu was asked for, but there is no CUDA device: ", why);
  why = topk_cuda::why_no_kernels(kDevice);
  TAMIS_CHECK(why.empty(), Status::kUnsupported, "bench: ", why);
  session.use_gpu(gpu_machine(kDevice));
  GpuTopkBench bench(session, options);
  for (const GpuCase& c : cases_of(session.options().suite)) bench.run(c);
  if (options.torch) bench.run_torch();
  session.finish(
      {"us: a launch in a replayed CUDA graph of 8 to 400 (about 1 ms), inputs rotated past the L2; --json also has "
       "hot_us: one input over and over",
       "floor: a kernel that only reads the same inputs, the fastest of its grids, timed in the same way right after",
       "goal: the target of the shape; of other distributions 1.1 times the normal time of this run"});
}

}  // namespace tamis::bench
