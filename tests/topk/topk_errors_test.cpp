// The text of every error, the rules, and what a forced algorithm refuses.

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "expect_error.hpp"
#include "topk/rules.hpp"
#include "topk_check.hpp"

namespace tamis::test {
namespace {

// The text of the error that one change to a valid [2, 100] call with k = 10 gives, from both entries.
::testing::AssertionResult refused(Status status, const std::string& text,
                                   const std::function<void(TopkArgs&)>& change) {
  TopkCall c(2, 100, 10);
  c.fill("normal");
  change(c.args);
  const ::testing::AssertionResult query = throws(status, text, [&] { topk_workspace_bytes(c.args); });
  if (!query) return query;
  return throws(status, text, [&] { topk(c.args); });
}

TEST(TopkErrors, NameTheArgumentWhatWasExpectedAndWhatCame) {
  constexpr Status kBad = Status::kInvalidArgument;
  static std::int32_t ints[64];
  static float floats[64];
  const Device gpu{Device::Kind::kCuda, 0};
  EXPECT_TRUE(refused(kBad, "topk: scores is absent, must be fp32 or bf16 or fp16 [any, any]",
                      [](TopkArgs& a) { a.scores = {}; }));
  EXPECT_TRUE(refused(kBad, "topk: scores is int32 [2, 8], must be fp32 or bf16 or fp16 [any, any]", [](TopkArgs& a) {
    a.scores = ConstTensorView(ints, DType::kInt32, {2, 8});
  }));
  EXPECT_TRUE(refused(kBad, "topk: scores has stride 2 in its last dimension, must be contiguous (1)", [](TopkArgs& a) {
    a.scores = ConstTensorView(floats, DType::kFloat32, {2, 8}, {32, 2});
  }));
  EXPECT_TRUE(refused(kBad, "topk: scores has row stride 7, must be at least 8", [](TopkArgs& a) {
    a.scores = ConstTensorView(floats, DType::kFloat32, {2, 8}, {7, 1});
  }));
  EXPECT_TRUE(refused(kBad, "topk: scores is fp32 [2, 8] with a null pointer", [](TopkArgs& a) {
    a.scores = ConstTensorView(nullptr, DType::kFloat32, {2, 8});
  }));
#ifdef TAMIS_HAS_CUDA
  const Status status = kBad;
  const char* scores_text = "topk: indices is on cpu, must be on cuda:0 like scores";
  const char* ends_text = "topk: row_ends is on cuda:0, must be on cpu like scores";
#else
  const Status status = Status::kUnsupported;
  const char* scores_text = "topk: scores is on cuda:0, this build works on the CPU only";
  const char* ends_text = "topk: row_ends is on cuda:0, this build works on the CPU only";
#endif
  EXPECT_TRUE(refused(status, scores_text, [&](TopkArgs& a) {
    a.scores = ConstTensorView(floats, DType::kFloat32, {2, 8}, gpu);
  }));
  EXPECT_TRUE(refused(kBad, "topk: scores has 2147483648 columns, must have at most 2147483647: row windows are int32",
                      [](TopkArgs& a) {
                        a.scores = ConstTensorView(floats, DType::kFloat32, {2, std::int64_t{1} << 31});
                      }));
  EXPECT_TRUE(refused(kBad, "topk: row_starts is int32 [3], must be int32 [2]",
                      [](TopkArgs& a) { a.row_starts = ConstTensorView(ints, DType::kInt32, {3}); }));
  EXPECT_TRUE(refused(kBad, "topk: row_ends is int64 [2], must be int32 [2]",
                      [](TopkArgs& a) { a.row_ends = ConstTensorView(ints, DType::kInt64, {2}); }));
  EXPECT_TRUE(
      refused(status, ends_text, [&](TopkArgs& a) { a.row_ends = ConstTensorView(ints, DType::kInt32, {2}, gpu); }));
  EXPECT_TRUE(refused(kBad, "topk: k is -1, must be at least 0", [](TopkArgs& a) { a.k = -1; }));
  EXPECT_TRUE(
      refused(kBad, "topk: indices is int32 [2, 10], must be int32 or int64 [2, 11]", [](TopkArgs& a) { a.k = 11; }));
  EXPECT_TRUE(refused(kBad, "topk: indices is fp32 [2, 10], must be int32 or int64 [2, 10]", [](TopkArgs& a) {
    a.indices = TensorView(floats, DType::kFloat32, {2, 10});
  }));
  EXPECT_TRUE(refused(kBad, "topk: indices has row stride 9, must be at least 10", [](TopkArgs& a) {
    a.indices = TensorView(ints, DType::kInt32, {2, 10}, {9, 1});
  }));
  EXPECT_TRUE(refused(kBad, "topk: values is bf16 [2, 10], must be fp32 [2, 10]", [](TopkArgs& a) {
    a.values = TensorView(floats, DType::kBFloat16, {2, 10});
  }));
  EXPECT_TRUE(refused(kBad, "topk: certificate is int32 [2, 5], must be int32 [2, 4]", [](TopkArgs& a) {
    a.certificate = TensorView(ints, DType::kInt32, {2, 5});
  }));
  EXPECT_TRUE(refused(kBad, "topk: order is 7, must be kPosition, kUnsorted or kByValue",
                      [](TopkArgs& a) { a.order = static_cast<TopkOrder>(7); }));
  EXPECT_TRUE(refused(kBad, "topk: mapping is 9, must be kNone, kPageTable or kRagged",
                      [](TopkArgs& a) { a.mapping = static_cast<TopkMapping>(9); }));
  EXPECT_TRUE(refused(kBad, "topk: page_table is absent, must be int32 [any, any]",
                      [](TopkArgs& a) { a.mapping = TopkMapping::kPageTable; }));
  EXPECT_TRUE(refused(kBad, "topk: page_size is 0, must be at least 1 for the page-table mapping", [](TopkArgs& a) {
    a.mapping = TopkMapping::kPageTable;
    a.page_table = ConstTensorView(ints, DType::kInt32, {2, 2});
  }));
  EXPECT_TRUE(refused(kBad, "topk: row_to_table is int32 [1], must be int32 [2]", [](TopkArgs& a) {
    a.mapping = TopkMapping::kPageTable;
    a.page_table = ConstTensorView(ints, DType::kInt32, {2, 2});
    a.page_size = 64;
    a.row_to_table = ConstTensorView(ints, DType::kInt32, {1});
  }));
  EXPECT_TRUE(refused(kBad, "topk: page_starts is int32 [1], must be int32 [2]", [](TopkArgs& a) {
    a.mapping = TopkMapping::kPageTable;
    a.page_table = ConstTensorView(ints, DType::kInt32, {2, 2});
    a.page_size = 64;
    a.page_starts = ConstTensorView(ints, DType::kInt32, {1});
  }));
  EXPECT_TRUE(refused(kBad, "topk: ragged_offsets is absent, must be int32 or int64 [2]",
                      [](TopkArgs& a) { a.mapping = TopkMapping::kRagged; }));
  EXPECT_TRUE(refused(kBad, "topk: num_threads is -2, must be at least 0", [](TopkArgs& a) { a.num_threads = -2; }));
  EXPECT_TRUE(refused(kBad, "topk: algorithm is 77, on the CPU it must be auto, identity, simd_filter or select",
                      [](TopkArgs& a) { a.algorithm = static_cast<TopkAlgorithm>(77); }));
  EXPECT_TRUE(refused(Status::kUnsupported,
                      "topk: algorithm identity cannot serve this call: width 100 must be at most k = 10",
                      [](TopkArgs& a) { a.algorithm = TopkAlgorithm::kIdentity; }));
}

TEST(TopkErrors, ForcedFilterBeyondItsK) {
  TopkCall c(1, 100, 65537);
  c.args.algorithm = TopkAlgorithm::kSimdFilter;
  EXPECT_TRUE(throws(Status::kUnsupported,
                     "topk: algorithm simd_filter cannot serve this call: k = 65537 must be at most 65536",
                     [&] { topk(c.args); }));
}

TEST(TopkErrors, Workspace) {
  TopkCall c(2, 100, 10);
  c.fill("normal");
  const std::size_t need = topk_workspace_bytes(c.args);
  ASSERT_GT(need, 0U);
  GuardedBuffer<std::uint8_t> workspace(need);
  const std::string bytes = std::to_string(need);
  c.args.workspace = workspace.data();
  c.args.workspace_bytes = need - 1;
  EXPECT_TRUE(throws(Status::kInvalidArgument,
                     "topk: workspace has " + std::to_string(need - 1) + " bytes, must have at least " + bytes +
                         " (topk_workspace_bytes)",
                     [&] { topk(c.args); }));
  c.args.workspace = nullptr;
  c.args.workspace_bytes = need;
  EXPECT_TRUE(throws(Status::kInvalidArgument, "topk: workspace is null, must have at least " + bytes + " bytes",
                     [&] { topk(c.args); }));
  c.args.workspace = workspace.data() + 32;
  const auto [status, text] = error_of([&] { topk(c.args); });
  EXPECT_EQ(status, Status::kInvalidArgument);
  EXPECT_TRUE(text.starts_with("topk: workspace is at 0x") && text.ends_with(", must be 64-byte aligned")) << text;
}

TEST(TopkErrors, RowEnds) {
  const std::vector<std::int32_t> lens = {1, 2};
  std::vector<std::int32_t> ends(5);
  EXPECT_TRUE(throws(Status::kInvalidArgument, "topk_row_ends: next_n is 0, must be at least 1",
                     [&] { topk_row_ends(lens, 0, 4, ends); }));
  EXPECT_TRUE(throws(Status::kInvalidArgument, "topk_row_ends: compress_ratio is -1, must be at least 0",
                     [&] { topk_row_ends(lens, 1, -1, ends); }));
  EXPECT_TRUE(throws(Status::kInvalidArgument,
                     "topk_row_ends: row_ends has 5 elements, must have 2 requests * next_n = 2",
                     [&] { topk_row_ends(lens, 2, 4, ends); }));
}

TEST(TopkRules, EveryRuleIsReachedAndNamed) {
  std::set<TopkAlgorithm> reached;
  for (std::int64_t k : {1, 512, 4096, 65536, 65537}) {
    for (std::int64_t width : {0, 1, 512, 65536, 1000000}) reached.insert(choose_topk_rule(width, k).algorithm);
  }
  EXPECT_EQ(reached.size(), topk_rules().size());
  std::set<std::string> names;
  for (const TopkRule& rule : topk_rules()) {
    EXPECT_EQ(std::string(topk_algorithm_name(rule.algorithm)), rule.name);
    EXPECT_NE(std::string(rule.why), "");
    EXPECT_NE(std::string(rule.limits), "");
    names.insert(rule.name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"identity", "simd_filter", "select"}));
  EXPECT_STREQ(topk_algorithm_name(TopkAlgorithm::kAuto), "auto");
}

// The GPU's rules, as an H200, an A100, and a GPU with little shared memory would follow them.
TEST(TopkRules, EveryCudaRuleIsReachedAndNamed) {
  std::set<const TopkCudaRule*> reached;
  const TopkGpu gpus[] = {{}, {108, 166912, 80}, {84, 101376, 120}};
  for (const TopkGpu& gpu : gpus) {
    for (std::int64_t rows : {1, 4, 60, 130, 1000}) {
      for (std::int64_t width : {0, 1, 512, 65536, 1000000, 10000000}) {
        for (std::int64_t k : {1, 512, 4096, 5000}) {
          for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
            const TopkCase c{rows, width, k, order};
            const TopkCudaRule& rule = choose_topk_cuda_rule(c, gpu);
            EXPECT_TRUE(rule.can(c, gpu));
            EXPECT_EQ(topk_unmet(rule, c, gpu), "");
            reached.insert(&rule);
          }
        }
      }
    }
  }
  EXPECT_EQ(reached.size(), topk_cuda_rules().size());
  for (const TopkCudaRule& rule : topk_cuda_rules()) {
    EXPECT_EQ(std::string(topk_algorithm_name(rule.algorithm)), rule.name);
    EXPECT_NE(std::string(rule.why), "");
    EXPECT_NE(std::string(rule.limits), "");
  }
}

TEST(TopkRules, WhatACudaRuleCannotServeIsSaid) {
  const TopkGpu a100{108, 166912, 80};
  for (const TopkCudaRule& rule : topk_cuda_rules()) {
    for (std::int64_t width : {100, 20000}) {
      for (std::int64_t k : {10, 3000, 5000, 50000}) {
        for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
          const TopkCase c{1, width, k, order};
          EXPECT_EQ(rule.can(c, a100), topk_unmet(rule, c, a100).empty()) << rule.name;
        }
      }
    }
  }
}

TEST(TopkRules, ChooseTellsWhatACallWouldRun) {
  TopkCall c(1, 100, 10), whole(1, 10, 10);
  EXPECT_EQ(topk_choose(c.args).algorithm, TopkAlgorithm::kSimdFilter);
  EXPECT_EQ(topk_choose(whole.args).algorithm, TopkAlgorithm::kIdentity);
  c.args.algorithm = TopkAlgorithm::kSelect;
  EXPECT_EQ(topk_choose(c.args).algorithm, TopkAlgorithm::kSelect);
}

}  // namespace
}  // namespace tamis::test
