// What only a GPU can get wrong: addresses between vectors, launch limits, streams, graphs, other kernels on the chip,
// huge inputs. The cases of tests/topk run on every CUDA algorithm beside these.

#include <gtest/gtest.h>

#include <climits>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/cuda/gpu.hpp"
#include "device_work.hpp"
#include "expect_error.hpp"
#include "gpu_run.hpp"
#include "random.hpp"
#include "topk_check.hpp"

namespace tamis::test {
namespace {

using Ints = std::vector<std::int32_t>;

ConstTensorView view_of(const Ints& ints) {
  return {ints.data(), DType::kInt32, {static_cast<std::int64_t>(ints.size())}};
}

// --- memory ---

template <typename T>
class GpuArray {
 public:
  explicit GpuArray(std::int64_t count) : count_(count) {
    void* memory = nullptr;
    TAMIS_CUDA_CHECK(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T)));
    data_ = static_cast<T*>(memory);
  }
  GpuArray(const GpuArray&) = delete;
  GpuArray& operator=(const GpuArray&) = delete;
  ~GpuArray() { static_cast<void>(cudaFree(data_)); }
  T* data() { return data_; }
  std::vector<T> fetch(std::int64_t from, std::int64_t count) const {
    std::vector<T> out(static_cast<std::size_t>(count));
    TAMIS_CUDA_CHECK(cudaMemcpy(out.data(), data_ + from, out.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
  void put(std::int64_t at, const std::vector<T>& from) {
    TAMIS_CUDA_CHECK(cudaMemcpy(data_ + at, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  void fill(int byte) { TAMIS_CUDA_CHECK(cudaMemset(data_, byte, static_cast<std::size_t>(count_) * sizeof(T))); }

 private:
  T* data_ = nullptr;
  std::int64_t count_;
};

class GpuStream {
 public:
  GpuStream() { TAMIS_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  ~GpuStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor): passed to CUDA calls
  void wait() const { TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A captured call, ready to be replayed.
class Graph {
 public:
  Graph(const GpuStream& stream, const TopkArgs& args) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    TopkArgs a = args;
    a.stream.handle = static_cast<cudaStream_t>(stream);
    TAMIS_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    topk(a);
    TAMIS_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    TAMIS_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
    TAMIS_CUDA_CHECK(cudaGraphDestroy(graph));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { static_cast<void>(cudaGraphExecDestroy(executable_)); }
  void replay() const { TAMIS_CUDA_CHECK(cudaGraphLaunch(executable_, stream_)); }

 private:
  const GpuStream& stream_;
  cudaGraphExec_t executable_ = nullptr;
};

// --- addresses ---

TEST(TopkCuda, ScoresAtAnyElementAndAnyStride) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (std::int64_t width : {257, 9001, 16387, 40013}) {
      for (std::size_t misaligned = 0; misaligned < 20; misaligned += static_cast<std::size_t>(dtype_bytes(dtype))) {
        for (std::int64_t stride : {width, width + 1, width + 5}) {
          SCOPED_TRACE(testing::Message()
                       << dtype_name(dtype) << " width " << width << " at " << misaligned << " stride " << stride);
          TopkCall c(2, width, 100, {.dtype = dtype, .row_stride = stride, .misaligned = misaligned});
          c.fill("normal");  // between rows there is NaN
          c.run();
          expect_as_reference(c);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Windows begin between vectors, too.
TEST(TopkCuda, WindowsAtEveryOffset) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TopkCall c(18, 30011, 300, {.dtype = dtype});
    c.fill("quantised");
    Ints starts, ends;
    for (std::int32_t r = 0; r < 18; ++r) {
      starts.push_back(r);
      ends.push_back(30011 - r % 5 - (r > 12 ? 29000 : 0));
    }
    c.args.row_starts = view_of(starts);
    c.args.row_ends = view_of(ends);
    c.run();
    expect_as_reference(c);
  }
}

TEST(TopkCuda, AnElementIsNotSplit) {
  TopkCall c(1, 100, 10);
  c.fill("normal");
  GpuArena arena(1 << 20);
  GpuTopkCall gpu(arena, c);
  const auto* bytes = static_cast<const std::uint8_t*>(gpu.args.scores.data());
  gpu.args.scores = ConstTensorView(bytes + 2, DType::kFloat32, {1, 99}, kGpu);
  const auto [status, text] = error_of([&] { topk(gpu.args); });
  EXPECT_EQ(status, Status::kInvalidArgument);
  EXPECT_TRUE(text.starts_with("topk: scores is at 0x") &&
              text.ends_with(", must be at a multiple of 4 on CUDA (fp32)"))
      << text;
}

// --- kinds of rows that defeat samples, buffers and histograms ---

TEST(TopkCudaHostile, ManyLengthsInOneFp16Bin) {
  for (std::int64_t rows : {1, 33}) {
    for (std::int64_t width : {16383, 16384, 16385, 16512, 65536}) {
      for (std::int64_t k : {512, 1024, 2048}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << width << ", k " << k);
        TopkCall c(rows, width, k);
        c.fill("one_fp16_bin");
        c.run();
        for (std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) expect_row_as_reference(c, r);
        if (HasFailure()) return;
      }
    }
  }
}

// All winners in a stretch that the sample hits everywhere or nowhere, and rows built against sampled bars.
TEST(TopkCudaHostile, WinnersCrowdInPlace) {
  for (std::int64_t k : {64, 512, 2048, 4096}) {
    for (std::int64_t width : {20011, 70001, 262144}) {
      for (std::int64_t stretch : {k / 2 + 1, k, 3 * k}) {
        SCOPED_TRACE(testing::Message() << "width " << width << " k " << k << " stretch " << stretch);
        TopkCall c(2, width, k);
        for (std::int64_t r = 0; r < 2; ++r) {
          std::vector<float> row = make_topk_row(topk_distribution("normal"), width, r);
          const std::int64_t at = r == 0 ? 7 : width / 2;
          for (std::int64_t i = at; i < std::min(width, at + stretch); ++i) {
            row[static_cast<std::size_t>(i)] = 10.0F + row[static_cast<std::size_t>(i)] * 1e-3F;
          }
          c.set_row(r, row);
        }
        c.run();
        expect_as_reference(c);
        if (HasFailure()) return;
      }
    }
  }
}

// --- launch limits, huge inputs ---

TEST(TopkCuda, MoreRowsThanAnyGridDimensionButX) {
  constexpr std::int64_t kRows = 131073, kWidth = 40, kK = 8;
  for (const std::int64_t width : {kWidth, std::int64_t{6}}) {  // registers, identity
    TopkCall c(kRows, width, kK);
    Random random;
    std::vector<float> row(static_cast<std::size_t>(width));
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (float& x : row) x = random.uniform(-1.0F, 1.0F);
      c.set_row(r, row);
    }
    c.args.values = {};
    c.args.certificate = {};
    c.run();
    for (std::int64_t r = 0; r < kRows; r += r < kRows - 70 && r > 70 ? 1009 : 1) expect_row_as_reference(c, r);
    for (std::int64_t r : {65534, 65535, 65536, 65537, 131071, 131072}) expect_row_as_reference(c, r);
  }
}

// Scores made on the GPU; some rows against the reference, all rows against `select`, which neither samples nor
// filters.
void check_huge(std::int64_t rows, std::int64_t width, std::int64_t k, std::int64_t stride) {
  GpuArray<float> scores(rows * stride);
  launch_fill_normal(scores.data(), rows * stride, 17, nullptr);
  GpuArray<std::int32_t> got(rows * k), want(rows * k);
  TopkArgs args;
  args.scores = ConstTensorView(scores.data(), DType::kFloat32, {rows, width}, {stride, 1}, kGpu);
  args.k = k;
  const auto run = [&](TopkAlgorithm algorithm, GpuArray<std::int32_t>& out) {
    out.fill(0xC7);
    args.algorithm = algorithm;
    args.indices = TensorView(out.data(), DType::kInt32, {rows, k}, kGpu);
    GpuArray<std::uint8_t> workspace(static_cast<std::int64_t>(topk_workspace_bytes(args)) + 1);
    args.workspace = workspace.data();
    args.workspace_bytes = topk_workspace_bytes(args);
    topk(args);
    TAMIS_CUDA_CHECK(cudaDeviceSynchronize());
  };
  run(TopkAlgorithm::kSelect, want);
  for (std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) {
    TopkCall c(1, width, k);
    c.set_row(0, scores.fetch(r * stride, width));
    const std::vector<std::int64_t> positions = reference::topk_row(c.args, 0).positions;
    const std::vector<std::int32_t> row = want.fetch(r * k, k);
    ASSERT_TRUE(std::equal(row.begin(), row.end(), positions.begin(), positions.end())) << "select, row " << r;
  }
  GpuArray<unsigned long long> differences(1);
  for (TopkAlgorithm algorithm : gpu_algorithms(args)) {
    if (algorithm == TopkAlgorithm::kSelect) continue;
    differences.fill(0);
    run(algorithm, got);
    launch_count_differences(got.data(), want.data(), rows * k, differences.data(), nullptr);
    EXPECT_EQ(differences.fetch(0, 1)[0], 0U) << topk_algorithm_name(algorithm);
  }
}

TEST(TopkCudaHuge, OneRowOfAMillion) { check_huge(1, 1048576, 2048, 1048576); }
TEST(TopkCudaHuge, OneRowOfFiveMillion) { check_huge(1, 5000011, 512, 5000011); }
TEST(TopkCudaHuge, RowsBeyondTwoGigabytes) { check_huge(513, 1048576, 2048, 1048576); }
TEST(TopkCudaHuge, LargestK) { check_huge(3, 300007, 4096, 300007); }
TEST(TopkCudaHuge, RowsFourGigabytesApart) { check_huge(3, 70001, 512, (std::int64_t{1} << 30) + 1); }
TEST(TopkCudaHuge, OddWidthManyRows) { check_huge(4096, 26221, 2048, 26221); }

// --- repetition, streams, graphs, a busy chip ---

TEST(TopkCudaRepeats, SameBitsAThousandTimesFromAnyRest) {
  struct Shape {
    std::int64_t rows, width, k;
  };
  for (const auto& [rows, width, k] : {Shape{3, 8192, 2048}, {5, 70001, 512}, {140, 20011, 300}}) {
    TopkCall c(rows, width, k);
    c.fill("quantised");
    for (TopkAlgorithm algorithm : gpu_algorithms(c.args)) {
      SCOPED_TRACE(topk_algorithm_name(algorithm));
      GpuArena arena(256 << 20);
      GpuTopkCall gpu(arena, c);
      gpu.args.algorithm = algorithm;
      gpu.take_workspace(arena);
      std::vector<std::uint8_t> first;
      for (int repeat = 0; repeat < 1000; ++repeat) {
        // Another rest each time: what was written last, and what a launch finds in its workspace.
        gpu.poison(repeat % 251);
        if (gpu.args.workspace_bytes > 0) {
          TAMIS_CUDA_CHECK(
              cudaMemset(gpu.args.workspace, repeat % 256, std::min<std::size_t>(gpu.args.workspace_bytes, 1 << 20)));
        }
        topk(gpu.args);
        if (repeat == 0) {
          first = gpu.outputs();
          gpu.fetch_into(c);
          expect_row_as_reference(c, 0);
        } else if (repeat % 10 == 0 || repeat > 990) {
          ASSERT_TRUE(gpu.outputs() == first) << "repeat " << repeat;
        }
      }
      EXPECT_TRUE(arena.guards_intact());
    }
  }
}

TEST(TopkCudaStreams, TwoAtOnceWithTheirOwnWorkspaces) {
  TopkCall a(64, 20011, 512), b(2, 70001, 300, {.dtype = DType::kBFloat16});
  a.fill("normal");
  b.fill("quantised");
  for (TopkAlgorithm algorithm : gpu_algorithms(b.args)) {
    SCOPED_TRACE(topk_algorithm_name(algorithm));
    GpuArena arena(512 << 20);
    GpuTopkCall ga(arena, a), gb(arena, b);
    GpuStream sa, sb;
    for (auto* call : {&ga, &gb}) {
      call->args.algorithm = algorithm;
      call->take_workspace(arena);
    }
    ga.args.stream.handle = static_cast<cudaStream_t>(sa);
    gb.args.stream.handle = static_cast<cudaStream_t>(sb);
    TAMIS_CUDA_CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 1000; ++i) {
      topk(ga.args);
      topk(gb.args);
    }
    sa.wait();
    sb.wait();
    ga.fetch_into(a);
    gb.fetch_into(b);
    expect_row_as_reference(a, 63);
    expect_as_reference(b);
    EXPECT_TRUE(arena.guards_intact());
  }
}

// Captured once; replayed with other lengths and scores in the same buffers.
void replay_with_changing_lengths(DType dtype, TopkOrder order, std::int64_t k) {
  Ints ends(8, 30011);
  TopkCall c(8, 30011, k, {.dtype = dtype});
  c.fill("normal");
  c.args.row_ends = view_of(ends);
  c.args.order = order;
  for (TopkAlgorithm algorithm : gpu_algorithms(c.args)) {
    SCOPED_TRACE(topk_algorithm_name(algorithm));
    GpuArena arena(256 << 20);
    GpuTopkCall gpu(arena, c);
    gpu.args.algorithm = algorithm;
    gpu.take_workspace(arena);
    GpuStream stream;
    const Graph graph(stream, gpu.args);
    const std::vector<Ints> replays = {{30011, 30011, 30011, 30011, 30011, 30011, 30011, 30011},
                                       {9000, 9000, 9000, 9000, 9000, 9000, -1, 0},
                                       {64, 700, 701, 8192, 8193, 1, 2, 3},
                                       {INT_MIN, INT_MAX, -4, -3, -2, -1, 0, 1},
                                       {0, 0, 0, 0, 0, 0, 0, 0},
                                       {30011, 1, 30010, 2, 16384, 16385, 20000, 699}};
    for (std::size_t i = 0; i < 2 * replays.size(); ++i) {
      ends = replays[i % replays.size()];
      TAMIS_CUDA_CHECK(cudaMemcpy(const_cast<void*>(gpu.args.row_ends.data()), ends.data(), ends.size() * 4,
                                  cudaMemcpyHostToDevice));
      gpu.poison(static_cast<int>(i) + 1);
      TAMIS_CUDA_CHECK(cudaDeviceSynchronize());
      graph.replay();
      stream.wait();
      gpu.fetch_into(c);
      expect_as_reference(c);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_TRUE(arena.guards_intact());
  }
}

TEST(TopkCudaGraphs, ReplayWithChangingLengths) {
  replay_with_changing_lengths(DType::kFloat32, TopkOrder::kPosition, 700);
}
TEST(TopkCudaGraphs, ReplayOfSixteenBitScores) {
  replay_with_changing_lengths(DType::kBFloat16, TopkOrder::kPosition, 3000);
}
TEST(TopkCudaGraphs, ReplayByValue) {
  replay_with_changing_lengths(DType::kFloat32, TopkOrder::kByValue, 700);
  replay_with_changing_lengths(DType::kFloat16, TopkOrder::kByValue, 5000);
}

TEST(TopkCudaGraphs, TwoReplayedAtOnce) {
  TopkCall c(4, 70001, 512), d(4, 70001, 512);
  c.fill("normal");
  d.fill("normal");
  for (std::int64_t r = 0; r < 4; ++r) d.set_row(r, make_topk_row(topk_distribution("normal"), 70001, 100 + r));
  for (TopkAlgorithm algorithm : gpu_algorithms(c.args)) {
    GpuArena arena(512 << 20);
    GpuTopkCall a(arena, c), b(arena, d);
    for (auto* call : {&a, &b}) {
      call->args.algorithm = algorithm;
      call->take_workspace(arena);
    }
    TAMIS_CUDA_CHECK(cudaDeviceSynchronize());
    GpuStream sa, sb;
    const Graph ga(sa, a.args), gb(sb, b.args);
    for (int i = 0; i < 200; ++i) {
      ga.replay();
      gb.replay();
    }
    sa.wait();
    sb.wait();
    SCOPED_TRACE(topk_algorithm_name(algorithm));
    EXPECT_FALSE(a.outputs() == b.outputs());
    a.fetch_into(c);
    expect_as_reference(c);
    b.fetch_into(d);
    expect_as_reference(d);
  }
}

// Half of the multiprocessors are held by another kernel; whatever the shape, the call ends.
TEST(TopkCudaBusy, EndsWhileOthersHoldHalfTheChip) {
  const int num_sms = core::gpu(0).num_sms;
  int* stop = nullptr;
  TAMIS_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&stop), sizeof(int), cudaHostAllocMapped));
  GpuStream hogging, working;
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{num_sms} + 1, std::int64_t{4} * num_sms + 1}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::int64_t width = 100000, k = rows == 1 ? 2048 : 512;
      GpuArray<std::uint8_t> scores(rows * width * dtype_bytes(dtype));
      launch_fill_normal(reinterpret_cast<float*>(scores.data()), rows * width * dtype_bytes(dtype) / 4, 3, nullptr);
      GpuArray<std::int32_t> free_chip(rows * k), busy_chip(rows * k);
      TopkArgs args;
      args.scores = ConstTensorView(scores.data(), dtype, {rows, width}, kGpu);
      args.k = k;
      args.indices = TensorView(free_chip.data(), DType::kInt32, {rows, k}, kGpu);
      for (TopkAlgorithm algorithm : gpu_algorithms(args)) {
        SCOPED_TRACE(testing::Message() << topk_algorithm_name(algorithm) << " rows " << rows);
        args.algorithm = algorithm;
        GpuArray<std::uint8_t> workspace(static_cast<std::int64_t>(topk_workspace_bytes(args)) + 1);
        args.workspace = workspace.data();
        args.workspace_bytes = topk_workspace_bytes(args);
        args.stream.handle = static_cast<cudaStream_t>(working);
        args.indices = TensorView(free_chip.data(), DType::kInt32, {rows, k}, kGpu);
        TAMIS_CUDA_CHECK(cudaDeviceSynchronize());
        topk(args);
        working.wait();
        *static_cast<volatile int*>(stop) = 0;
        launch_hog(num_sms / 2, stop, hogging);
        args.indices = TensorView(busy_chip.data(), DType::kInt32, {rows, k}, kGpu);
        topk(args);
        // A watchdog: the call must end by itself. It is let go after 20 s so that the test can say so.
        bool ended = false;
        for (int ms = 0; ms < 20000 && !ended; ++ms) {
          ended = cudaStreamQuery(working) == cudaSuccess;
          if (!ended) {
            const timespec pause{0, 1000000};
            nanosleep(&pause, nullptr);
          }
        }
        *static_cast<volatile int*>(stop) = 1;
        TAMIS_CUDA_CHECK(cudaDeviceSynchronize());
        EXPECT_TRUE(ended) << "waits for multiprocessors that another kernel holds";
        EXPECT_EQ(free_chip.fetch(0, rows * k), busy_chip.fetch(0, rows * k));
      }
    }
  }
  TAMIS_CUDA_CHECK(cudaFreeHost(stop));
}

TEST(TopkCudaBatch, ARowsResultDoesNotDependOnItsBatch) {
  const std::vector<float> row = make_topk_row(topk_distribution("quantised"), 65536, 5);
  std::vector<std::int64_t> alone;
  for (std::int64_t rows : {1, 32, 33, 64, 65, 133}) {
    TopkCall c(rows, 65536, 512);
    const std::vector<float> other = make_topk_row(topk_distribution("normal"), 65536, 1);
    for (std::int64_t r = 0; r < rows; ++r) c.set_row(r, other);
    for (std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) c.set_row(r, row);
    c.run();
    if (rows == 1) {
      alone = c.index_row(0);
      expect_as_reference(c);
    }
    for (std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) EXPECT_EQ(c.index_row(r), alone);
  }
}

// --- what the sanitizers run ---

// Every path of the kernels for long rows in little time: short and long windows, all orders, mappings, formats,
// certificates, rows whose bar is too high (the exact pass) and too low (candidates do not fit).
TEST(TopkCudaSmall, LongRows) {
  const Ints pages = {5, 1, -1, 7, 0, 3, 2, 6, 4};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
      for (const char* kind : {"normal", "quantised", "all_equal", "all_nan", "ascending"}) {
        // Padding that nobody writes would be an uninitialised read of the test's own.
        const std::int64_t padding = std::getenv("TAMIS_TEST_FRESH_MEMORY") != nullptr ? 0 : 3;
        TopkCall c(4, 17003, 300, {.dtype = dtype, .output_padding = padding, .misaligned = 8});
        c.fill(kind);
        const Ints starts = {1, 0, 3, 2}, ends = {17003, 299, 17001, -5};
        c.args.row_starts = view_of(starts);
        c.args.row_ends = view_of(ends);
        c.args.order = order;
        if (order == TopkOrder::kByValue) {
          c.args.mapping = TopkMapping::kPageTable;
          c.args.page_size = 2048;
          c.args.page_table = ConstTensorView(pages.data(), DType::kInt32, {1, 9});
        }
        c.run();
        expect_as_reference(c);
      }
    }
  }
}

// Room for 16,384 candidates, with half as many threads a block.
TEST(TopkCudaSmall, LargeK) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TopkCall c(1, 20011, 4000, {.dtype = dtype});
    c.fill("quantised");
    c.run();
    expect_as_reference(c);
  }
}

// Every form of `registers`: 1,024 threads with 8 and with 16 scores each, and 512 where rows outnumber
// multiprocessors.
TEST(TopkCudaSmall, RowsInRegisters) {
  const std::int64_t many = core::gpu(0).num_sms + 1;
  for (const auto& [rows, width, k] : {std::array<std::int64_t, 3>{2, 2001, 700}, {2, 9001, 700}, {many, 1003, 64}}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
        TopkCall c(rows, width, k, {.dtype = dtype});
        c.fill("quantised");
        Ints offsets(static_cast<std::size_t>(rows), 5);
        c.args.order = order;
        c.args.mapping = TopkMapping::kRagged;
        c.args.ragged_offsets = view_of(offsets);
        c.run();
        expect_as_reference(c);
      }
    }
  }
}

// The bar lets more through than fits: the k best are kept and the bar rises.
TEST(TopkCudaSmall, CandidatesOverflow) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TopkCall c(2, 40013, 1500, {.dtype = dtype});
    c.fill("steps_of_64");
    c.run();
    expect_as_reference(c);
  }
}

TEST(TopkCudaSmall, ShortRows) {
  for (std::int64_t width : {0, 1, 33, 700}) {
    TopkCall c(3, width, 32, {.index_dtype = DType::kInt64});
    c.fill("few_nan");
    c.run();
    expect_as_reference(c);
  }
}

// --- errors ---

TEST(TopkCudaErrors, ForcedAlgorithmsNameWhatSpeaksAgainstThem) {
  TopkCall c(2, 20000, 5000);
  GpuArena arena(64 << 20);
  GpuTopkCall gpu(arena, c);
  const auto refused = [&](TopkAlgorithm algorithm, const char* text) {
    gpu.args.algorithm = algorithm;
    return throws(Status::kUnsupported, text, [&] { topk(gpu.args); });
  };
  EXPECT_TRUE(refused(TopkAlgorithm::kIdentity,
                      "topk: algorithm identity cannot serve this call: width 20000 must be at most k = 5000"));
  EXPECT_TRUE(refused(TopkAlgorithm::kRegisters,
                      "topk: algorithm registers cannot serve this call: width 20000 must be at most 16384"));
  EXPECT_TRUE(
      refused(TopkAlgorithm::kStream, "topk: algorithm stream cannot serve this call: k = 5000 must be at most 4096"));
  gpu.args.order = TopkOrder::kByValue;
  EXPECT_TRUE(
      refused(TopkAlgorithm::kSelect, "topk: algorithm select cannot serve this call: order must not be by value"));
  EXPECT_TRUE(
      refused(TopkAlgorithm::kRegisters,
              "topk: algorithm registers cannot serve this call: width 20000 must be at most 16384; k = 5000 must "
              "be at most 4096 by value"));
  gpu.args.algorithm = TopkAlgorithm::kSimdFilter;
  EXPECT_TRUE(throws(Status::kInvalidArgument,
                     "topk: algorithm is simd_filter, on CUDA it must be auto, identity, registers, grid, "
                     "stream, select, cub",
                     [&] { topk(gpu.args); }));
}

TEST(TopkCudaErrors, DevicesMustAgreeAndExist) {
  TopkCall c(1, 100, 10);
  GpuArena arena(1 << 20);
  GpuTopkCall gpu(arena, c);
  TopkArgs args = gpu.args;
  args.indices = c.args.indices;
  EXPECT_TRUE(
      throws(Status::kInvalidArgument, "topk: indices is on cpu, must be on cuda:0 like scores", [&] { topk(args); }));
  args = gpu.args;
  args.indices = TensorView(gpu.args.indices.data(), DType::kInt32, {1, 10}, {Device::Kind::kCuda, 1});
  EXPECT_TRUE(throws(Status::kInvalidArgument, "topk: indices is on cuda:1, must be on cuda:0 like scores",
                     [&] { topk(args); }));
  const Device missing{Device::Kind::kCuda, 63};
  args.scores = ConstTensorView(gpu.args.scores.data(), DType::kFloat32, {1, 100}, missing);
  args.indices = TensorView(gpu.args.indices.data(), DType::kInt32, {1, 10}, missing);
  args.values = {};
  args.certificate = {};
  const auto [status, text] = error_of([&] { topk(args); });
  EXPECT_EQ(status, Status::kDeviceError);
  EXPECT_TRUE(text.starts_with("cuda:63 was asked for, there ")) << text;
}

// An error that the caller left behind is neither reported by a call nor taken away.
TEST(TopkCudaErrors, ErrorsOfOthersAreTheirs) {
  TopkCall c(2, 20011, 300);
  c.fill("normal");
  GpuArena arena(64 << 20);
  GpuTopkCall gpu(arena, c);
  gpu.take_workspace(arena);
  void* too_much = nullptr;
  ASSERT_EQ(cudaMalloc(&too_much, std::size_t{1} << 60), cudaErrorMemoryAllocation);
  topk(gpu.args);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST(TopkCudaErrors, Workspace) {
  TopkCall c(1, 100000, 100);
  GpuArena arena(64 << 20);
  GpuTopkCall gpu(arena, c);
  gpu.args.algorithm = TopkAlgorithm::kGrid;
  const std::size_t need = topk_workspace_bytes(gpu.args);
  ASSERT_GT(need, 0U);
  gpu.args.workspace_bytes = need - 1;
  EXPECT_TRUE(throws(Status::kInvalidArgument,
                     "topk: workspace has " + std::to_string(need - 1) + " bytes, must have at least " +
                         std::to_string(need) + " (topk_workspace_bytes)",
                     [&] { topk(gpu.args); }));
}

}  // namespace
}  // namespace tamis::test
