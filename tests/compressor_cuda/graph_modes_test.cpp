// The same steps in every graph mode: what a graph recorded of a dummy step does for the steps that come.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/cuda/graph_runner.hpp"
#include "gpu_buffer.hpp"
#include "support/compressor_cases.hpp"

namespace tamis::test {
namespace {

constexpr std::int64_t kRequests = 4, kTokens = 24;  // of every step, padding included

constexpr ConstTensorView CompressArgs::*kInputs[] = {&CompressArgs::kv,
                                                      &CompressArgs::gate,
                                                      &CompressArgs::ape,
                                                      &CompressArgs::norm_weight,
                                                      &CompressArgs::cos_sin,
                                                      &CompressArgs::positions,
                                                      &CompressArgs::token_to_request,
                                                      &CompressArgs::query_start_loc,
                                                      &CompressArgs::state_table,
                                                      &CompressArgs::state_slots,
                                                      &CompressArgs::state_ring,
                                                      &CompressArgs::kv_slots};

std::size_t extent_bytes(const ConstTensorView& view) {
  std::int64_t elements = 1;
  for (int d = 0; d < view.rank(); ++d) elements += (view.size(d) - 1) * view.stride(d);
  return static_cast<std::size_t>(elements * dtype_bytes(view.dtype()));
}

// The step with padding behind its tokens, up to kTokens.
CompressorStep padded(const CompressorStep& step, const CompressorShape& shape) {
  CompressorStep out;
  out.query_start_loc = step.query_start_loc;
  out.positions = step.positions;
  out.token_to_request = step.token_to_request;
  out.state_slots = step.state_slots;
  out.kv_slots = step.kv_slots;
  out.kv = TypedRows(kTokens, shape.width(), step.kv.stride(), shape.input);
  out.gate = TypedRows(kTokens, shape.width(), step.gate.stride(), shape.input);
  std::memcpy(out.kv.data(), step.kv.data(), step.kv.bytes().size());
  std::memcpy(out.gate.data(), step.gate.data(), step.gate.bytes().size());
  // What stale padding looks like: no position, or a slot of somebody.
  out.positions.resize(kTokens, -1);
  out.token_to_request.resize(kTokens, 0);
  out.state_slots.resize(kTokens, 0);
  out.kv_slots.resize(kTokens, 0);
  return out;
}

// A layer's memory on the GPU at addresses that stay, filled anew for each step.
class Layer {
 public:
  Layer(const CompressorShape& shape, std::int64_t max_tokens) : shape_(shape), rig_(shape, kRequests, max_tokens) {}

  // Host and GPU begin from the same state; the first step gives the shapes.
  void begin(const std::vector<CompressorChunk>& chunks) {
    const CompressorStep step = padded(rig_.build(chunks), shape_);
    const CompressArgs host = rig_.args(step);
    args = host;
    for (const auto member : kInputs) {
      const ConstTensorView& view = host.*member;
      if (!view.present()) continue;
      inputs_.push_back({member, std::make_unique<GpuBuffer<std::uint8_t>>(extent_bytes(view))});
      void* data = inputs_.back().memory->data();
      if (view.rank() == 1) args.*member = ConstTensorView(data, view.dtype(), {view.size(0)}, kGpu);
      else args.*member = ConstTensorView(data, view.dtype(), {view.size(0), view.size(1)}, {view.stride(0), 1}, kGpu);
    }
    state_ = std::make_unique<GpuBuffer<std::uint8_t>>(rig_.all_state_bytes());
    cache_ = std::make_unique<GpuBuffer<std::uint8_t>>(rig_.cache_bytes());
    args.state =
        TensorView(state_->data(), host.state.dtype(), {host.state.size(0), host.state.size(1), host.state.size(2)},
                   {host.state.stride(0), host.state.stride(1), 1}, kGpu);
    args.cache.data = cache_->data();
    args.cache.device = kGpu;
    args.workspace = nullptr;
    args.workspace_bytes = 0;
    load(chunks);
  }

  // The GPU's buffers get a step.
  void load(const std::vector<CompressorChunk>& chunks) {
    const CompressorStep step = padded(rig_.build(chunks), shape_);
    const CompressArgs host = rig_.args(step);
    for (const Input& input : inputs_) {
      TAMIS_CUDA_CHECK(cudaMemcpy(input.memory->data(), (host.*input.member).data(), extent_bytes(host.*input.member),
                                  cudaMemcpyHostToDevice));
    }
    std::vector<std::int64_t> starts, counts;
    for (const CompressorChunk& chunk : chunks) {
      starts.push_back(chunk.start);
      counts.push_back(chunk.count);
    }
    args.plan = compress_plan(starts, counts, shape_.ratio);
  }
  void run_on_cpu(const std::vector<CompressorChunk>& chunks) {
    const CompressorStep step = rig_.build(chunks);
    compress(rig_.args(step));
  }

  void restore() {
    state_->put(rig_.all_state_bytes());
    cache_->put(rig_.cache_bytes());
  }
  bool agrees() { return state_->fetch() == rig_.all_state_bytes() && cache_->fetch() == rig_.cache_bytes(); }

  CompressArgs args;

 private:
  struct Input {
    ConstTensorView CompressArgs::*member;
    std::unique_ptr<GpuBuffer<std::uint8_t>> memory;
  };
  CompressorShape shape_;
  CompressorRig rig_;
  std::vector<Input> inputs_;
  std::unique_ptr<GpuBuffer<std::uint8_t>> state_, cache_;
};

using Step = std::vector<CompressorChunk>;

// What the requests hold before the first step.
const Step kHistory = {{0, 0, 0, 0}, {1, 0, 96, 1}, {2, 0, 120, 2}, {3, 0, 250, 3}};

// Decode of requests at different phases, drafts that are rejected, a short prefill, idle requests, boundaries of
// either ratio and of none.
std::vector<Step> steps() {
  std::vector<Step> list;
  std::int64_t next[kRequests] = {0, 96, 120, 250};
  Random random(7);
  for (int i = 0; i < 40; ++i) {
    Step step;
    for (std::int64_t r = 0; r < kRequests; ++r) {
      const std::int64_t count = random.between(0, r == 0 ? 9 : 5);
      step.push_back({r, next[r], count, 10 * i + r});
      next[r] += count == 0 ? 0 : random.between(1, count);  // the rest of them is rejected
    }
    list.push_back(step);
  }
  return list;
}

class CompressorGraphModes : public testing::TestWithParam<bool> {};

TEST_P(CompressorGraphModes, SameBytesWhateverTheGraphWasRecordedOf) {
  const bool with_list = GetParam();
  const Step dummies[] = {{{0, 0, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}},            // nothing but padding
                          {{0, 64, 1, 0}, {1, 64, 1, 0}, {2, 64, 1, 0}, {3, 64, 1, 0}},        // nothing completes
                          {{0, 127, 1, 0}, {1, 127, 1, 0}, {2, 255, 1, 0}, {3, 120, 16, 0}}};  // everything does
  for (const core::GraphMode mode : core::kGraphModes) {
    for (const Step& dummy : dummies) {
      SCOPED_TRACE(testing::Message() << core::graph_mode_name(mode) << ", dummy " << &dummy - dummies);
      Layer c4(small_shape(compressor_shape("c4_fp32")), 600), c128(small_shape(compressor_shape("c128_paged")), 600),
          ring(small_shape(compressor_shape("c128_ring_bf16")), 600);
      Layer* const layers[] = {&c4, &c128, &ring};
      for (Layer* layer : layers) layer->begin(dummy);

      const std::int64_t capacity4 = compress_list_capacity(kTokens, kRequests, 4),
                         capacity128 = compress_list_capacity(kTokens, kRequests, 128);
      const GpuBuffer<std::int32_t> list4(static_cast<std::size_t>(capacity4)),
          list128(static_cast<std::size_t>(capacity128));
      const CompressList lists[] = {{4, {list4.data(), DType::kInt32, {capacity4}, kGpu}},
                                    {128, {list128.data(), DType::kInt32, {capacity128}, kGpu}}};
      core::GraphRunner runner(mode);
      if (with_list) {
        for (Layer* layer : layers) layer->args.listed_tokens = lists[layer == &c4 ? 0 : 1].tokens;
        runner.add([&](cudaStream_t stream) {
          build_compress_step({c4.args.positions, c4.args.token_to_request, c4.args.query_start_loc, lists, {stream}});
        });
      }
      CompressCounts counts;
      for (Layer* layer : layers) {
        layer->args.counts = &counts;
        runner.add(
            [layer](cudaStream_t stream) {
              layer->args.stream.handle = stream;
              compress(layer->args);
            },
            layer == &c128);
      }
      cudaStream_t stream = nullptr;
      TAMIS_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      runner.capture(stream);
      for (Layer* layer : layers) {
        layer->run_on_cpu(kHistory);
        layer->restore();
      }
      counts = {};
      for (const Step& step : steps()) {
        for (Layer* layer : layers) layer->load(step);
        runner.run(stream);
        TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream));
        for (Layer* layer : layers) {
          layer->run_on_cpu(step);
          ASSERT_TRUE(layer->agrees());
        }
      }
      // Skips happen where the host decides at every step, and only there.
      const std::int64_t on_host = counts.pooled + counts.skipped,
                         num_steps = static_cast<std::int64_t>(steps().size());
      EXPECT_EQ(on_host, mode == core::GraphMode::kNone   ? 3 * num_steps
                         : mode == core::GraphMode::kFull ? 0
                                                          : num_steps);
      EXPECT_EQ(counts.skipped > 0, mode != core::GraphMode::kFull);
      EXPECT_LT(counts.skipped, on_host + (on_host == 0 ? 1 : 0));
      TAMIS_CUDA_CHECK(cudaStreamDestroy(stream));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CompressorGraphModes, testing::Bool(),
                         [](const auto& test) { return test.param ? "with_list" : "without_list"; });

TEST(CompressorCapture, IsAskedOfTheDriver) {
  cudaStream_t stream = nullptr;
  TAMIS_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  EXPECT_FALSE(stream_is_capturing(kGpu, {stream}));
  TAMIS_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_TRUE(stream_is_capturing(kGpu, {stream}));
  cudaGraph_t graph = nullptr;
  TAMIS_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  EXPECT_FALSE(stream_is_capturing(kGpu, {stream}));
  TAMIS_CUDA_CHECK(cudaGraphDestroy(graph));
  TAMIS_CUDA_CHECK(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace tamis::test
