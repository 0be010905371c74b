// Infinities and NaN in keys, queries, scales and weights: the formula, for every number of heads. Heads that only fill
// up a register block are no heads: 0 * inf would make NaN of them.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/float_formats.hpp"
#include "indexer/reference.hpp"
#include "support/indexer_cases.hpp"
#include "support/indexer_run.hpp"
#include "support/simd_targets.hpp"
#include "tamis/indexer.hpp"

namespace tamis {
namespace {

using test::IndexerCase;
using test::IndexerFormat;
using test::run_index_logits;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Around the tiles of 4 and 8 heads and the chunks of 64.
constexpr std::int64_t kHeadCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 60, 63, 64, 65, 70, 72};

void put(std::uint8_t* at, bool bf16, float value) {
  if (bf16) {
    const std::uint16_t bits = core::float_to_bf16(value);
    std::memcpy(at, &bits, sizeof(bits));
  } else {
    std::memcpy(at, &value, sizeof(value));
  }
}

// Special values in some keys of a gathered case, one kind after the other; the rest stays finite.
void spoil_keys(IndexerCase& c) {
  const float values[] = {kInf, -kInf, kNan};
  const std::int64_t columns = c.shape.columns;
  for (std::int64_t key = 0; key < 12; ++key) {
    const std::int64_t column = 3 * key;
    const std::int64_t dim = 11 * key;
    const float value = values[key % 3];
    switch (c.format.layout) {
      case CacheLayout::kFloat32: put(c.keys.data() + 4 * (128 * column + dim), false, value); break;
      case CacheLayout::kBFloat16: put(c.keys.data() + 2 * (128 * column + dim), true, value); break;
      case CacheLayout::kIndexerFp8:
        if (key < 6) c.keys[static_cast<std::size_t>(128 * column + dim)] = key % 2 == 0 ? 0x7F : 0xFF;
        else put(c.keys.data() + 128 * columns + 4 * column, false, value);
        break;
      default:
        // Scale 255 is infinity. A code of 0 makes NaN of it; without one, keys of a single sign stay infinite.
        c.keys[static_cast<std::size_t>(64 * columns + 4 * column + key % 4)] = 255;
        if (key >= 4) std::fill_n(c.keys.begin() + 64 * column, 64, key % 2 == 0 ? 0x11 : 0x99);
    }
  }
}

// A special value in the last head of row 1, and weights of the last head in rows 2 to 4.
void spoil_queries(IndexerCase& c) {
  const std::int64_t heads = c.shape.heads;
  const std::int64_t head = 2 * heads - 1;
  switch (c.format.format) {
    case IndexFormat::kFloat32: put(c.q.data() + 4 * (128 * head + 5), false, kInf); break;
    case IndexFormat::kBFloat16: put(c.q.data() + 2 * (128 * head + 5), true, kInf); break;
    case IndexFormat::kFp8: c.q[static_cast<std::size_t>(128 * head + 5)] = 0x7F; break;
    case IndexFormat::kMxfp4:
      c.q_scale[static_cast<std::size_t>(4 * head + 1)] = 255;
      std::fill_n(c.q.begin() + 64 * head, 64, 0x11);
      break;
  }
  c.weights[static_cast<std::size_t>(3 * heads - 1)] = kInf;
  c.weights[static_cast<std::size_t>(4 * heads - 1)] = kNan;
  c.weights[static_cast<std::size_t>(5 * heads - 1)] = 0.0F;  // 0 * inf of a head that is there is NaN
}

void expect_formula(const IndexerCase& c, const std::string& where) {
  const auto bits = run_index_logits(c.args);
  int special = 0;
  int finite = 0;
  for (std::int64_t row = 0; row < c.shape.rows; ++row) {
    const auto want = indexer::reference_index_scores(c.args, row);
    for (std::int64_t j = 0; j < c.shape.columns; ++j) {
      const float got = std::bit_cast<float>(bits[static_cast<std::size_t>(row * c.shape.columns + j)]);
      const indexer::ReferenceScore& score = want[static_cast<std::size_t>(j)];
      const std::string at = where + " row " + std::to_string(row) + " column " + std::to_string(j);
      if (std::isnan(score.score)) {
        ASSERT_TRUE(std::isnan(got)) << at << ": " << got << ", expected NaN";
      } else if (std::isinf(score.score)) {
        ASSERT_EQ(got, static_cast<float>(score.score)) << at;
      } else {
        ASSERT_TRUE(std::isfinite(got)) << at << ": " << got << ", expected " << score.score;
        // As in index_logits_test.cpp; infinite or NaN where a term that ReLU drops is.
        const double bound = 1.01 * (132.0 + static_cast<double>(c.shape.heads)) * 0x1p-24 * score.magnitude;
        if (std::isfinite(bound)) {
          ASSERT_LE(std::abs(static_cast<double>(got) - score.score), bound) << at;
        }
        ++finite;
        continue;
      }
      ++special;
    }
  }
  EXPECT_GT(special, 0) << where;
  EXPECT_GT(finite, 0) << where;
}

class IndexNonfinite : public ::testing::TestWithParam<IndexerFormat> {};

TEST_P(IndexNonfinite, KeysFollowTheFormulaForEveryHeadCount) {
  for (std::int64_t heads : kHeadCounts) {
    IndexerCase c({.name = "keys", .rows = 2, .heads = heads, .columns = 40, .full = true}, GetParam());
    spoil_keys(c);
    expect_formula(c, std::to_string(heads) + " heads");
  }
}

TEST_P(IndexNonfinite, QueriesAndWeightsFollowTheFormulaForEveryHeadCount) {
  for (std::int64_t heads : kHeadCounts) {
    IndexerCase c({.name = "queries", .rows = 6, .heads = heads, .columns = 40, .full = true}, GetParam());
    spoil_queries(c);
    expect_formula(c, std::to_string(heads) + " heads");
    spoil_keys(c);
    expect_formula(c, std::to_string(heads) + " heads, keys too");
  }
}

TEST_P(IndexNonfinite, EveryInstructionSetFollowsTheFormula) {
  test::for_each_simd_target([&](const char* target) {
    for (std::int64_t heads : {1, 3, 4, 5, 7, 8, 9, 65}) {
      IndexerCase c({.name = "targets", .rows = 6, .heads = heads, .columns = 40, .full = true}, GetParam());
      spoil_keys(c);
      spoil_queries(c);
      expect_formula(c, std::string(target) + " " + std::to_string(heads) + " heads");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, IndexNonfinite, ::testing::ValuesIn(test::indexer_formats()),
                         [](const auto& param_info) { return test::indexer_format_text(param_info.param); });

// Queries and weights all 1, keys {inf, 0, ..}, {5, 0, ..}, {-inf, 0, ..}: inf, 5 a head, and ReLU's 0.
TEST(IndexNonfiniteExample, InfiniteKeys) {
  for (std::int64_t heads : kHeadCounts) {
    const std::vector<float> ones(static_cast<std::size_t>(heads * 128), 1.0F);
    std::vector<float> keys(std::size_t{3} * 128, 0.0F);
    keys[0] = kInf;
    keys[128] = 5.0F;
    keys[256] = -kInf;
    const std::int32_t end = 3;
    IndexScoreArgs score;
    score.format = IndexFormat::kFloat32;
    score.index_q = ConstTensorView(ones.data(), DType::kFloat32, {1, heads, 128});
    score.index_weights = ConstTensorView(ones.data(), DType::kFloat32, {1, heads});
    score.index_k = {keys.data(), CacheLayout::kFloat32, 128, 1, 3, 3 * 512, 1.0F, {}};
    score.row_ends = ConstTensorView(&end, DType::kInt32, {1});
    score.max_columns = 3;
    const float want[] = {kInf, 5.0F * static_cast<float>(heads), 0.0F};
    const auto bits = run_index_logits(score);
    for (std::size_t j = 0; j < 3; ++j) EXPECT_EQ(std::bit_cast<float>(bits[j]), want[j]) << heads << " heads";

    std::vector<std::int32_t> indices(3, -9);
    std::vector<float> values(3);
    IndexTopkArgs args;
    args.score = score;
    args.k = 3;
    args.indices = TensorView(indices.data(), DType::kInt32, {1, 3});
    args.values = TensorView(values.data(), DType::kFloat32, {1, 3});
    args.order = TopkOrder::kByValue;
    args.num_threads = 1;
    test::Workspace workspace(index_topk_workspace_bytes(args));
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.size();
    index_topk(args);
    EXPECT_EQ(indices, (std::vector<std::int32_t>{0, 1, 2})) << heads << " heads";
    EXPECT_EQ(values, std::vector<float>(std::begin(want), std::end(want))) << heads << " heads";
  }
}

}  // namespace
}  // namespace tamis
