// The parts of sparse_mla(): threads, the table that cuts a call into pieces, scratch, and the exponential.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "simd_targets.hpp"
#include "sparse_mla/cpu/attend.hpp"
#include "sparse_mla/rules.hpp"
#include "sparse_mla_cases.hpp"

namespace tamis {
namespace {

using test::SlotKind;
using test::SparseMlaData;

constexpr auto kV4 = CacheLayout::kFp8Mla584;

TEST(ThreadSparseMla, GivesTheSameBitsOnAnyNumberOfThreads) {
  // One row whose heads are shared out, a few rows, many rows.
  for (const std::int64_t rows : {1, 3, 9, 70}) {
    SparseMlaData data({"", rows, 70, 512, {kV4, 64, 2, 100, SlotKind::kHoles, true}, {kV4, 2, 30, 20}});
    data.run();
    const auto out = data.out.copy();
    const auto lse = data.lse.copy();
    const auto max_logits = data.max_logits.copy();
    for (const int num_threads : {2, 3, 8, 0}) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        data.args.num_threads = num_threads;
        data.out.fill(0xFF);
        data.lse.fill(0xFF);
        data.max_logits.fill(0xFF);
        data.run();
        EXPECT_EQ(out, data.out.copy()) << rows << " rows, " << num_threads << " threads";
        EXPECT_EQ(0, std::memcmp(lse.data(), data.lse.data(), data.lse.size_bytes()));
        EXPECT_EQ(0, std::memcmp(max_logits.data(), data.max_logits.data(), data.max_logits.size_bytes()));
      }
    }
  }
}

TEST(SparseMlaRules, ReachesEveryRowOfTheTable) {
  using namespace sparse_mla_detail;
  std::set<std::string> reached;
  for (const std::int64_t rows : {0, 1, 8, 31, 32, 1000}) reached.insert(choose_split(rows, 8).why);
  EXPECT_EQ(reached.size(), std::size(kSplitRules));
}

TEST(SparseMlaRules, CoversEveryHeadOnce) {
  using namespace sparse_mla_detail;
  for (const std::int64_t heads : {0, 1, 15, 16, 17, 64, 128, 130}) {
    for (const std::int64_t rows : {1, 8, 100}) {
      for (const int workers : {1, 2, 8, 64}) {
        const Split split = split_row(rows, heads, workers);
        EXPECT_GE(split.heads_per_piece * split.pieces_per_row, heads);
        EXPECT_LT(split.heads_per_piece * (split.pieces_per_row - 1), std::max<std::int64_t>(heads, 1));
        if (workers == 1) {
          EXPECT_LE(split.pieces_per_row, 1);  // keys are decoded once
        }
      }
    }
  }
}

TEST(SparseMlaExp, IsWithinItsBoundAndZeroFarDown) {
  using sparse_mla_detail::exp_of_weights;
  test::for_each_simd_target([](const char* name) {
    SCOPED_TRACE(name);
    // Every 61st float of [-90, -0], by bits: 18 million numbers would take too long under a sanitizer.
    constexpr std::uint32_t kLast = std::bit_cast<std::uint32_t>(90.0F);
    constexpr std::size_t kBatch = 4096;
    std::vector<float> x(kBatch), y(kBatch);
    double worst = 0;
    std::uint32_t magnitude = 0;
    while (magnitude <= kLast) {
      for (std::size_t i = 0; i < kBatch; ++i, magnitude += magnitude < 0x33000000U ? 6'100'003U : 61U) {
        x[i] = -std::bit_cast<float>(std::min(magnitude, kLast));
      }
      exp_of_weights(x.data(), y.data(), static_cast<std::int64_t>(kBatch));
      for (std::size_t i = 0; i < kBatch; ++i) {
        if (x[i] < -87.0F) {
          ASSERT_EQ(y[i], 0.0F) << x[i];
          continue;
        }
        const double want = std::exp(static_cast<double>(x[i]));
        const double ulp = std::ldexp(1.0, std::ilogb(want) - 23);
        worst = std::max(worst, std::abs(y[i] - want) / ulp);
      }
    }
    EXPECT_LT(worst, test::target_has_fma(name) ? 1.0 : 1.25);
    ::testing::Test::RecordProperty(name, std::to_string(worst));
  });
}

TEST(SparseMlaExp, IsExactAtTheEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0.0F, -0.0F, -kInfinity, NAN, -1e30F, -88.0F, -1e-30F, -0x1p-126F}, y(16, 7.0F);
  x.resize(16, 0.0F);
  sparse_mla_detail::exp_of_weights(x.data(), y.data(), 16);
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], 0.0F);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(y[4], 0.0F);
  EXPECT_EQ(y[5], 0.0F);
  EXPECT_EQ(y[6], 1.0F);
  EXPECT_EQ(y[7], 1.0F);
}

}  // namespace
}  // namespace tamis
