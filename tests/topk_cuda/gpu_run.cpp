#include "gpu_run.hpp"

#include <algorithm>
#include <map>

#include "topk/cuda/topk_cuda.hpp"

namespace tamis::test {
namespace {

using Bytes = GuardedBuffer<std::uint8_t>;

// As far from a 64-byte boundary as on the host, in whole elements: GPU addresses are multiples of an element.
std::size_t misalignment(const Bytes& buffer, DType dtype) {
  const auto bytes = static_cast<std::size_t>(dtype_bytes(dtype));
  return reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 / bytes * bytes;
}

template <typename View, typename Pointer>
View on_gpu(const View& view, Pointer data) {
  switch (view.rank()) {
    case 1: return View(data, view.dtype(), {view.size(0)}, {view.stride(0)}, kGpu);
    case 2: return View(data, view.dtype(), {view.size(0), view.size(1)}, {view.stride(0), view.stride(1)}, kGpu);
    default: return {};
  }
}

// A small input array of the call, copied over.
ConstTensorView copied(GpuArena& arena, const ConstTensorView& view) {
  if (!view.present() || view.numel() == 0)
    return view.present() ? on_gpu(view, static_cast<const void*>(nullptr)) : view;
  std::int64_t elements = 1;
  for (int d = 0; d < view.rank(); ++d) elements += (view.size(d) - 1) * view.stride(d);
  return on_gpu(view, static_cast<const void*>(arena.take_copy(
                          view.data(), static_cast<std::size_t>(elements * dtype_bytes(view.dtype())))));
}

std::map<std::string, long>& counts() {
  static std::map<std::string, long> runs;
  return runs;
}

}  // namespace

std::vector<TopkAlgorithm> gpu_algorithms(const TopkArgs& args) {
  const TopkGpu gpu = topk_cuda::topk_gpu(kGpu.index);
  const TopkCase shape{args.scores.size(0), args.scores.size(1), args.k, args.order};
  std::vector<TopkAlgorithm> out;
  for (const TopkCudaRule& rule : topk_cuda_rules()) {
    const bool known = std::find(out.begin(), out.end(), rule.algorithm) != out.end();
    if (!known && topk_unmet(rule, shape, gpu).empty()) out.push_back(rule.algorithm);
  }
  return out;
}

std::string gpu_run_counts() {
  std::string text;
  for (const auto& [name, runs] : counts()) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(runs);
  return text;
}

GpuTopkCall::GpuTopkCall(GpuArena& arena, const TopkCall& host) : args(host.args) {
  const auto input = [&](const Bytes& buffer, DType dtype) {
    return Buffer{arena.take_copy(buffer.data(), buffer.size(), misalignment(buffer, dtype)), buffer.size()};
  };
  const auto output = [&](const Bytes& buffer, const TensorView& view) {
    if (!view.present()) return Buffer{};
    return Buffer{arena.take(buffer.size(), 0xC7, misalignment(buffer, view.dtype())), buffer.size()};
  };
  scores_ = input(host.scores, args.scores.dtype());
  // A test may have moved the view inside the buffer.
  const auto* first = static_cast<const std::uint8_t*>(args.scores.data());
  args.scores = on_gpu(args.scores, static_cast<const void*>(scores_.data + (first - host.scores.data())));
  indices_ = output(host.indices, args.indices);
  args.indices = on_gpu(args.indices, static_cast<void*>(indices_.data));
  values_ = output(host.values, args.values);
  if (args.values.present()) args.values = on_gpu(args.values, static_cast<void*>(values_.data));
  certificate_ = output(host.certificate, args.certificate);
  if (args.certificate.present()) args.certificate = on_gpu(args.certificate, static_cast<void*>(certificate_.data));
  for (ConstTensorView* view : {&args.row_starts, &args.row_ends, &args.page_table, &args.row_to_table,
                                &args.page_starts, &args.ragged_offsets}) {
    *view = copied(arena, *view);
  }
}

void GpuTopkCall::poison(int byte) {
  for (const Buffer& buffer : {indices_, values_, certificate_}) {
    if (buffer.bytes > 0) TAMIS_CUDA_CHECK(cudaMemset(buffer.data, byte, buffer.bytes));
  }
}

void GpuTopkCall::take_workspace(GpuArena& arena) {
  args.workspace_bytes = topk_workspace_bytes(args);
  args.workspace = arena.take(args.workspace_bytes, 0xFF);
}

void GpuTopkCall::fetch_into(TopkCall& host) const {
  const auto fetch = [](const Buffer& from, Bytes& to) {
    if (from.bytes > 0) TAMIS_CUDA_CHECK(cudaMemcpy(to.data(), from.data, from.bytes, cudaMemcpyDeviceToHost));
  };
  fetch(indices_, host.indices);
  fetch(values_, host.values);
  fetch(certificate_, host.certificate);
}

std::vector<std::uint8_t> GpuTopkCall::outputs() const {
  std::vector<std::uint8_t> all(indices_.bytes + values_.bytes + certificate_.bytes);
  std::uint8_t* to = all.data();
  for (const Buffer& buffer : {indices_, values_, certificate_}) {
    if (buffer.bytes > 0) TAMIS_CUDA_CHECK(cudaMemcpy(to, buffer.data, buffer.bytes, cudaMemcpyDeviceToHost));
    to += buffer.bytes;
  }
  return all;
}

bool GpuTopkCall::scores_unchanged(const TopkCall& host) const {
  std::vector<std::uint8_t> now(scores_.bytes);
  if (!now.empty()) TAMIS_CUDA_CHECK(cudaMemcpy(now.data(), scores_.data, now.size(), cudaMemcpyDeviceToHost));
  return now == host.scores.copy();
}

void run_topk_on_gpu(TopkCall& call) {
  static GpuArena arena(std::size_t{1} << 30);
  std::vector<std::uint8_t> first;
  for (const TopkAlgorithm algorithm : gpu_algorithms(call.args)) {
    SCOPED_TRACE(topk_algorithm_name(algorithm));
    arena.reset();
    GpuTopkCall gpu(arena, call);
    gpu.args.algorithm = algorithm;
    // `grid` forced on very many rows: exact, but with gigabytes of workspace.
    if (topk_workspace_bytes(gpu.args) > std::size_t{512} << 20) continue;
    gpu.take_workspace(arena);
    topk(gpu.args);
    TAMIS_CUDA_CHECK(cudaDeviceSynchronize());
    ++counts()[topk_algorithm_name(algorithm)];
    EXPECT_TRUE(arena.guards_intact());
    EXPECT_TRUE(gpu.scores_unchanged(call)) << "scores were changed";
    if (first.empty()) {
      first = gpu.outputs();
      gpu.fetch_into(call);
    } else {
      EXPECT_TRUE(gpu.outputs() == first) << "differs from the first algorithm";
    }
    if (testing::Test::HasFailure()) {
      gpu.fetch_into(call);  // the comparison with the reference then shows where
      return;
    }
  }
}

}  // namespace tamis::test
