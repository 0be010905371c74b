#include "gemm/linear.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <string_view>
#include <vector>

#include "core/check.hpp"
#include "core/parallel.hpp"

namespace tamis::gemm {
namespace {

// Row counts a primitive exists for. Any number of rows is a sum of these; 64 rows reach the speed of larger counts.
constexpr std::array<std::int64_t, 4> kRowCounts = {64, 16, 4, 1};

// Output features a packed panel. Panels are what threads share when there are few rows.
constexpr std::int64_t kPanelFeatures = 1024;

// Multiply-adds below which a second thread costs more than it brings (waking a worker is about 5 us, a core does about
// 50 GFLOP/s on short products).
constexpr std::int64_t kMinWorkPerThread = 256 * 1024;

// At least a cache line is what oneDNN's kernels expect; a page is what it gives itself.
constexpr std::size_t kScratchAlignment = 4096;

dnnl::engine& cpu_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// oneDNN runs its own OpenMP threads; ours are TBB's. Keeps OpenMP to the calling thread and puts its setting back.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(before_); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int before_;
};

}  // namespace

struct Linear::Packed {
  struct Panel {
    std::int64_t first = 0;  // first output feature
    std::int64_t features = 0;
    dnnl::memory weight;
    std::array<dnnl::matmul, kRowCounts.size()> by_row_count;
    std::array<dnnl::memory::desc, kRowCounts.size()> x_desc;
    std::array<dnnl::memory::desc, kRowCounts.size()> y_desc;
    std::array<dnnl::memory::desc, kRowCounts.size()> scratch_desc;
  };
  std::vector<Panel> panels;
  bool any_row_count = true;  // false: only single rows are known to give the same bits
};

Linear::Linear(std::span<const float> weight, std::int64_t out_features, std::int64_t in_features,
               std::int64_t x_stride, std::int64_t y_stride)
    : out_features_(out_features),
      in_features_(in_features),
      x_stride_(x_stride == 0 ? in_features : x_stride),
      y_stride_(y_stride == 0 ? out_features : y_stride),
      packed_(std::make_unique<Packed>()) {
  TAMIS_CHECK(static_cast<std::int64_t>(weight.size()) == out_features * in_features, Status::kInvalidArgument,
              "linear: weight has ", weight.size(), " elements, must have ", out_features, " x ", in_features);
  using dnnl::memory;
  const OneOpenMpThread one_thread;
  dnnl::stream stream(cpu_engine());
  const auto f32 = memory::data_type::f32;
  for (std::int64_t first = 0; first < out_features; first += kPanelFeatures) {
    Packed::Panel& panel = packed_->panels.emplace_back();
    panel.first = first;
    panel.features = std::min(kPanelFeatures, out_features - first);
    const auto describe = [&](std::size_t i, const memory::desc& weight_desc) {
      const std::int64_t rows = kRowCounts[i];
      panel.x_desc[i] = memory::desc({rows, in_features}, f32, memory::dims{x_stride_, 1});
      panel.y_desc[i] = memory::desc({rows, panel.features}, f32, memory::dims{y_stride_, 1});
      // Scratch memory is ours: what oneDNN manages itself is shared by all threads that execute the primitive.
      dnnl::primitive_attr attributes;
      attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      return dnnl::matmul::primitive_desc(dnnl::matmul::desc(panel.x_desc[i], weight_desc, panel.y_desc[i]), attributes,
                                          cpu_engine());
    };
    // The largest row count chooses the packed form; the others have to take it as it is.
    const memory::desc any({in_features, panel.features}, f32, memory::format_tag::any);
    const memory::desc packed_desc = describe(0, any).weights_desc();
    memory plain(memory::desc({in_features, panel.features}, f32, memory::format_tag::ba), cpu_engine(),
                 const_cast<float*>(weight.data() + first * in_features));  // oneDNN has no const memory; only read
    panel.weight = memory(packed_desc, cpu_engine());
    dnnl::reorder(plain, panel.weight).execute(stream, plain, panel.weight);
    stream.wait();
    for (std::size_t i = 0; i < kRowCounts.size(); ++i) {
      const auto primitive_desc = describe(i, packed_desc);
      packed_->any_row_count &= std::string_view(primitive_desc.impl_info_str()).starts_with("brg");
      panel.scratch_desc[i] = primitive_desc.scratchpad_desc();
      panel.by_row_count[i] = dnnl::matmul(primitive_desc);
    }
  }
}

Linear::Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;
Linear::~Linear() = default;

void Linear::operator()(const float* x, std::int64_t rows, float* y, int num_threads) const {
  if (rows <= 0) return;
  // Runs of rows that one primitive takes, largest first.
  struct Run {
    std::int64_t row;
    std::size_t count_index;
  };
  std::vector<Run> runs;
  for (std::int64_t row = 0; row < rows;) {
    std::size_t i = packed_->any_row_count ? 0 : kRowCounts.size() - 1;
    while (kRowCounts[i] > rows - row) ++i;
    runs.push_back({row, i});
    row += kRowCounts[i];
  }
  const auto num_panels = static_cast<std::int64_t>(packed_->panels.size());
  const std::int64_t work = rows * out_features_ * in_features_;
  const int workers =
      static_cast<int>(std::clamp<std::int64_t>(work / kMinWorkPerThread, 1, core::num_workers(num_threads)));
  core::parallel_for(
      static_cast<std::int64_t>(runs.size()) * num_panels, 1, workers, [&](std::int64_t begin, std::int64_t end, int) {
        const OneOpenMpThread one_thread;
        thread_local dnnl::stream stream(cpu_engine());
        thread_local std::vector<std::byte> scratch;
        for (std::int64_t item = begin; item < end; ++item) {
          // Panel-major: a panel stays in cache while the runs of rows pass.
          const auto num_runs = static_cast<std::int64_t>(runs.size());
          const Packed::Panel& panel = packed_->panels[static_cast<std::size_t>(item / num_runs)];
          const Run& run = runs[static_cast<std::size_t>(item % num_runs)];
          const std::size_t i = run.count_index;
          dnnl::memory x_memory(panel.x_desc[i], cpu_engine(), const_cast<float*>(x + run.row * x_stride_));
          dnnl::memory y_memory(panel.y_desc[i], cpu_engine(), y + run.row * y_stride_ + panel.first);
          const std::size_t scratch_bytes = panel.scratch_desc[i].get_size() + kScratchAlignment;
          if (scratch.size() < scratch_bytes) scratch.resize(scratch_bytes);
          const auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
          dnnl::memory scratch_memory(
              panel.scratch_desc[i], cpu_engine(),
              scratch.data() + (kScratchAlignment - address % kScratchAlignment) % kScratchAlignment);
          panel.by_row_count[i].execute(stream, {{DNNL_ARG_SRC, x_memory},
                                                 {DNNL_ARG_WEIGHTS, panel.weight},
                                                 {DNNL_ARG_DST, y_memory},
                                                 {DNNL_ARG_SCRATCHPAD, scratch_memory}});
          stream.wait();
        }
      });
}

}  // namespace tamis::gemm
