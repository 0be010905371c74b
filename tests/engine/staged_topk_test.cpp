// Selections in steps (scores here, top-k elsewhere) against index_topk(): the same slots, hence the same tokens. The
// device is the CPU with memory of its own, so that everything but CUDA's calls is tested without a GPU.

#include "engine/staged_topk.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/single_pass.hpp"
#include "engine/topk_backend.hpp"
#include "engine_cases.hpp"
#include "expect_error.hpp"
#include "support/indexer_cases.hpp"

namespace tamis::engine {
namespace {

class CpuStagedTopk : public StagedTopk, public CpuStage {
 public:
  explicit CpuStagedTopk(std::int64_t chunk_bytes = kChunkBytes) : StagedTopk(Device{}, chunk_bytes) {}
  std::string where() const override { return "the CPU, in steps"; }

 protected:
  std::byte* new_host_block(std::size_t bytes) override { return CpuStage::new_host_block(bytes); }
  std::byte* new_device_block(std::size_t bytes) override { return CpuStage::new_device_block(bytes); }
  void upload(std::size_t bytes) override { CpuStage::upload(bytes); }
  void download(std::size_t offset, std::size_t bytes) override { CpuStage::download(offset, bytes); }
};

std::vector<std::int32_t> fused(IndexTopkArgs args) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(args.indices.numel()), -77);
  args.indices = TensorView(out.data(), DType::kInt32, {args.indices.size(0), args.k});
  args.workspace_bytes = index_topk_workspace_bytes(args);
  const std::size_t bytes = std::max<std::size_t>(64, args.workspace_bytes);
  const std::unique_ptr<void, void (*)(void*)> workspace(operator new (bytes, std::align_val_t{64}),
                                                         [](void* p) { operator delete (p, std::align_val_t{64}); });
  args.workspace = workspace.get();
  index_topk(args);
  return out;
}

// Runs both and compares every slot; the model goes on with those of the steps.
class ComparingTopk : public model::TopkBackend {
 public:
  explicit ComparingTopk(model::TopkBackend& tested) : tested_(tested) {}
  void index_topk(const IndexTopkArgs& args) override {
    tested_.index_topk(args);
    const auto* got = static_cast<const std::int32_t*>(args.indices.data());
    EXPECT_EQ(std::vector<std::int32_t>(got, got + args.indices.numel()), fused(args));
    ++num_selections;
    most_rows = std::max(most_rows, args.indices.size(0));
    most_columns = std::max(most_columns, args.score.max_columns);
    selective |= args.k < args.score.max_columns;
  }
  void reserve(const model::TopkBounds& bounds) override { tested_.reserve(bounds); }
  std::string where() const override { return tested_.where(); }

  int num_selections = 0;
  std::int64_t most_rows = 0, most_columns = 0;
  bool selective = false;

 private:
  model::TopkBackend& tested_;
};

TEST(StagedTopk, SelectsTheSameSlotsAndTokensAsIndexTopk) {
  for (const EngineCase& c : engine_cases()) {
    SCOPED_TRACE("precision " + std::to_string(static_cast<int>(c.precision)) + ", chunk " +
                 std::to_string(c.prefill_chunk) + ", companions " + std::to_string(c.companions) + ", topk " +
                 std::to_string(c.topk));
    const std::vector<std::int32_t> expected = tokens_of(c, nullptr);
    for (const std::int64_t chunk_bytes : {StagedTopk::kChunkBytes, std::int64_t{5000}}) {
      CpuStagedTopk staged(chunk_bytes);
      ComparingTopk comparing(staged);
      EXPECT_EQ(tokens_of(c, &comparing), expected);
      EXPECT_GT(comparing.num_selections, 0);
      EXPECT_TRUE(comparing.selective || c.topk == 0) << "no step had more entries than it takes";
      if (chunk_bytes < StagedTopk::kChunkBytes) {
        EXPECT_GT(staged.num_uploads, comparing.num_selections);
      } else {
        EXPECT_EQ(staged.num_uploads, comparing.num_selections);
      }
    }
  }
}

TEST(StagedTopk, StepsTakeNoMemory) {
  CpuStagedTopk staged(100000);
  Engine engine(tiny(), {.prefill_chunk = 200,
                         .step_tokens = 300,
                         .cache_tokens = 4096,
                         .max_requests = 4,
                         .selection = {.topk = 16},
                         .num_threads = 1,
                         .topk_backend = &staged});
  const int blocks = staged.num_blocks;
  EXPECT_EQ(blocks, 2);
  for (int i = 0; i < 3; ++i) engine.add({.prompt = golden_prompt(), .max_new_tokens = 4});
  engine.run();
  EXPECT_GT(staged.num_uploads, 0);
  EXPECT_EQ(staged.num_blocks, blocks);
}

TEST(StagedTopk, ASinglePassIsTheSame) {
  CpuStagedTopk staged(20000);
  const model::Transformer::StepOptions cpu{.selection = {.topk = 16}, .num_threads = 1};
  model::Transformer::StepOptions steps = cpu;
  steps.topk_backend = &staged;
  EXPECT_EQ(single_pass(tiny(), golden_prompt(), steps), single_pass(tiny(), golden_prompt(), cpu));
  EXPECT_GT(staged.num_uploads, 0);
}

// Stale ends, missing pages and tables that are not there, formats, strides, gathered and paged keys.
TEST(StagedTopk, AgreesOnEveryShapeOfTheIndexer) {
  for (test::IndexerShape shape : test::indexer_shapes()) {
    shape.starts = false;
    for (const test::IndexerFormat& format : test::indexer_formats()) {
      const test::IndexerCase c(shape, format);
      test::Random random(7);
      std::vector<std::int32_t> pages;
      const std::int64_t tables = std::max<std::int64_t>(1, shape.rows), max_pages = shape.columns / 10 + 1;
      for (std::int64_t i = 0; i < tables * max_pages; ++i) {
        pages.push_back(static_cast<std::int32_t>(random.between(-1, 1000)));
      }
      for (const std::int64_t k : {0, 1, 7, 64, 500}) {
        for (const TopkMapping mapping : {TopkMapping::kNone, TopkMapping::kPageTable}) {
          for (const TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
            SCOPED_TRACE(shape.name + " " + test::indexer_format_text(format) + " k " + std::to_string(k) +
                         " mapping " + std::to_string(static_cast<int>(mapping)) + " order " +
                         std::to_string(static_cast<int>(order)));
            IndexTopkArgs args;
            args.score = c.args;
            args.k = k;
            args.order = order;
            args.mapping = mapping;
            args.mapping_page_table = ConstTensorView(pages.data(), DType::kInt32, {tables, max_pages});
            args.mapping_page_size = 5;
            args.num_threads = 1;
            std::vector<std::int32_t> out(static_cast<std::size_t>(shape.rows * (k + 3)), -55);
            args.indices = TensorView(out.data(), DType::kInt32, {shape.rows, k}, {k + 3, 1});
            const std::vector<std::int32_t> expected = fused(args);
            CpuStagedTopk staged(3000);
            staged.index_topk(args);
            for (std::int64_t r = 0; r < shape.rows; ++r) {
              const auto got = out.begin() + r * (k + 3);
              ASSERT_TRUE(std::equal(got, got + k, expected.begin() + r * k)) << "row " << r;
              ASSERT_TRUE(std::all_of(got + k, got + k + 3, [](std::int32_t x) { return x == -55; })) << "row " << r;
            }
          }
        }
      }
    }
  }
}

TEST(StagedTopk, RefusesWhatItDoesNotServe) {
  const test::IndexerCase c({.name = "small", .rows = 2, .heads = 8, .columns = 40, .starts = true},
                            test::indexer_formats()[0]);
  std::vector<std::int64_t> wide(2 * 4);
  std::vector<float> values(2 * 4);
  IndexTopkArgs args;
  args.score = c.args;
  args.k = 4;
  args.indices = TensorView(wide.data(), DType::kInt32, {2, 4});
  CpuStagedTopk staged;
  const auto expect = [&](Status status, const std::string& text) {
    EXPECT_TRUE(test::throws(status, text, [&] { staged.index_topk(args); }));
  };
  expect(Status::kUnsupported, "top-k backend: row_starts is int32 [2], must be absent");
  args.score.row_starts = {};
  args.values = TensorView(values.data(), DType::kFloat32, {2, 4});
  expect(Status::kUnsupported, "top-k backend: values is fp32 [2, 4], must be absent");
  args.values = {};
  args.indices = TensorView(wide.data(), DType::kInt64, {2, 4});
  expect(Status::kInvalidArgument, "top-k backend: indices is int64 [2, 4], must be int32 [2, 4]");
  args.indices = TensorView(wide.data(), DType::kInt32, {2, 4});
  args.mapping = TopkMapping::kRagged;
  expect(Status::kUnsupported, "top-k backend: mapping is kRagged, must be kNone or kPageTable");
}

TEST(TopkBackend, TheCpuNeedsNone) { EXPECT_EQ(make_topk_backend({}), nullptr); }

TEST(TopkBackend, SaysWhyThereIsNoSuchGpu) {
  const std::string why = topk_support({Device::Kind::kCuda, 9999}).front().why;
  EXPECT_TRUE(test::throws(Status::kUnsupported, why, [] { make_topk_backend({Device::Kind::kCuda, 9999}); }));
}

class GpuTopkTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const TopkSupport& entry : topk_support({Device::Kind::kCuda, 0})) {
      if (!entry.available && entry.algorithm == TopkAlgorithm::kStream) GTEST_SKIP() << entry.why;
    }
  }
};

TEST_F(GpuTopkTest, SelectsTheSameSlotsAndTokensAsTheCpu) {
  const std::unique_ptr<model::TopkBackend> gpu = make_topk_backend({Device::Kind::kCuda, 0});
  ComparingTopk comparing(*gpu);
  for (const EngineCase& c : engine_cases()) EXPECT_EQ(tokens_of(c, &comparing), tokens_of(c, nullptr));
  EXPECT_TRUE(comparing.selective);
}

TEST_F(GpuTopkTest, ASinglePassIsTheSame) {
  const std::unique_ptr<model::TopkBackend> gpu = make_topk_backend({Device::Kind::kCuda, 0});
  const model::Transformer::StepOptions cpu{.selection = {.topk = 16}, .num_threads = 1};
  model::Transformer::StepOptions on_gpu = cpu;
  on_gpu.topk_backend = gpu.get();
  EXPECT_EQ(single_pass(tiny(), golden_prompt(), on_gpu), single_pass(tiny(), golden_prompt(), cpu));
}

}  // namespace
}  // namespace tamis::engine
