// The lines of the contract that are not "which k": windows, strides, alignment, mappings, order, tails, workspace.

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "random.hpp"
#include "topk_check.hpp"

namespace tamis::test {
namespace {

using Ints = std::vector<std::int32_t>;

ConstTensorView view_of(const Ints& ints) {
  return {ints.data(), DType::kInt32, {static_cast<std::int64_t>(ints.size())}};
}

std::vector<std::int64_t> winners(std::vector<float> row, std::int64_t k, TopkOrder order = TopkOrder::kPosition) {
  TopkCall c(1, static_cast<std::int64_t>(row.size()), k);
  c.set_row(0, row);
  c.args.order = order;
  c.run();
  return c.index_row(0);
}

TEST(TopkContract, WorkedExamples) {
  using Row = std::vector<std::int64_t>;
  const float inf = kTopkInf, nan = kTopkNan;
  EXPECT_EQ(winners({3, 1, 2}, 2), (Row{0, 2}));
  EXPECT_EQ(winners({0.5F, -inf, -inf, -inf, -inf}, 3), (Row{0, 1, 2}));
  EXPECT_EQ(winners({0.5F, nan, nan, nan, nan}, 3), (Row{0, 1, 2}));
  EXPECT_EQ(winners({nan, -inf, nan, 1}, 2), (Row{1, 3}));  // NaN < -inf
  EXPECT_EQ(winners({-0.0F, 0.0F, -0.0F}, 1), (Row{0}));    // -0 equals +0, so position decides
  EXPECT_EQ(winners({0.0F, 1e-45F, -0.0F}, 1), (Row{1}));   // subnormals are not zero
  EXPECT_EQ(winners({1, inf, nan, inf, 2}, 3), (Row{1, 3, 4}));
  EXPECT_EQ(winners({1, 2}, 4), (Row{0, 1, -1, -1}));
  EXPECT_EQ(winners({1, nan, 3, 2, 3}, 5, TopkOrder::kByValue), (Row{2, 4, 3, 0, 1}));
  EXPECT_EQ(winners({}, 2), (Row{-1, -1}));
}

TEST(TopkContract, RowWindowsAreClampedAndIndicesRelativeToTheStart) {
  const Ints starts = {0, 7, 1000, -5, INT_MIN, 90, 5000, INT_MAX, 200, 30};
  const Ints ends = {7, 1000, 1003, 50, INT_MAX, 80, 6000, INT_MIN, 200, -1};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (TopkAlgorithm algorithm : topk_test_algorithms()) {
      TopkCall c(10, 1003, 5, {.dtype = dtype});
      c.fill("normal");
      c.args.row_starts = view_of(starts);
      c.args.row_ends = view_of(ends);
      c.args.algorithm = algorithm;
      c.run();
      expect_as_reference(c);
      for (std::int64_t empty : {5, 6, 7, 8, 9}) {
        EXPECT_EQ(c.index_row(empty), std::vector<std::int64_t>(5, -1));
        EXPECT_TRUE(std::isnan(c.certificate_row(empty).threshold));
      }
    }
  }
}

TEST(TopkContract, ScoresOutsideTheWindowNeverMatter) {
  for (float outside : {kTopkInf, kTopkNan, 1e30F}) {
    TopkCall c(3, 9000, 300);
    c.fill("normal");
    const Ints starts = {1, 100, 4000}, ends = {8999, 5100, 4200};
    for (std::int64_t r = 0; r < 3; ++r) {
      std::vector<float> row = make_topk_row(topk_distribution("normal"), 9000, r);
      for (std::int64_t i = 0; i < 9000; ++i) {
        if (i < starts[static_cast<std::size_t>(r)] || i >= ends[static_cast<std::size_t>(r)]) {
          row[static_cast<std::size_t>(i)] = outside;
        }
      }
      c.set_row(r, row);
    }
    c.args.row_starts = view_of(starts);
    c.args.row_ends = view_of(ends);
    c.run();
    expect_as_reference(c);
  }
}

TEST(TopkContract, NegativeAndStaleLengthsGiveEmptyRows) {
  TopkCall c(8, 16384, 512);
  c.fill("normal");
  const Ints ends = {9000, 9000, 16384, INT_MAX, 1, -1, 0, INT_MIN};
  c.args.row_ends = view_of(ends);
  c.run();
  expect_as_reference(c);
}

// Strides, padding and base addresses that are a multiple of nothing.
TEST(TopkContract, AnyRowStrideAndAnyAddress) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (DType index_dtype : {DType::kInt32, DType::kInt64}) {
      for (std::size_t misaligned : {0, 1, 2, 4, 6, 8, 16, 31}) {
        TopkCall c(3, 4501, 257,
                   {.dtype = dtype,
                    .index_dtype = index_dtype,
                    .row_stride = 4603,
                    .output_padding = 5,
                    .misaligned = misaligned});
        c.fill("quantised");  // the 102 scores between rows are NaN, then:
        const std::vector<float> lure(102, 1e30F);
        for (std::int64_t r = 0; r < 3; ++r) {
          encode_topk_scores(lure, dtype, c.scores.data() + (r * 4603 + 4501) * dtype_bytes(dtype));
        }
        c.run();
        expect_as_reference(c);
        // The padding of the outputs keeps its poison.
        for (std::int64_t r = 0; r < 3; ++r) {
          const std::int64_t index_bytes = dtype_bytes(index_dtype);
          for (std::int64_t i = 0; i < 5 * index_bytes; ++i) {
            ASSERT_EQ(c.indices.data()[(r * 262 + 257) * index_bytes + i], 0xC7);
          }
        }
      }
    }
  }
}

TEST(TopkContract, OneRowMayCarryAnyStride) {
  TopkCall c(1, 100, 10);
  c.fill("normal");
  c.args.scores = ConstTensorView(c.scores.data(), DType::kFloat32, {1, 100}, {-12345, 1});
  c.run();
  expect_as_reference(c);
}

TEST(TopkContract, TiesGoToTheLowerPositionWhateverTheBatch) {
  const std::vector<float> row = make_topk_row(topk_distribution("quantised"), 32768, 5);
  std::vector<std::int64_t> alone;
  for (std::int64_t rows : {1, 32, 33}) {
    TopkCall c(rows, 32768, 512);
    for (std::int64_t r = 0; r < rows; ++r) c.set_row(r, make_topk_row(topk_distribution("normal"), 32768, r));
    for (std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) c.set_row(r, row);
    c.run();
    if (rows == 1) {
      alone = c.index_row(0);
      expect_as_reference(c);
    }
    for (std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) EXPECT_EQ(c.index_row(r), alone);
  }
}

TEST(TopkContract, TieOverflowKeepsAllWinners) {
  for (float zero : {0.0F, -0.0F}) {
    std::vector<float> row(8320, 0.0F);
    for (std::size_t i = 0; i < row.size(); i += 2) row[i] = zero;
    Random random;
    std::vector<std::int64_t> positives;
    while (positives.size() < 100) {
      const std::int64_t at = random.below(8320);
      if (row[static_cast<std::size_t>(at)] > 0.0F) continue;
      row[static_cast<std::size_t>(at)] = 1.0F + random.uniform(0.0F, 1.0F);
      positives.push_back(at);
    }
    TopkCall c(1, 8320, 2048);
    c.set_row(0, row);
    c.run();
    expect_as_reference(c);
    const std::vector<std::int64_t> got = c.index_row(0);
    for (std::int64_t at : positives) EXPECT_TRUE(std::binary_search(got.begin(), got.end(), at));
    EXPECT_EQ(c.certificate_row(0).num_above, 100);
    EXPECT_EQ(c.certificate_row(0).num_equal, 8220);
    EXPECT_EQ(c.certificate_row(0).num_equal_won, 1948);
  }
}

TEST(TopkContract, KPassedWidthGivesEveryPositionThenMinusOne) {
  std::vector<TopkAlgorithm> algorithms = topk_test_algorithms();
  algorithms.push_back(TopkAlgorithm::kIdentity);
  for (TopkAlgorithm algorithm : algorithms) {
    TopkCall c(2, 705, 1000);
    c.fill("normal");
    c.args.algorithm = algorithm;
    c.run();
    std::vector<std::int64_t> expected(1000, -1);
    std::iota(expected.begin(), expected.begin() + 705, 0);
    EXPECT_EQ(c.index_row(0), expected);
    EXPECT_EQ(c.index_row(1), expected);
  }
}

TEST(TopkContract, NoRowsAndNoK) {
  TopkCall none(0, 100, 10);
  none.run();
  TopkCall no_k(2, 100, 0);
  no_k.fill("normal");
  no_k.args.order = TopkOrder::kByValue;
  EXPECT_EQ(topk_workspace_bytes(no_k.args), 0U);
  no_k.run();
  expect_as_reference(no_k);
}

TEST(TopkContract, OptionalOutputsMayBeAbsent) {
  TopkCall c(2, 5000, 100);
  c.fill("normal");
  c.args.values = {};
  c.args.certificate = {};
  c.run();
  expect_as_reference(c);
}

// --- mappings ---

TEST(TopkContract, PageTableTranslatesAndMarksWhatIsMissing) {
  for (DType index_dtype : {DType::kInt32, DType::kInt64}) {
    for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
      TopkCall c(6, 300, 40, {.index_dtype = index_dtype});
      c.fill("normal");
      Random random;
      Ints pages(3 * 8);
      for (auto& page : pages) page = static_cast<std::int32_t>(random.between(-1, 5000));
      const Ints tables = {0, 2, 1, -1, 3, INT_MIN};  // the last three do not exist
      const Ints page_starts = {0, 5, -100, 0, 0, 0};
      const Ints starts = {0, 17, 0, 0, 0, 0};
      c.args.mapping = TopkMapping::kPageTable;
      // 8 pages of 32: positions from 256 on have no page.
      c.args.page_table = ConstTensorView(pages.data(), DType::kInt32, {3, 7}, {8, 1});
      c.args.page_size = 32;
      c.args.row_to_table = view_of(tables);
      c.args.page_starts = view_of(page_starts);
      c.args.row_starts = view_of(starts);
      c.args.order = order;
      c.run();
      expect_as_reference(c);
      for (std::int64_t r : {3, 4, 5}) EXPECT_EQ(c.index_row(r), std::vector<std::int64_t>(40, -1));
    }
  }
}

TEST(TopkContract, RowsUseTheirOwnTableByDefault) {
  TopkCall c(3, 64, 8);
  c.fill("normal");
  const Ints pages = {10, 20};  // tables of one page of 64 for two rows; the third row has none
  c.args.mapping = TopkMapping::kPageTable;
  c.args.page_table = ConstTensorView(pages.data(), DType::kInt32, {2, 1});
  c.args.page_size = 64;
  c.run();
  expect_as_reference(c);
  EXPECT_EQ(c.index(1, 0) / 64, 20);
  EXPECT_EQ(c.index_row(2), std::vector<std::int64_t>(8, -1));
}

TEST(TopkContract, SlotsThatDoNotFitInt32BecomeMinusOne) {
  const Ints pages = {1 << 26, (1 << 25) - 1};
  for (DType index_dtype : {DType::kInt32, DType::kInt64}) {
    TopkCall c(1, 128, 128, {.index_dtype = index_dtype});
    c.fill("normal");
    c.args.mapping = TopkMapping::kPageTable;
    c.args.page_table = ConstTensorView(pages.data(), DType::kInt32, {1, 2});
    c.args.page_size = 64;
    c.run();
    expect_as_reference(c);
    EXPECT_EQ(c.index(0, 3), index_dtype == DType::kInt64 ? (std::int64_t{1} << 32) + 3 : -1);
    EXPECT_EQ(c.index(0, 127), INT_MAX);
  }
}

TEST(TopkContract, RaggedOffsetsAreAdded) {
  TopkCall c(3, 1000, 20);
  c.fill("normal");
  const Ints offsets = {0, 70000, -3};
  c.args.mapping = TopkMapping::kRagged;
  c.args.ragged_offsets = view_of(offsets);
  c.run();
  expect_as_reference(c);

  TopkCall wide(2, 1000, 1001, {.index_dtype = DType::kInt64});
  wide.fill("normal");
  const std::vector<std::int64_t> far = {std::int64_t{1} << 40, 0};
  wide.args.mapping = TopkMapping::kRagged;
  wide.args.ragged_offsets = ConstTensorView(far.data(), DType::kInt64, {2});
  wide.run();
  expect_as_reference(wide);
  EXPECT_EQ(wide.index(0, 1), (std::int64_t{1} << 40) + 1);
  EXPECT_EQ(wide.index(0, 1000), -1);  // past the winners nothing is added

  // A stale offset of a padding row: what does not fit is -1, at either end and in either width.
  const std::vector<std::int64_t> huge = {INT64_MAX, INT64_MIN};
  wide.args.ragged_offsets = ConstTensorView(huge.data(), DType::kInt64, {2});
  wide.run();
  EXPECT_EQ(wide.index(0, 0), INT64_MAX);
  for (std::int64_t i = 1; i < 1001; ++i) ASSERT_EQ(wide.index(0, i), -1) << i;
  EXPECT_EQ(wide.index(1, 999), INT64_MIN + 999);
}

// --- next_n ---

TEST(TopkRowEnds, ClampsBeforeDividing) {
  const Ints lens = {2, 1, 0, 4, 5};
  Ints ends(20);
  topk_row_ends(lens, 4, 1, ends);
  EXPECT_EQ(ends, (Ints{0, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4, 2, 3, 4, 5}));
  Ints three(3);
  topk_row_ends(Ints{129}, 3, 4, three);
  EXPECT_EQ(three, (Ints{31, 32, 32}));
  topk_row_ends(Ints{130}, 3, 4, three);
  EXPECT_EQ(three, (Ints{32, 32, 32}));
}

TEST(TopkRowEnds, EveryRatioAndNextN) {
  for (std::int64_t ratio : {0, 1, 4, 128}) {
    for (std::int64_t next_n = 1; next_n <= 4; ++next_n) {
      for (std::int32_t len : {INT_MIN, -3, 0, 1, 2, 3, 4, 5, 16, 17, 127, 128, 131, INT_MAX}) {
        Ints ends(static_cast<std::size_t>(next_n));
        topk_row_ends(Ints{len}, next_n, ratio, ends);
        for (std::int64_t i = 0; i < next_n; ++i) {
          const double raw =
              std::max(0.0, static_cast<double>(len) - static_cast<double>(next_n) + 1.0 + static_cast<double>(i));
          EXPECT_EQ(ends[static_cast<std::size_t>(i)], std::floor(raw / std::max(1.0, static_cast<double>(ratio))));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tamis::test
