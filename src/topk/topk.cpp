#include "tamis/topk.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/check.hpp"
#include "core/tensor_check.hpp"
#include "topk/cpu/topk_cpu.hpp"
#include "topk/cuda/topk_cuda.hpp"
#include "topk/params.hpp"
#include "topk/rules.hpp"

namespace tamis {
namespace {

using core::check_view;
using core::kAnyExtent;

#ifdef TAMIS_HAS_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

// Rows of a matrix must not overlap; a single row may carry any stride.
template <typename View>
std::int64_t checked_row_stride(const View& view, const char* name) {
  core::check_row_stride(view, "topk", name);
  return view.size(0) <= 1 ? view.size(1) : view.stride(0);
}

const void* checked_row_array(const ConstTensorView& view, const char* name, std::int64_t rows, Device device) {
  if (!view.present()) return nullptr;
  check_view(view, {"topk", name, {DType::kInt32}, {rows}}, device);
  return view.data();
}

// Where the call runs: where its scores lie. A build without kernels knows the CPU only, which the checks then say.
Device device_of(const TopkArgs& a) { return kHasCuda ? a.scores.device() : Device{}; }

// Calls f(view, name) for every view that is present.
template <typename F>
void each_view(const TopkArgs& a, F f) {
  const auto call = [&](const auto& view, const char* name) {
    if (view.present()) f(view, name);
  };
  call(a.scores, "scores");
  call(a.row_starts, "row_starts");
  call(a.row_ends, "row_ends");
  call(a.indices, "indices");
  call(a.values, "values");
  call(a.certificate, "certificate");
  call(a.page_table, "page_table");
  call(a.row_to_table, "row_to_table");
  call(a.page_starts, "page_starts");
  call(a.ragged_offsets, "ragged_offsets");
}

// Where there are two kinds of devices, a call keeps to one.
void check_one_device(const TopkArgs& a, Device device) {
  each_view(a, [&](const auto& view, const char* name) {
    TAMIS_CHECK(view.device() == device, Status::kInvalidArgument, "topk: ", name, " is on ",
                core::describe(view.device()), ", must be on ", core::describe(device), " like scores");
  });
}

// What only CUDA asks for: grids hold 2^31 - 1 blocks, and loads and stores take whole elements.
void check_for_cuda(const TopkArgs& a) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 29;
  TAMIS_CHECK(a.scores.size(0) <= kMostRows, Status::kInvalidArgument, "topk: scores has ", a.scores.size(0),
              " rows, must have at most ", kMostRows, " on CUDA");
  TAMIS_CHECK(a.k <= std::numeric_limits<std::int32_t>::max(), Status::kInvalidArgument, "topk: k is ", a.k,
              ", must be at most 2147483647 on CUDA");
  each_view(a, [&](const auto& view, const char* name) {
    const auto bytes = static_cast<std::uintptr_t>(dtype_bytes(view.dtype()));
    TAMIS_CHECK(view.numel() == 0 || reinterpret_cast<std::uintptr_t>(view.data()) % bytes == 0,
                Status::kInvalidArgument, "topk: ", name, " is at ", view.data(), ", must be at a multiple of ", bytes,
                " on CUDA (", dtype_name(view.dtype()), ")");
  });
}

// Checks everything but the workspace.
TopkParams checked_params(const TopkArgs& a) {
  TopkParams p;
  const Device device = device_of(a);
  if (kHasCuda) check_one_device(a, device);
  check_view(a.scores,
             {"topk", "scores", {DType::kFloat32, DType::kBFloat16, DType::kFloat16}, {kAnyExtent, kAnyExtent}},
             device);
  p.scores = a.scores.data();
  p.dtype = a.scores.dtype();
  p.rows = a.scores.size(0);
  p.width = a.scores.size(1);
  p.row_stride = checked_row_stride(a.scores, "scores");
  TAMIS_CHECK(p.width <= std::numeric_limits<std::int32_t>::max(), Status::kInvalidArgument, "topk: scores has ",
              p.width, " columns, must have at most 2147483647: row windows are int32");
  p.row_starts = checked_row_array(a.row_starts, "row_starts", p.rows, device);
  p.row_ends = checked_row_array(a.row_ends, "row_ends", p.rows, device);

  p.k = a.k;
  TAMIS_CHECK(p.k >= 0, Status::kInvalidArgument, "topk: k is ", p.k, ", must be at least 0");
  check_view(a.indices, {"topk", "indices", {DType::kInt32, DType::kInt64}, {p.rows, p.k}}, device);
  p.indices = a.indices.data();
  p.index_dtype = a.indices.dtype();
  p.indices_stride = checked_row_stride(a.indices, "indices");
  if (a.values.present()) {
    check_view(a.values, {"topk", "values", {p.dtype}, {p.rows, p.k}}, device);
    p.values = a.values.data();
    p.values_stride = checked_row_stride(a.values, "values");
  }
  if (a.certificate.present()) {
    check_view(a.certificate, {"topk", "certificate", {DType::kInt32}, {p.rows, 4}}, device);
    p.certificate = a.certificate.data();
    p.certificate_stride = checked_row_stride(a.certificate, "certificate");
  }

  p.order = a.order;
  TAMIS_CHECK(a.order <= TopkOrder::kByValue, Status::kInvalidArgument, "topk: order is ", static_cast<int>(a.order),
              ", must be kPosition, kUnsorted or kByValue");
  p.mapping = a.mapping;
  switch (a.mapping) {
    case TopkMapping::kNone: break;
    case TopkMapping::kPageTable:
      check_view(a.page_table, {"topk", "page_table", {DType::kInt32}, {kAnyExtent, kAnyExtent}}, device);
      TAMIS_CHECK(a.page_size >= 1, Status::kInvalidArgument, "topk: page_size is ", a.page_size,
                  ", must be at least 1 for the page-table mapping");
      p.page_table = a.page_table.data();
      p.tables = a.page_table.size(0);
      p.max_pages = a.page_table.size(1);
      p.page_table_stride = checked_row_stride(a.page_table, "page_table");
      p.page_size = a.page_size;
      p.row_to_table = checked_row_array(a.row_to_table, "row_to_table", p.rows, device);
      p.page_starts = checked_row_array(a.page_starts, "page_starts", p.rows, device);
      break;
    case TopkMapping::kRagged:
      check_view(a.ragged_offsets, {"topk", "ragged_offsets", {DType::kInt32, DType::kInt64}, {p.rows}}, device);
      p.ragged_offsets = a.ragged_offsets.data();
      p.ragged_dtype = a.ragged_offsets.dtype();
      break;
    default:
      core::fail(Status::kInvalidArgument, "topk: mapping is ", static_cast<int>(a.mapping),
                 ", must be kNone, kPageTable or kRagged");
  }
  TAMIS_CHECK(a.num_threads >= 0, Status::kInvalidArgument, "topk: num_threads is ", a.num_threads,
              ", must be at least 0");
  p.num_threads = a.num_threads;
  if (device.kind == Device::Kind::kCuda) check_for_cuda(a);
  return p;
}

// The rule of an unforced call, or the forced one if it can serve.
const TopkRule& chosen_rule(const TopkParams& p, TopkAlgorithm forced) {
  if (forced == TopkAlgorithm::kAuto) return choose_topk_rule(p.width, p.k);
  for (const TopkRule& rule : topk_rules()) {
    if (rule.algorithm != forced) continue;
    if (!rule.fits(p.width, p.k)) {
      std::string unmet;
      if (rule.whole_rows_only && p.width > p.k) unmet += core::concat("width ", p.width, " must be at most k = ", p.k);
      if (p.k > rule.max_k)
        unmet += core::concat(unmet.empty() ? "" : "; ", "k = ", p.k, " must be at most ", rule.max_k);
      core::fail(Status::kUnsupported, "topk: algorithm ", rule.name, " cannot serve this call: ", unmet);
    }
    return rule;
  }
  core::fail(Status::kInvalidArgument, "topk: algorithm is ",
             forced <= TopkAlgorithm::kCub ? topk_algorithm_name(forced) : std::to_string(static_cast<int>(forced)),
             ", on the CPU it must be auto, identity, simd_filter or select");
}

// k = 0 has no indices to write, but a certificate says so.
TopkAlgorithm algorithm_of(const TopkParams& p, TopkAlgorithm chosen) {
  return p.k == 0 ? TopkAlgorithm::kIdentity : chosen;
}

topk_cpu::TopkPlan checked_cpu_plan(const TopkParams& p, TopkAlgorithm forced) {
  const TopkRule& rule = chosen_rule(p, forced);
  if (p.rows == 0) return {};
  return topk_cpu::make_plan(p, algorithm_of(p, rule.algorithm));
}

void check_workspace(const TopkArgs& args, std::size_t needed) {
  TAMIS_CHECK(args.workspace_bytes >= needed, Status::kInvalidArgument, "topk: workspace has ", args.workspace_bytes,
              " bytes, must have at least ", needed, " (topk_workspace_bytes)");
  if (needed == 0) return;
  TAMIS_CHECK(args.workspace != nullptr, Status::kInvalidArgument, "topk: workspace is null, must have at least ",
              needed, " bytes");
  TAMIS_CHECK(reinterpret_cast<std::uintptr_t>(args.workspace) % 64 == 0, Status::kInvalidArgument,
              "topk: workspace is at ", args.workspace, ", must be 64-byte aligned");
}

#ifdef TAMIS_HAS_CUDA
TopkCase case_of(const TopkParams& p) { return {p.rows, p.width, p.k, p.order}; }

topk_cuda::TopkPlan checked_cuda_plan(const TopkParams& p, TopkAlgorithm forced, Device device) {
  const TopkGpu gpu = topk_cuda::topk_gpu(device.index);
  const TopkCudaRule& rule = topk_cuda_rule(case_of(p), forced, gpu);
  if (p.rows == 0) return {};
  return topk_cuda::make_plan(p, algorithm_of(p, rule.algorithm), gpu, device.index);
}
#endif

}  // namespace

std::string topk_unmet(const TopkCudaRule& rule, const TopkCase& c, const TopkGpu& gpu) {
  std::string unmet;
  const auto add = [&](const auto&... parts) { unmet += core::concat(unmet.empty() ? "" : "; ", parts...); };
  if (rule.whole_rows_only && c.width > c.k) add("width ", c.width, " must be at most k = ", c.k);
  if (c.width > rule.max_width) add("width ", c.width, " must be at most ", rule.max_width);
  const bool by_value = c.order == TopkOrder::kByValue;
  const std::int64_t limit = rule.k_limit(c, gpu);
  if (limit == 0 && rule.max_k == kTopkFilterK) {
    add("a block of the GPU may have ", gpu.max_shared_bytes, " bytes of shared memory, too few for the candidates");
  } else if (limit == 0) {
    add("order must ", by_value ? "not " : "", "be by value");
  } else if (std::min(c.k, c.width) > limit) {
    add("k = ", c.k, " must be at most ", limit, by_value ? " by value" : "");
  }
  return unmet;
}

const TopkCudaRule& topk_cuda_rule(const TopkCase& c, TopkAlgorithm forced, const TopkGpu& gpu) {
  if (forced == TopkAlgorithm::kAuto) return choose_topk_cuda_rule(c, gpu);
  std::string names;
  for (const TopkCudaRule& rule : topk_cuda_rules()) {
    if (rule.algorithm == forced) {
      const std::string unmet = topk_unmet(rule, c, gpu);
      TAMIS_CHECK(unmet.empty(), Status::kUnsupported, "topk: algorithm ", rule.name,
                  " cannot serve this call: ", unmet);
      return rule;
    }
    if (names.find(rule.name) == std::string::npos) names += core::concat(", ", rule.name);
  }
  core::fail(Status::kInvalidArgument, "topk: algorithm is ", topk_algorithm_name(forced), ", on CUDA it must be auto",
             names);
}

std::size_t topk_workspace_bytes(const TopkArgs& args) {
  const TopkParams p = checked_params(args);
#ifdef TAMIS_HAS_CUDA
  if (const Device device = device_of(args); device.kind == Device::Kind::kCuda) {
    return checked_cuda_plan(p, args.algorithm, device).workspace_bytes;
  }
#endif
  return checked_cpu_plan(p, args.algorithm).workspace_bytes;
}

void topk(const TopkArgs& args) {
  const TopkParams p = checked_params(args);
#ifdef TAMIS_HAS_CUDA
  if (const Device device = device_of(args); device.kind == Device::Kind::kCuda) {
    const topk_cuda::TopkPlan plan = checked_cuda_plan(p, args.algorithm, device);
    check_workspace(args, plan.workspace_bytes);
    return topk_cuda::run_topk(p, plan, args.workspace, device.index, args.stream.handle);
  }
#endif
  const topk_cpu::TopkPlan plan = checked_cpu_plan(p, args.algorithm);
  check_workspace(args, plan.workspace_bytes);
  topk_cpu::run_topk(p, plan, args.workspace);
}

void topk_row_ends(std::span<const std::int32_t> seq_lens, std::int64_t next_n, std::int64_t compress_ratio,
                   std::span<std::int32_t> row_ends) {
  TAMIS_CHECK(next_n >= 1, Status::kInvalidArgument, "topk_row_ends: next_n is ", next_n, ", must be at least 1");
  TAMIS_CHECK(compress_ratio >= 0, Status::kInvalidArgument, "topk_row_ends: compress_ratio is ", compress_ratio,
              ", must be at least 0");
  const auto requests = static_cast<std::int64_t>(seq_lens.size());
  // Compared by division: requests * next_n may not fit 64 bits.
  const auto rows = static_cast<std::int64_t>(row_ends.size());
  TAMIS_CHECK(requests == 0 ? rows == 0 : rows % requests == 0 && rows / requests == next_n, Status::kInvalidArgument,
              "topk_row_ends: row_ends has ", rows, " elements, must have ", requests, " requests * next_n = ", next_n);
  const std::int64_t ratio = std::max<std::int64_t>(1, compress_ratio);
  for (std::int64_t r = 0; r < requests; ++r) {
    for (std::int64_t i = 0; i < next_n; ++i) {
      const std::int64_t raw = static_cast<std::int64_t>(seq_lens[static_cast<std::size_t>(r)]) - next_n + 1 + i;
      row_ends[static_cast<std::size_t>(r * next_n + i)] =
          static_cast<std::int32_t>(std::max<std::int64_t>(0, raw) / ratio);
    }
  }
}

TopkChoice topk_choose(const TopkArgs& args) {
  const TopkParams p = checked_params(args);
#ifdef TAMIS_HAS_CUDA
  if (const Device device = device_of(args); device.kind == Device::Kind::kCuda) {
    const TopkCudaRule& rule = topk_cuda_rule(case_of(p), args.algorithm, topk_cuda::topk_gpu(device.index));
    return {rule.algorithm, rule.why};
  }
#endif
  const TopkRule& rule = chosen_rule(p, args.algorithm);
  return {rule.algorithm, rule.why};
}

const char* topk_algorithm_name(TopkAlgorithm algorithm) noexcept {
  if (algorithm == TopkAlgorithm::kAuto) return "auto";
  for (const TopkRule& rule : kTopkCpuRules) {
    if (rule.algorithm == algorithm) return rule.name;
  }
  for (const TopkCudaRule& rule : kTopkCudaRules) {
    if (rule.algorithm == algorithm) return rule.name;
  }
  return "unknown algorithm";
}

}  // namespace tamis
