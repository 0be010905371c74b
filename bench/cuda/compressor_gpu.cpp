// One step of a compressor on the GPU: as three launches and as one, with and without the host's skip, enqueued one by
// one and in a graph.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/compressor_case.hpp"
#include "bench/cuda/fill.hpp"
#include "bench/cuda/gpu_machine.hpp"
#include "bench/cuda/gpu_timing.hpp"
#include "bench/cuda/read_floor.hpp"
#include "bench/cuda/three_launches.hpp"
#include "bench/ops.hpp"
#include "compressor/cuda/compress_cuda.hpp"
#include "core/check.hpp"
#include "core/cuda/gpu.hpp"
#include "ops/layouts.hpp"

namespace tamis::bench {
namespace {

constexpr int kDevice = 0;
constexpr Device kGpu = {Device::Kind::kCuda, kDevice};

struct GpuStep {
  StepCase step;
  double graph_goal_us = 0, eager_goal_us = 0;  // 0: none
};

std::vector<GpuStep> cases_of(const std::string& suite) {
  constexpr auto fp8 = CacheLayout::kFp8Mla584, key = CacheLayout::kIndexerFp8;
  if (suite == "smoke") {
    return {{{"save_only", 128, 512, 2, 200, 1, 1, fp8}},
            {{"boundary", 128, 512, 2, 255, 1, 1, fp8, true}},
            {{"steady", 4, 512, 8, 64, 1, 4, fp8}},
            {{"prefill", 4, 128, 1, 0, 400, 1, key}},
            {{"prefill", 128, 512, 1, 50, 400, 1, fp8, true}}};
  }
  std::vector<GpuStep> list;
  for (const std::int64_t requests : {1, 8, 64, 256}) {
    list.push_back({{"save_only", 128, 512, requests, 4159, 1, 1, fp8},
                    requests == 1    ? 1.3
                    : requests == 64 ? 1.6
                                     : 0.0,
                    requests == 1 ? 4.0 : 0.0});
    list.push_back({{"boundary", 128, 512, requests, 4223, 1, 1, fp8},
                    requests == 1    ? 5.0
                    : requests == 64 ? 11.0
                                     : 0.0});
    list.push_back({{"save_only", 4, 512, requests, 4096, 1, 1, fp8}});
    list.push_back({{"boundary", 4, 512, requests, 4099, 1, 1, fp8}});
    list.push_back({{"save_only", 4, 128, requests, 4096, 1, 1, key}});
    list.push_back({{"boundary", 4, 128, requests, 4099, 1, 1, key}});
  }
  list.push_back({{"steady", 128, 512, 256, 4096, 1, 128, fp8}});
  list.push_back({{"steady", 4, 512, 256, 4096, 1, 4, fp8}, 4.0});
  list.push_back({{"steady", 4, 128, 256, 4096, 1, 4, key}});
  for (const std::int64_t tokens : {512, 2048, 8192}) {
    const bool largest = tokens == 8192;
    list.push_back({{"prefill", 128, 512, 1, 0, tokens, 1, fp8, true}, largest ? 16.0 : 0.0});
    list.push_back({{"prefill", 128, 512, 1, 0, tokens, 1, fp8}});
    list.push_back({{"prefill", 4, 512, 1, 0, tokens, 1, fp8, true}, largest ? 26.0 : 0.0});
    list.push_back({{"prefill", 4, 512, 1, 0, tokens, 1, fp8}});
    list.push_back({{"prefill", 4, 128, 1, 0, tokens, 1, key}});
  }
  return list;
}

std::size_t round_up_256(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// A step on the GPU: what it reads and writes in as many copies as a rotation needs, the rest once.
class GpuStepCall {
 public:
  GpuStepCall(const StepCall& host, std::int64_t copies, cudaStream_t stream)
      : kv_bytes_(bytes_of(host.args.kv)),
        state_bytes_(bytes_of(host.args.state)),
        cache_bytes_(static_cast<std::size_t>(host.args.cache.num_pages * host.args.cache.page_stride_bytes)),
        stride_(2 * round_up_256(kv_bytes_) + round_up_256(state_bytes_) + round_up_256(cache_bytes_)),
        copies_(copies),
        memory_(stride_ * static_cast<std::size_t>(copies)),
        first_(stride_),
        pooled_(three_launches_bytes(host.args)) {
    fill_scores({memory_.data(), DType::kFloat32, copies, 1, static_cast<std::int64_t>(stride_ / 4),
                 static_cast<std::int64_t>(stride_ / 4), FillKind::kNormal, 7},
                stream);
    CompressArgs args = host.args;
    for (ConstTensorView* view :
         {&args.ape, &args.norm_weight, &args.cos_sin, &args.positions, &args.token_to_request, &args.query_start_loc,
          &args.state_table, &args.state_slots, &args.state_ring, &args.kv_slots}) {
      if (view->present()) *view = copied(*view);
    }
    args.workspace = nullptr;  // none is needed for these shapes
    args.workspace_bytes = 0;
    const std::int64_t tokens = args.kv.size(0), width = args.kv.size(1);
    for (std::int64_t i = 0; i < copies; ++i) {
      std::byte* at = copy(i);
      args.kv = ConstTensorView(at, DType::kFloat32, {tokens, width}, kGpu);
      args.gate = ConstTensorView(at += round_up_256(kv_bytes_), DType::kFloat32, {tokens, width}, kGpu);
      args.state = TensorView(at += round_up_256(kv_bytes_), DType::kFloat32,
                              {args.state.size(0), args.state.size(1), args.state.size(2)}, kGpu);
      args.cache.data = at + round_up_256(state_bytes_);
      args.cache.device = kGpu;
      args_.push_back(args);
    }
    const std::int64_t capacity = compress_list_capacity(tokens, args.query_start_loc.size(0) - 1, args.compress_ratio);
    list_ = std::make_unique<GpuBytes>(static_cast<std::size_t>(capacity) * 4);
    lists_[0] = {args.compress_ratio, TensorView(list_->data(), DType::kInt32, {capacity}, kGpu)};
    enqueue_list(stream);
  }

  CompressArgs& args(std::int64_t copy) { return args_[static_cast<std::size_t>(copy)]; }
  GpuCopies inputs(std::int64_t bytes) { return {memory_.data(), bytes, static_cast<std::int64_t>(stride_), copies_}; }
  ConstTensorView list() const { return lists_[0].tokens; }
  void* pooled() { return pooled_.data(); }
  void enqueue_list(cudaStream_t stream) {
    build_compress_step({args_[0].positions, args_[0].token_to_request, args_[0].query_start_loc, lists_, {stream}});
  }

  // Remembers the host's numbers as they are before its step, for copy 0.
  void load(const StepCall& host, cudaStream_t stream) {
    put(0, host.args.kv.data(), kv_bytes_, stream);
    put(round_up_256(kv_bytes_), host.args.gate.data(), kv_bytes_, stream);
    put(2 * round_up_256(kv_bytes_), host.args.state.data(), state_bytes_, stream);
    put(2 * round_up_256(kv_bytes_) + round_up_256(state_bytes_), host.args.cache.data, cache_bytes_, stream);
  }
  // Copy 0 with these numbers.
  void restore(cudaStream_t stream) {
    TAMIS_CUDA_CHECK(cudaMemcpyAsync(memory_.data(), first_.data(), stride_, cudaMemcpyDeviceToDevice, stream));
  }
  // Empty if state and cache of copy 0 are those of the host's step.
  std::string difference(const StepCall& host, cudaStream_t stream) {
    const auto compare = [&](const char* name, std::size_t offset, const void* want, std::size_t bytes) -> std::string {
      const auto got = copy_from_gpu<std::uint8_t>(memory_.data() + offset, bytes, stream);
      const auto* expected = static_cast<const std::uint8_t*>(want);
      const auto at = std::mismatch(got.begin(), got.end(), expected).first - got.begin();
      if (at == static_cast<std::ptrdiff_t>(bytes)) return {};
      return core::concat(name, " byte ", at, " is ", int{got[static_cast<std::size_t>(at)]}, ", must be ",
                          int{expected[at]});
    };
    std::string why = compare("state", 2 * round_up_256(kv_bytes_), host.args.state.data(), state_bytes_);
    if (!why.empty()) return why;
    return compare("cache", 2 * round_up_256(kv_bytes_) + round_up_256(state_bytes_), host.args.cache.data,
                   cache_bytes_);
  }

 private:
  static std::size_t bytes_of(const ConstTensorView& view) {
    return static_cast<std::size_t>(view.numel() * dtype_bytes(view.dtype()));
  }
  std::byte* copy(std::int64_t i) { return memory_.data() + static_cast<std::size_t>(i) * stride_; }
  void put(std::size_t offset, const void* from, std::size_t bytes, cudaStream_t stream) {
    TAMIS_CUDA_CHECK(cudaMemcpyAsync(first_.data() + offset, from, bytes, cudaMemcpyHostToDevice, stream));
    TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  ConstTensorView copied(const ConstTensorView& view) {
    small_.push_back(std::make_unique<GpuBytes>(bytes_of(view)));
    void* to = small_.back()->data();
    TAMIS_CUDA_CHECK(cudaMemcpy(to, view.data(), bytes_of(view), cudaMemcpyHostToDevice));
    if (view.rank() == 1) return {to, view.dtype(), {view.size(0)}, kGpu};
    return {to, view.dtype(), {view.size(0), view.size(1)}, kGpu};
  }

  std::size_t kv_bytes_, state_bytes_, cache_bytes_, stride_;
  std::int64_t copies_;
  GpuBytes memory_, first_, pooled_;
  std::vector<std::unique_ptr<GpuBytes>> small_;
  std::unique_ptr<GpuBytes> list_;
  CompressList lists_[1];
  std::vector<CompressArgs> args_;
};

// One way to launch a step.
struct Form {
  const char* name;
  bool one_launch, host_skip, list;
};
constexpr Form kForms[] = {{"three_launches", false, false, false},
                           {"three_launches_skip", false, true, false},
                           {"fused", true, false, false},
                           {"fused_skip", true, true, false},
                           {"fused_list", true, false, true}};

class GpuCompressorBench {
 public:
  explicit GpuCompressorBench(Session& session) : session_(session), timer_(session.options().repeats) {
    TAMIS_CUDA_CHECK(cudaDeviceGetAttribute(&l2_bytes_, cudaDevAttrL2CacheSize, kDevice));
  }

  void run(const GpuStep& c) {
    Row row;
    row.op = "compressor";
    row.dtype = cache_layout_name(c.step.layout);
    row.shape = {{"ratio", c.step.ratio},
                 {"head_dim", c.step.head_dim},
                 {"requests", c.step.requests},
                 {"tokens", c.step.requests * c.step.tokens}};
    row.distribution = core::concat(c.step.step, c.step.ring ? " ring" : " paged");
    const std::string label = case_label(row.op, row.dtype, row.shape, row.distribution);
    if (!session_.begin(label)) return;
    RandomBits random(seed_of(label));
    StepCall host(c.step, 0, random);
    const CompressPlan plan = host.args.plan;
    const std::int64_t read_bytes = host.input_bytes() + host.earlier_bytes();
    GpuStepCall gpu(host, rotation_copies(read_bytes, l2_bytes_), timer_.stream());
    gpu.load(host, timer_.stream());
    compress(host.args);
    row.floor_us = floor_us(gpu.inputs(read_bytes));
    for (const Form& form : kForms) {
      if (form.host_skip && plan != CompressPlan::kNone) continue;  // there is nothing to skip
      const GpuWork work = work_of(gpu, form, plan);
      gpu.restore(timer_.stream());
      work(0, timer_.stream());
      if (const std::string why = gpu.difference(host, timer_.stream()); !why.empty()) {
        session_.wrong(label + " " + form.name, why);
        continue;
      }
      row.checked = true;
      for (const bool graph : {false, true}) {
        row.timing = graph ? timer_.time(work, gpu.inputs(0).count) : timer_.time_eager(work, gpu.inputs(0).count);
        row.algorithm = core::concat(form.name, graph ? ", graph" : ", eager");
        const double goal = !form.one_launch ? 0.0 : graph ? c.graph_goal_us : c.eager_goal_us;
        row.goal_us = goal > 0 ? std::optional<double>(goal) : std::nullopt;
        row.more = {{"entries", host.num_entries()}, {"read_bytes", read_bytes}};
        session_.row(row);
      }
    }
  }

  // The device plan of a step, for both ratios of a model.
  void run_lists(std::int64_t tokens) {
    Row row;
    row.op = "compress_step";
    row.dtype = "int32";
    row.shape = {{"tokens", tokens}};
    row.distribution = "decode";
    if (!session_.begin(case_label(row.op, row.dtype, row.shape, row.distribution))) return;
    std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens));
    std::vector<std::int32_t> requests(positions.size()), starts(positions.size() + 1);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<std::int64_t>(4096 + i);
      requests[i] = static_cast<std::int32_t>(i);
      starts[i + 1] = static_cast<std::int32_t>(i + 1);
    }
    const auto on_gpu = [](const auto& host) {
      GpuBytes bytes(host.size() * sizeof(host[0]));
      TAMIS_CUDA_CHECK(cudaMemcpy(bytes.data(), host.data(), bytes.size(), cudaMemcpyHostToDevice));
      return bytes;
    };
    const GpuBytes a = on_gpu(positions), b = on_gpu(requests), c = on_gpu(starts);
    GpuBytes four(positions.size() * 4), many(positions.size() * 4);
    const CompressList lists[2] = {{4, TensorView(four.data(), DType::kInt32, {tokens}, kGpu)},
                                   {128, TensorView(many.data(), DType::kInt32, {tokens}, kGpu)}};
    const GpuWork work = [&](std::int64_t, cudaStream_t stream) {
      build_compress_step({ConstTensorView(a.data(), DType::kInt64, {tokens}, kGpu),
                           ConstTensorView(b.data(), DType::kInt32, {tokens}, kGpu),
                           ConstTensorView(c.data(), DType::kInt32, {tokens + 1}, kGpu),
                           lists,
                           {stream}});
    };
    row.algorithm = "step_lists, graph";
    row.timing = timer_.time(work, 1);
    session_.row(row);
  }

 private:
  // Cases that read equally much have one floor.
  double floor_us(const GpuCopies& copies) {
    const auto [known, is_new] = floors_.try_emplace(copies.input_bytes);
    if (is_new) known->second = read_floor_us(timer_, copies, core::gpu(kDevice).num_sms);
    return known->second;
  }

  static GpuWork work_of(GpuStepCall& gpu, const Form& form, CompressPlan plan) {
    const bool skip = form.host_skip && plan == CompressPlan::kNone;
    if (!form.one_launch) {
      return [&gpu, skip](std::int64_t copy, cudaStream_t stream) {
        CompressArgs& args = gpu.args(copy);
        args.plan = skip ? CompressPlan::kNone : CompressPlan::kUnknown;
        enqueue_three_launches(args, gpu.pooled(), stream);
      };
    }
    if (skip) {
      // Past compress(), which skips nothing while a graph is recorded: the time that a skip would be worth there.
      return [&gpu](std::int64_t copy, cudaStream_t stream) {
        const compressor::CompressorParams params = compressor::checked_params(gpu.args(copy));
        const auto laid_out = compressor_cuda::make_plan(params, CompressAlgorithm::kAuto, kDevice);
        compressor_cuda::run(params, laid_out, false, nullptr, kDevice, stream);
      };
    }
    return [&gpu, form](std::int64_t copy, cudaStream_t stream) {
      CompressArgs& args = gpu.args(copy);
      args.plan = CompressPlan::kUnknown;
      args.listed_tokens = form.list ? gpu.list() : ConstTensorView();
      args.stream.handle = stream;
      compress(args);
    };
  }

  Session& session_;
  GpuTimer timer_;
  int l2_bytes_ = 0;
  std::map<std::int64_t, double> floors_;
};

}  // namespace

void bench_compressor_gpu(Session& session) {
  std::string why;
  TAMIS_CHECK(core::num_gpus(&why) > 0, Status::kDeviceError,
              "bench: --gpu was asked for, but there is no CUDA device: ", why);
  session.use_gpu(gpu_machine(kDevice));
  GpuCompressorBench bench(session);
  for (const GpuStep& c : cases_of(session.options().suite)) bench.run(c);
  for (const std::int64_t tokens : {1, 256, 8192}) bench.run_lists(tokens);
  session.finish(
      {"us: a step in a replayed CUDA graph, or enqueued by the host one after the other (eager); inputs and state are "
       "rotated past the L2",
       "three_launches: pool, finish, save; _skip: the host leaves out what pools where no entry completes; _list: "
       "with "
       "the device's list",
       "floor: a kernel that only reads the inputs and the earlier rows; paged prefill also saves as many bytes as it "
       "reads",
       "checked: every byte of state and cache against the CPU"});
}

}  // namespace tamis::bench
