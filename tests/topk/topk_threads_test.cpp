// Threads over rows and inside rows never change a result.

#include <gtest/gtest.h>
#include <tbb/task_arena.h>

#include <string>
#include <thread>
#include <vector>

#include "topk_check.hpp"

namespace tamis::test {
namespace {

// One long row is cut into segments (32,768 scores at least) when there are more threads than rows.
TEST(ThreadTopk, SplitInsideARowIsInvisible) {
  for (const TopkDistribution& kind : kTopkDistributions) {
    for (std::int64_t rows : {1, 2}) {
      TopkCall c(rows, 140003, 700);
      c.fill(kind);
      c.run();
      std::vector<std::vector<std::int64_t>> alone;
      for (std::int64_t r = 0; r < rows; ++r) alone.push_back(c.index_row(r));
      expect_as_reference(c);
      for (int threads : {2, 3, 4, 7}) {
        SCOPED_TRACE(std::string(kind.name) + " threads " + std::to_string(threads));
        c.indices.fill(0xC7);
        c.args.num_threads = threads;
        c.run();
        for (std::int64_t r = 0; r < rows; ++r) EXPECT_EQ(c.index_row(r), alone[static_cast<std::size_t>(r)]);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(ThreadTopk, SplitRowsWithWindowsOrdersAndFormats) {
  const std::vector<std::int32_t> starts = {0, 60001, 5}, ends = {200000, 130000, 300};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
      TopkCall c(3, 200000, 512, {.dtype = dtype});
      c.fill("quantised");
      c.args.row_starts = ConstTensorView(starts.data(), DType::kInt32, {3});
      c.args.row_ends = ConstTensorView(ends.data(), DType::kInt32, {3});
      c.args.order = order;
      c.args.num_threads = 12;
      c.run();
      expect_as_reference(c);
    }
  }
}

TEST(ThreadTopk, ManyRowsOverThreads) {
  for (TopkAlgorithm algorithm : {TopkAlgorithm::kSimdFilter, TopkAlgorithm::kSelect}) {
    for (int threads : {0, 2, 5}) {
      TopkCall c(37, 3001, 100);
      c.fill("few_nan");
      c.args.algorithm = algorithm;
      c.args.num_threads = threads;
      c.run();
      expect_as_reference(c);
    }
  }
  TopkCall identity(50, 30, 40);
  identity.fill("few_nan");
  identity.args.order = TopkOrder::kByValue;
  identity.args.num_threads = 3;
  identity.run();
  expect_as_reference(identity);
}

// The size asked for outside an arena holds inside one of any width.
TEST(ThreadTopk, WorkspaceDoesNotDependOnTheArena) {
  TopkCall c(1, 140003, 300);
  c.fill("normal");
  c.args.num_threads = 0;
  const std::size_t outside = topk_workspace_bytes(c.args);
  for (int width : {1, 2, 9}) {
    tbb::task_arena arena(width);
    arena.execute([&] {
      EXPECT_EQ(topk_workspace_bytes(c.args), outside);
      c.run();
    });
    expect_as_reference(c);
  }
}

TEST(ThreadTopk, CallsWithTheirOwnWorkspacesRunBesideEachOther) {
  constexpr int kCallers = 4;
  std::vector<TopkCall> calls;
  calls.reserve(kCallers);
  for (int i = 0; i < kCallers; ++i) {
    calls.emplace_back(2, 70000, 200 + i);
    calls.back().fill(kTopkDistributions[i]);
    calls.back().args.num_threads = i % 2 == 0 ? 1 : 2;
  }
  std::vector<std::thread> threads;
  for (TopkCall& c : calls) {
    threads.emplace_back([&c] {
      for (int repeat = 0; repeat < 5; ++repeat) c.run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const TopkCall& c : calls) expect_as_reference(c);
}

}  // namespace
}  // namespace tamis::test
