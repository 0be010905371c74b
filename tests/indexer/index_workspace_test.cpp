// The workspace of index_topk() and num_threads: any size from one worker's share on serves, whatever it was asked for.

#include <gtest/gtest.h>
#include <tbb/task_arena.h>

#include <limits>

#include "support/expect_error.hpp"
#include "support/indexer_cases.hpp"
#include "support/indexer_run.hpp"
#include "tamis/indexer.hpp"

namespace tamis {
namespace {

using test::IndexerCase;
using test::IndexerShape;
using test::Workspace;

constexpr test::IndexerFormat kFp8{IndexFormat::kFp8, CacheLayout::kIndexerFp8};
constexpr int kIntMax = std::numeric_limits<int>::max();
constexpr std::size_t kMiB = std::size_t{1} << 20;

// A call of index_topk() with outputs of its own.
struct Call {
  explicit Call(const IndexerCase& c, std::int64_t k, int num_threads)
      : indices(static_cast<std::size_t>(c.shape.rows * k), -9), values(indices.size(), -9.0F) {
    args.score = c.args;
    args.k = k;
    args.indices = TensorView(indices.data(), DType::kInt32, {c.shape.rows, k});
    args.values = TensorView(values.data(), DType::kFloat32, {c.shape.rows, k});
    args.num_threads = num_threads;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void run(std::size_t bytes) {
    Workspace workspace(bytes);
    args.workspace = workspace.data();
    args.workspace_bytes = bytes;
    index_topk(args);
    EXPECT_TRUE(workspace.guards_intact());
  }

  std::vector<std::int32_t> indices;
  std::vector<float> values;
  IndexTopkArgs args;
};

std::vector<IndexerShape> workspace_shapes() {
  return {
      {.name = "rows", .rows = 40, .heads = 4, .columns = 300, .page_size = 64, .full = true},
      {.name = "few_rows", .rows = 3, .heads = 4, .columns = 20000, .page_size = 64, .full = true},
      {.name = "rows_between", .rows = 15, .heads = 2, .columns = 3000, .rows_a_table = 15, .full = true},
  };
}

TEST(ThreadIndexTopkWorkspace, ASizeOfASmallerArenaServesALargerOne) {
  for (const IndexerShape& shape : workspace_shapes()) {
    const IndexerCase c(shape, kFp8);
    Call want(c, 64, 1);
    want.run(index_topk_workspace_bytes(want.args));
    for (int asked : {1, 2, 4}) {
      for (int called : {1, 2, 4}) {
        Call call(c, 64, 0);
        std::size_t bytes = 0;
        tbb::task_arena(asked).execute([&] { bytes = index_topk_workspace_bytes(call.args); });
        tbb::task_arena(called).execute([&] { EXPECT_NO_THROW(call.run(bytes)) << asked << " " << called; });
        EXPECT_EQ(call.indices, want.indices) << shape << " " << asked << " " << called;
        EXPECT_EQ(call.values, want.values) << shape << " " << asked << " " << called;
      }
    }
  }
}

// What was asked for with any num_threads serves any other, and so does everything down to one worker's share.
TEST(ThreadIndexTopkWorkspace, AnySizeFromOneShareOnServes) {
  for (const IndexerShape& shape : workspace_shapes()) {
    const IndexerCase c(shape, kFp8);
    for (std::int64_t k : {std::int64_t{1}, shape.columns - 1}) {
      Call want(c, k, 1);
      want.run(index_topk_workspace_bytes(want.args));
      std::size_t least = 0;
      {
        Call call(c, k, 16);
        const auto [status, text] = test::error_of([&] { index_topk(call.args); });
        const std::string front = "index_topk: workspace has 0 bytes, must have at least ";
        ASSERT_EQ(text.substr(0, front.size()), front);
        least = std::stoul(text.substr(front.size()));
        EXPECT_EQ(status, Status::kInvalidArgument);
      }
      std::vector<std::size_t> sizes{least, least + 1, 2 * least - 1, 2 * least, 3 * least};
      for (int asked : {1, 2, 3, 16, kIntMax}) {
        Call call(c, k, asked);
        sizes.push_back(index_topk_workspace_bytes(call.args));
        EXPECT_GE(sizes.back(), least);
      }
      for (std::size_t bytes : sizes) {
        for (int threads : {1, 3, 16, kIntMax}) {
          if (bytes > 64 * kMiB) continue;
          Call call(c, k, threads);
          EXPECT_NO_THROW(call.run(bytes)) << shape << " " << bytes << " " << threads;
          ASSERT_EQ(call.indices, want.indices) << shape << " " << bytes << " " << threads;
          ASSERT_EQ(call.values, want.values) << shape << " " << bytes << " " << threads;
        }
      }
      Call call(c, k, 16);
      EXPECT_THROW(call.run(least - 1), Error);
    }
  }
}

// No thread has a share unless there is work for it.
TEST(IndexTopkWorkspace, WorkersAreNoMoreThanPiecesOfWork) {
  const auto bytes = [](std::int64_t rows, std::int64_t columns, int num_threads) {
    static std::uint8_t byte;
    IndexTopkArgs args;
    args.score.index_q = ConstTensorView(&byte, DType::kUInt8, {rows, 64, 128});
    args.score.index_weights = ConstTensorView(&byte, DType::kFloat32, {rows, 64});
    args.score.index_k = {&byte, CacheLayout::kIndexerFp8, 128, 1, columns, 132 * columns, 1.0F, {}};
    args.score.row_ends = ConstTensorView(&byte, DType::kInt32, {rows});
    args.score.max_columns = columns;
    args.k = 16;
    args.indices = TensorView(&byte, DType::kInt32, {rows, 16});
    args.num_threads = num_threads;
    return index_topk_workspace_bytes(args);
  };
  for (int threads : {2, 64, 1000000, kIntMax}) {
    EXPECT_EQ(bytes(1, 64, threads), bytes(1, 64, 1)) << threads;  // one piece
    EXPECT_LE(bytes(5, 64, threads), 5 * bytes(1, 64, 1)) << threads;
  }
  EXPECT_EQ(bytes(1, 3 * 1024, 3), bytes(1, 3 * 1024, kIntMax));  // three pieces of columns
  EXPECT_LT(bytes(1, 3 * 1024, kIntMax), kMiB);
  EXPECT_EQ(bytes(1000000, 1 << 20, kIntMax), bytes(1000000, 1 << 20, 1024));  // and never more than 1024 workers
  EXPECT_LT(bytes(1000000, 1 << 20, kIntMax), std::size_t{16} << 30);
  EXPECT_LT(bytes(1, 1 << 28, kIntMax), 512 * kMiB);
}

TEST(IndexThreadsError, NegativeNumThreads) {
  const IndexerCase c({.name = "e", .rows = 2, .heads = 8, .columns = 100, .page_size = 64}, kFp8);
  for (int threads : {-1, -7, std::numeric_limits<int>::min()}) {
    const std::string text = ": num_threads is " + std::to_string(threads) + ", must be >= 0";
    Call call(c, 4, threads);
    EXPECT_TRUE(test::throws(Status::kInvalidArgument, "index_topk" + text, [&] { index_topk(call.args); }));
    EXPECT_TRUE(
        test::throws(Status::kInvalidArgument, "index_topk" + text, [&] { index_topk_workspace_bytes(call.args); }));
    std::vector<float> logits(200);
    IndexLogitsArgs score;
    score.score = c.args;
    score.logits = TensorView(logits.data(), DType::kFloat32, {2, 100});
    score.num_threads = threads;
    EXPECT_TRUE(test::throws(Status::kInvalidArgument, "index_logits" + text, [&] { index_logits(score); }));

    const std::vector<float> in(std::size_t{2} * 128);
    const std::int64_t positions[] = {0, 0};
    std::vector<float> index_q(in.size());
    std::vector<float> index_weights(2);
    IndexQueryArgs query;
    query.q = ConstTensorView(in.data(), DType::kFloat32, {2, 1, 128});
    query.weights = ConstTensorView(in.data(), DType::kFloat32, {2, 1});
    query.positions = ConstTensorView(positions, DType::kInt64, {2});
    query.cos_sin = ConstTensorView(in.data(), DType::kFloat32, {1, 64});
    query.format = IndexFormat::kFloat32;
    query.index_q = TensorView(index_q.data(), DType::kFloat32, {2, 1, 128});
    query.index_weights = TensorView(index_weights.data(), DType::kFloat32, {2, 1});
    query.num_threads = threads;
    EXPECT_TRUE(test::throws(Status::kInvalidArgument, "index_query" + text, [&] { index_query(query); }));
  }
}

TEST(IndexTopkWorkspaceError, SaysHowFarItIsOff) {
  const IndexerCase c({.name = "e", .rows = 2, .heads = 8, .columns = 100, .page_size = 64}, kFp8);
  Call call(c, 4, 1);
  Workspace workspace(index_topk_workspace_bytes(call.args) + 64);
  for (int past : {1, 8, 63}) {
    call.args.workspace = static_cast<char*>(workspace.data()) + past;
    call.args.workspace_bytes = workspace.size() - 64;
    const std::string text =
        "index_topk: workspace is " + std::to_string(past) + " bytes past a multiple of 64, must be 64-byte aligned";
    EXPECT_TRUE(test::throws(Status::kInvalidArgument, text, [&] { index_topk(call.args); }));
  }
}

}  // namespace
}  // namespace tamis
