#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "indexer/rules.hpp"
#include "support/allocation_counter.hpp"
#include "support/expect_error.hpp"
#include "support/guarded_buffer.hpp"
#include "support/indexer_cases.hpp"
#include "support/indexer_run.hpp"
#include "support/simd_targets.hpp"
#include "tamis/indexer.hpp"
#include "tamis/topk.hpp"

namespace tamis {
namespace {

using test::IndexerCase;
using test::IndexerFormat;
using test::IndexerShape;
using test::Workspace;

constexpr IndexerFormat kFp8{IndexFormat::kFp8, CacheLayout::kIndexerFp8};

struct Selection {
  std::vector<std::int64_t> indices;
  std::vector<std::uint32_t> values;  // bits
  bool operator==(const Selection&) const = default;
};

// How results are asked for; what a page table or offsets hold comes from the case.
struct Request {
  std::int64_t k = 0;
  TopkOrder order = TopkOrder::kPosition;
  TopkMapping mapping = TopkMapping::kNone;
  bool values = true;
  DType dtype = DType::kInt32;
  ConstTensorView page_starts;
};

std::ostream& operator<<(std::ostream& out, const Request& r) {
  return out << "k " << r.k << " order " << static_cast<int>(r.order) << " mapping " << static_cast<int>(r.mapping)
             << (r.values ? " with values " : " ") << dtype_name(r.dtype);
}

constexpr std::int64_t kMappingPageSize = 5;

// Arguments of mapping for a case: a table with holes, and offsets that are sometimes negative.
struct Mapping {
  std::int64_t tables, pages;
  std::vector<std::int32_t> page_table;
  std::vector<std::int64_t> offsets;
  explicit Mapping(const IndexerShape& shape)
      : tables(std::max<std::int64_t>(shape.rows, 1)), pages(shape.columns / kMappingPageSize / 2 + 1) {
    test::Random random(7);
    for (std::int64_t i = 0; i < tables * pages; ++i)
      page_table.push_back(static_cast<std::int32_t>(random.between(-1, 1000)));
    for (std::int64_t i = 0; i < shape.rows; ++i) offsets.push_back(random.between(-100, 100000));
  }
};

template <typename Args>
void set_outputs(Args& args, const Request& r, std::int64_t rows, void* indices, void* values) {
  args.indices = TensorView(indices, r.dtype, {rows, r.k});
  if (r.values) args.values = TensorView(values, DType::kFloat32, {rows, r.k});
  args.order = r.order;
  args.mapping = r.mapping;
  args.page_starts = r.page_starts;
}

class Outputs {
 public:
  Outputs(const Request& r, std::int64_t rows)
      : request_(r),
        indices_(static_cast<std::size_t>(rows * r.k * dtype_bytes(r.dtype)), 0xC3),
        values_(static_cast<std::size_t>(r.values ? rows * r.k : 0), 0xC3) {}
  void* indices() { return indices_.data(); }
  void* values() { return values_.data(); }
  Selection selection() const {
    EXPECT_TRUE(indices_.guards_intact());
    EXPECT_TRUE(values_.guards_intact());
    Selection s;
    const auto item = static_cast<std::size_t>(dtype_bytes(request_.dtype));
    for (std::size_t i = 0; i < indices_.size() / item; ++i) {
      std::int64_t wide = 0;
      std::int32_t narrow = 0;
      if (item == 8) std::memcpy(&wide, indices_.data() + 8 * i, 8);
      else std::memcpy(&narrow, indices_.data() + 4 * i, 4);
      s.indices.push_back(item == 8 ? wide : narrow);
    }
    s.values = values_.copy();
    return s;
  }

 private:
  Request request_;
  test::GuardedBuffer<std::uint8_t> indices_;
  test::GuardedBuffer<std::uint32_t> values_;
};

Selection run_fused(const IndexScoreArgs& score, const Mapping& mapping, const Request& r, int num_threads = 1) {
  const std::int64_t rows = score.index_q.size(0);
  Outputs out(r, rows);
  IndexTopkArgs args;
  args.score = score;
  args.k = r.k;
  set_outputs(args, r, rows, out.indices(), out.values());
  args.mapping_page_table = ConstTensorView(mapping.page_table.data(), DType::kInt32, {mapping.tables, mapping.pages});
  args.mapping_page_size = kMappingPageSize;
  args.ragged_offsets = ConstTensorView(mapping.offsets.data(), DType::kInt64, {rows});
  args.num_threads = num_threads;
  Workspace workspace(index_topk_workspace_bytes(args));
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  index_topk(args);
  EXPECT_TRUE(workspace.guards_intact());
  return out.selection();
}

// The definition of index_topk(): index_logits() in fp32, whose columns outside the windows stay poisoned, then topk().
Selection run_unfused(const IndexScoreArgs& score, const Mapping& mapping, const Request& r) {
  const std::int64_t rows = score.index_q.size(0);
  const auto logits = test::run_index_logits(score);
  Outputs out(r, rows);
  TopkArgs args;
  args.scores = ConstTensorView(logits.data(), DType::kFloat32, {rows, score.max_columns});
  args.row_starts = score.row_starts;
  args.row_ends = score.row_ends;
  args.k = r.k;
  set_outputs(args, r, rows, out.indices(), out.values());
  args.page_table = ConstTensorView(mapping.page_table.data(), DType::kInt32, {mapping.tables, mapping.pages});
  args.row_to_table = score.row_to_table;
  args.page_size = kMappingPageSize;
  args.ragged_offsets = ConstTensorView(mapping.offsets.data(), DType::kInt64, {rows});
  args.num_threads = 1;
  Workspace workspace(topk_workspace_bytes(args));
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  topk(args);
  return out.selection();
}

std::vector<Request> requests(std::int64_t columns) {
  std::vector<Request> out;
  for (std::int64_t k : {std::int64_t{0}, std::int64_t{1}, std::int64_t{64}, columns / 2, columns, columns + 300}) {
    out.push_back({.k = k});
    out.push_back({.k = k, .values = false});
    out.push_back({.k = k, .order = TopkOrder::kByValue, .values = false, .dtype = DType::kInt64});
    out.push_back({.k = k, .order = TopkOrder::kUnsorted, .mapping = TopkMapping::kPageTable});
    out.push_back({.k = k, .mapping = TopkMapping::kPageTable, .values = false});
    out.push_back({.k = k, .mapping = TopkMapping::kRagged, .values = false, .dtype = DType::kInt64});
  }
  return out;
}

class IndexTopk : public ::testing::TestWithParam<std::tuple<IndexerShape, IndexerFormat>> {};

TEST_P(IndexTopk, EqualsLogitsThenTopk) {
  const auto& [shape, format] = GetParam();
  const IndexerCase c(shape, format);
  const Mapping mapping(shape);
  for (const Request& r : requests(shape.columns)) {
    const Selection want = run_unfused(c.args, mapping, r);
    EXPECT_EQ(run_fused(c.args, mapping, r), want) << r;
  }
}

TEST_P(IndexTopk, ARowDoesNotDependOnItsBatch) {
  const auto& [shape, format] = GetParam();
  const IndexerCase c(shape, format);
  const Mapping mapping(shape);
  const Request r{.k = 64};
  const Selection all = run_fused(c.args, mapping, r);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const Selection alone = run_fused(c.slice(row, row + 1), mapping, r);
    EXPECT_TRUE(std::equal(alone.indices.begin(), alone.indices.end(), all.indices.begin() + row * r.k)) << row;
    EXPECT_TRUE(std::equal(alone.values.begin(), alone.values.end(), all.values.begin() + row * r.k)) << row;
  }
}

// Positions of a late window through the page table: with page_starts = row_starts these are columns, as in topk().
TEST_P(IndexTopk, PageStartsAreAddedBeforeTranslationOnly) {
  const auto& [shape, format] = GetParam();
  const IndexerCase c(shape, format);
  const Mapping mapping(shape);
  std::vector<std::int32_t> stale(static_cast<std::size_t>(shape.rows));
  for (std::size_t r = 0; r < stale.size(); ++r) {
    const std::int32_t values[] = {0, 3, -4, INT32_MAX, INT32_MIN};
    stale[r] = values[r % 5];
  }
  const std::vector<std::int32_t>* const both[] = {&c.row_starts, &stale};
  for (const std::vector<std::int32_t>* starts : both) {
    const ConstTensorView view(starts->data(), DType::kInt32, {shape.rows});
    for (std::int64_t k : {std::int64_t{64}, shape.columns + 1}) {
      for (bool values : {true, false}) {  // without values a short row is not scored
        const Request r{.k = k, .mapping = TopkMapping::kPageTable, .values = values, .page_starts = view};
        EXPECT_EQ(run_fused(c.args, mapping, r), run_unfused(c.args, mapping, r)) << r;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, IndexTopk,
                         ::testing::Combine(::testing::ValuesIn(test::indexer_shapes()),
                                            ::testing::ValuesIn(test::indexer_formats())),
                         [](const auto& param_info) {
                           return std::get<0>(param_info.param).name + "_" +
                                  test::indexer_format_text(std::get<1>(param_info.param));
                         });

TEST(ThreadIndexTopk, ThreadsDoNotChangeAnything) {
  auto shapes = test::indexer_shapes();
  // Few rows and many columns: a column split with several steps, rows of two tables in a block, late starts.
  shapes.push_back(
      {.name = "split", .rows = 3, .heads = 4, .columns = 20000, .page_size = 64, .rows_a_table = 2, .starts = true});
  for (const IndexerShape& shape : shapes) {
    const IndexerCase c(shape, kFp8);
    const Mapping mapping(shape);
    for (const Request& r : {Request{.k = 64}, Request{.k = 500, .order = TopkOrder::kByValue}}) {
      const Selection one = run_fused(c.args, mapping, r, 1);
      for (int threads : {0, 2, 4, 16})
        EXPECT_EQ(run_fused(c.args, mapping, r, threads), one) << shape << " " << threads;
    }
  }
}

// Window [6, 9) of a request whose table is pages 5, 2, 7 of 4 entries: columns 6, 7, 8 are entries 2 and 3 of page 2
// and entry 0 of page 7; without page_starts positions 0 to 2 of page 5 would come out.
TEST(IndexTopkExample, PageStartsTranslateColumns) {
  IndexerCase c({.name = "p", .rows = 1, .heads = 2, .columns = 12, .starts = true}, kFp8);
  c.row_starts = {6};
  c.row_ends = {9};
  const std::int32_t table[] = {5, 2, 7};
  std::int32_t indices[] = {-9, -9, -9, -9};
  IndexTopkArgs args;
  args.score = c.args;
  args.k = 4;
  args.indices = TensorView(indices, DType::kInt32, {1, 4});
  args.mapping = TopkMapping::kPageTable;
  args.mapping_page_table = ConstTensorView(table, DType::kInt32, {1, 3});
  args.mapping_page_size = 4;
  args.page_starts = c.args.row_starts;
  args.num_threads = 1;
  Workspace workspace(index_topk_workspace_bytes(args));
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  index_topk(args);
  EXPECT_EQ(std::vector<std::int32_t>(indices, indices + 4), (std::vector<std::int32_t>{10, 11, 28, -1}));
  args.page_starts = {};
  index_topk(args);
  EXPECT_EQ(std::vector<std::int32_t>(indices, indices + 4), (std::vector<std::int32_t>{20, 21, 22, -1}));
}

// Equal scores everywhere: the lowest positions win, on both sides of segments and chunks.
TEST(IndexTopkExample, TiesGoToTheLowerPosition) {
  IndexerCase c(
      {.name = "ties", .rows = 2, .heads = 8, .columns = 1500, .page_size = 64, .rows_a_table = 2, .full = true}, kFp8);
  std::fill(c.weights.begin(), c.weights.end(), 0.0F);  // every score is zero
  c.row_ends = {1500, 1000};
  const Selection got = run_fused(c.args, Mapping(c.shape), {.k = 300});
  for (std::int64_t i = 0; i < 600; ++i) EXPECT_EQ(got.indices[static_cast<std::size_t>(i)], i % 300);
}

// 4096 x 262144 columns would be 4 GiB of logits; the workspace neither grows with rows nor with columns.
TEST(IndexTopkMemory, WorkspaceIsBounded) {
  const auto bytes = [](std::int64_t rows, std::int64_t columns, std::int64_t k) {
    static std::uint8_t byte;
    IndexTopkArgs args;
    args.score.index_q = ConstTensorView(&byte, DType::kUInt8, {rows, 64, 128});
    args.score.index_weights = ConstTensorView(&byte, DType::kFloat32, {rows, 64});
    args.score.index_k = {&byte, CacheLayout::kIndexerFp8, 128, 1, columns, 132 * columns, 1.0F, {}};
    args.score.row_ends = ConstTensorView(&byte, DType::kInt32, {rows});
    args.score.max_columns = columns;
    args.k = k;
    args.indices = TensorView(&byte, DType::kInt32, {rows, k});
    args.num_threads = 4;
    return index_topk_workspace_bytes(args);
  };
  EXPECT_EQ(bytes(4096, 262144, 2048), bytes(8192, 1048576, 2048));
  EXPECT_LT(bytes(4096, 262144, 2048), std::size_t{64} << 20);
  EXPECT_EQ(bytes(1, 262144, 2048), bytes(1, 1048576, 2048));
  EXPECT_EQ(bytes(0, 262144, 2048), 0U);
}

TEST(IndexTopkMemory, NoAllocationOnOneThread) {
  const IndexerCase c({.name = "alloc", .rows = 40, .heads = 9, .columns = 700, .page_size = 64, .rows_a_table = 4},
                      kFp8);
  std::vector<std::int32_t> indices(40 * 64);
  IndexTopkArgs args;
  args.score = c.args;
  args.k = 64;
  args.indices = TensorView(indices.data(), DType::kInt32, {40, 64});
  args.num_threads = 1;
  Workspace workspace(index_topk_workspace_bytes(args));
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  const test::AllocationCounter counter;
  index_topk(args);
  EXPECT_EQ(counter.count(), 0);
}

// A call leaves nothing in the workspace that the next one could trip over.
TEST(IndexTopkMemory, WorkspaceIsReusedAcrossShapes) {
  const IndexerCase big({.name = "a", .rows = 40, .heads = 8, .columns = 700, .page_size = 64}, kFp8);
  const IndexerCase small({.name = "b", .rows = 2, .heads = 16, .columns = 500},
                          {IndexFormat::kMxfp4, CacheLayout::kIndexerMxfp4});
  std::vector<std::int32_t> indices(40 * 64);
  const auto prepare = [&](const IndexerCase& c) {
    IndexTopkArgs args;
    args.score = c.args;
    args.k = 64;
    args.indices = TensorView(indices.data(), DType::kInt32, {c.shape.rows, 64});
    args.num_threads = 1;
    return args;
  };
  IndexTopkArgs a = prepare(big);
  IndexTopkArgs b = prepare(small);
  Workspace workspace(std::max(index_topk_workspace_bytes(a), index_topk_workspace_bytes(b)));
  a.workspace = b.workspace = workspace.data();
  a.workspace_bytes = b.workspace_bytes = workspace.size();
  index_topk(a);
  index_topk(b);
  std::vector<std::int64_t> got(indices.begin(), indices.begin() + 2 * 64);
  EXPECT_EQ(got, run_unfused(small.args, Mapping(small.shape), {.k = 64, .values = false}).indices);
}

TEST(IndexTopkRules, EveryRowIsReachable) {
  using indexer::choose_index_topk_rule;
  EXPECT_EQ(&choose_index_topk_rule(64, 100000, 8), &indexer::kIndexTopkRules[0]);
  EXPECT_EQ(&choose_index_topk_rule(2, 2048, 8), &indexer::kIndexTopkRules[1]);
  EXPECT_EQ(&choose_index_topk_rule(2, 100000, 8), &indexer::kIndexTopkRules[2]);
  EXPECT_EQ(indexer::choose_row_block(512, 1), 32);
  EXPECT_EQ(indexer::choose_row_block(512, 64), 4);
  EXPECT_EQ(indexer::choose_row_block(3, 8), 1);
}

TEST(IndexTopkError, Texts) {
  const IndexerCase c({.name = "e", .rows = 2, .heads = 8, .columns = 100, .page_size = 64}, kFp8);
  std::vector<std::int32_t> memory(4096);
  IndexTopkArgs good;
  good.score = c.args;
  good.k = 10;
  good.indices = TensorView(memory.data(), DType::kInt32, {2, 10});
  good.num_threads = 1;
  Workspace workspace(index_topk_workspace_bytes(good));
  good.workspace = workspace.data();
  good.workspace_bytes = workspace.size();
  index_topk(good);
  const auto fails = [&](const std::string& text, const auto& change) {
    IndexTopkArgs args = good;
    change(args);
    EXPECT_TRUE(test::throws(Status::kInvalidArgument, "index_topk: " + text, [&] { index_topk(args); }));
  };
  void* data = memory.data();
  fails("row_ends is absent, must be int32 [2]", [](IndexTopkArgs& a) { a.score.row_ends = {}; });
  fails("k is -1, must be in [0, 2147483647]", [](IndexTopkArgs& a) { a.k = -1; });
  fails("indices is int32 [2, 10], must be int32 or int64 [2, 11]", [](IndexTopkArgs& a) { a.k = 11; });
  fails("values is bf16 [2, 10], must be fp32 [2, 10]", [&](IndexTopkArgs& a) {
    a.values = TensorView(data, DType::kBFloat16, {2, 10});
  });
  fails("order is 5, must be kPosition, kUnsorted or kByValue",
        [](IndexTopkArgs& a) { a.order = static_cast<TopkOrder>(5); });
  fails("mapping is 5, must be kNone, kPageTable or kRagged",
        [](IndexTopkArgs& a) { a.mapping = static_cast<TopkMapping>(5); });
  fails("mapping_page_table is absent, must be int32 [any, any]",
        [](IndexTopkArgs& a) { a.mapping = TopkMapping::kPageTable; });
  fails("mapping_page_size is 0, must be at least 1", [&](IndexTopkArgs& a) {
    a.mapping = TopkMapping::kPageTable;
    a.mapping_page_table = ConstTensorView(data, DType::kInt32, {2, 4});
  });
  fails("page_starts is int32 [3], must be int32 [2]", [&](IndexTopkArgs& a) {
    a.mapping = TopkMapping::kPageTable;
    a.mapping_page_table = ConstTensorView(data, DType::kInt32, {2, 4});
    a.mapping_page_size = 4;
    a.page_starts = ConstTensorView(data, DType::kInt32, {3});
  });
  fails("ragged_offsets is absent, must be int32 or int64 [2]",
        [](IndexTopkArgs& a) { a.mapping = TopkMapping::kRagged; });
  const std::string needed = std::to_string(workspace.size());
  fails("workspace has " + std::to_string(workspace.size() - 1) + " bytes, must have at least " + needed +
            " (index_topk_workspace_bytes)",
        [](IndexTopkArgs& a) { --a.workspace_bytes; });
  fails("workspace is null, must have at least " + needed + " bytes", [](IndexTopkArgs& a) { a.workspace = nullptr; });
  fails("workspace is 4 bytes past a multiple of 64, must be 64-byte aligned",
        [](IndexTopkArgs& a) { a.workspace = static_cast<char*>(a.workspace) + 4; });
  IndexTopkArgs args = good;
  args.k = -1;
  EXPECT_TRUE(test::throws(Status::kInvalidArgument, "index_topk: k is -1, must be in [0, 2147483647]",
                           [&] { index_topk_workspace_bytes(args); }));
}

}  // namespace
}  // namespace tamis
