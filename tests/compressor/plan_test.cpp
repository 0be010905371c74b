#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "compressor/rules.hpp"
#include "support/expect_error.hpp"
#include "support/random.hpp"
#include "tamis/compressor.hpp"

namespace tamis::test {
namespace {

using List = std::vector<std::int64_t>;
constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// The definition: some token of [start, start + count) completes an entry.
bool completes(std::int64_t start, std::int64_t count, std::int64_t ratio) {
  for (std::int64_t t = start; t < start + count; ++t) {
    if ((t + 1) % ratio == 0) return true;
  }
  return false;
}

TEST(CompressPlan, ExactStartsAgreeWithEnumeration) {
  for (const std::int64_t ratio : {1, 2, 3, 4, 128}) {
    for (std::int64_t start = 0; start <= 2 * ratio + 1; ++start) {
      for (std::int64_t count = 0; count <= 2 * ratio + 1; ++count) {
        const auto expected = completes(start, count, ratio) ? CompressPlan::kSome : CompressPlan::kNone;
        EXPECT_EQ(compress_plan(List{start}, List{count}, ratio), expected) << ratio << " " << start << " " << count;
      }
    }
  }
}

TEST(CompressPlan, BoundsAgreeWithEnumeration) {
  for (const std::int64_t ratio : {1, 2, 3, 4, 7}) {
    for (std::int64_t lo = 0; lo <= 2 * ratio; ++lo) {
      for (std::int64_t hi = lo; hi <= 4 * ratio; ++hi) {
        for (std::int64_t count = 0; count <= ratio + 1; ++count) {
          bool any = false;
          bool all = true;
          for (std::int64_t start = lo; start <= hi; ++start) {
            any |= completes(start, count, ratio);
            all &= completes(start, count, ratio);
          }
          const auto expected = all ? CompressPlan::kSome : any ? CompressPlan::kUnknown : CompressPlan::kNone;
          EXPECT_EQ(compress_plan(List{lo}, List{hi}, List{count}, ratio), expected)
              << "R " << ratio << " [" << lo << ", " << hi << "] + " << count;
        }
      }
    }
  }
}

TEST(CompressPlan, BatchesCombineTheirRequests) {
  Random random;
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t ratio = random.between(1, 9);
    List lo, hi, counts;
    bool certain = false;
    bool possible = false;
    for (std::int64_t i = random.between(0, 4); i > 0; --i) {
      lo.push_back(random.between(0, 30));
      hi.push_back(lo.back() + random.between(0, 5));
      counts.push_back(random.between(0, 4));
      bool all = true;
      for (std::int64_t s = lo.back(); s <= hi.back(); ++s) {
        possible |= completes(s, counts.back(), ratio);
        all &= completes(s, counts.back(), ratio);
      }
      certain |= all;
    }
    const auto expected = certain ? CompressPlan::kSome : possible ? CompressPlan::kUnknown : CompressPlan::kNone;
    EXPECT_EQ(compress_plan(lo, hi, counts, ratio), expected);
  }
}

TEST(CompressPlan, CasesThatWentWrongElsewhere) {
  const auto plan = [](std::int64_t s, std::int64_t q) { return compress_plan(List{s}, List{q}, 128); };
  EXPECT_EQ(plan(0, 127), CompressPlan::kNone);
  EXPECT_EQ(plan(0, 128), CompressPlan::kSome);
  EXPECT_EQ(plan(80, 80), CompressPlan::kSome);
  EXPECT_EQ(plan(120, 7), CompressPlan::kNone);
  EXPECT_EQ(plan(120, 8), CompressPlan::kSome);
  EXPECT_EQ(plan(126, 1), CompressPlan::kNone);
  EXPECT_EQ(plan(127, 1), CompressPlan::kSome);
  EXPECT_EQ(plan(128, 1), CompressPlan::kNone);
  EXPECT_EQ(plan(125, 4), CompressPlan::kSome);
  EXPECT_EQ(plan(250, 300), CompressPlan::kSome);
  // Four drafts from 124, one accepted: the truth is 125, the host only knows that it is at most 128.
  EXPECT_EQ(compress_plan(List{125}, List{128}, List{4}, 128), CompressPlan::kUnknown);
  // Only the last request of the batch crosses; padding requests contribute nothing, wherever they stand.
  EXPECT_EQ(compress_plan(List{0, 3, 127}, List{1, 1, 1}, 128), CompressPlan::kSome);
  EXPECT_EQ(compress_plan(List{127, 255, 0}, List{0, 0, 1}, 128), CompressPlan::kNone);
  EXPECT_EQ(compress_plan(List{0}, List{kHuge}, List{0}, 128), CompressPlan::kNone);
  EXPECT_EQ(compress_plan(List{}, List{}, 128), CompressPlan::kNone);
}

TEST(CompressPlan, CapturingIsUnknownWhateverTheStarts) {
  for (const std::int64_t start : {0, 1, 127}) {
    EXPECT_EQ(compress_plan(List{start}, List{1}, 128, true), CompressPlan::kUnknown);
    EXPECT_EQ(compress_plan(List{start}, List{start + 1}, List{1}, 128, true), CompressPlan::kUnknown);
  }
  EXPECT_EQ(compress_plan(List{}, List{}, 128, true), CompressPlan::kUnknown);
}

TEST(CompressPlan, StaleHugeNumbersDoNotOverflow) {
  EXPECT_EQ(compress_plan(List{kHuge}, List{kHuge}, 128), CompressPlan::kSome);  // 2^63 - 1 is 127 modulo 128
  EXPECT_EQ(compress_plan(List{kHuge - 1}, List{1}, 128), CompressPlan::kNone);
  EXPECT_EQ(compress_plan(List{0}, List{kHuge}, List{1}, 128), CompressPlan::kUnknown);
  EXPECT_EQ(compress_plan(List{5}, List{5}, kHuge), CompressPlan::kNone);
  EXPECT_EQ(compress_plan(List{kHuge}, List{kHuge}, kHuge), CompressPlan::kSome);
  EXPECT_EQ(compress_plan(List{kHuge, kHuge}, List{kHuge, kHuge}, List{kHuge, 1}, 1), CompressPlan::kSome);
  EXPECT_EQ(compress_plan(List{0}, List{kHuge}, List{kHuge}, kHuge), CompressPlan::kSome);
  EXPECT_EQ(compress_plan(List{kHuge - 1}, List{kHuge}, List{1}, 4), CompressPlan::kUnknown);
}

TEST(CompressPlan, ErrorsNameWhatCame) {
  const auto invalid = Status::kInvalidArgument;
  EXPECT_TRUE(
      throws(invalid, "compress_plan: compress_ratio is 0, must be >= 1", [] { compress_plan(List{0}, List{1}, 0); }));
  EXPECT_TRUE(throws(invalid, "compress_plan: 2 starts (upper bounds: 2) and 1 query_lens, must be equally many", [] {
    compress_plan(List{0, 1}, List{1}, 4);
  }));
  EXPECT_TRUE(throws(invalid, "compress_plan: 1 starts (upper bounds: 2) and 1 query_lens, must be equally many", [] {
    compress_plan(List{0}, List{0, 1}, List{1}, 4);
  }));
  EXPECT_TRUE(throws(invalid, "compress_plan: start[1] is -1, must be >= 0", [] {
    compress_plan(List{0, -1}, List{1, 1}, 4);
  }));
  EXPECT_TRUE(throws(invalid, "compress_plan: query_lens[0] is -2, must be >= 0",
                     [] { compress_plan(List{0}, List{-2}, 4, true); }));
  EXPECT_TRUE(throws(invalid, "compress_plan: bounds [5, 4] of request 0 are empty, must have lo <= hi",
                     [] { compress_plan(List{5}, List{4}, List{1}, 4); }));
}

TEST(CompressRing, RowsFollowTheFormula) {
  EXPECT_EQ(compress_ring_rows(128, false, 0), 128);
  EXPECT_EQ(compress_ring_rows(128, false, 1), 256);
  EXPECT_EQ(compress_ring_rows(128, false, 128), 256);
  EXPECT_EQ(compress_ring_rows(128, false, 129), 384);
  EXPECT_EQ(compress_ring_rows(4, true, 0), 8);
  EXPECT_EQ(compress_ring_rows(4, true, 4), 12);
  EXPECT_EQ(compress_ring_rows(4, true, 5), 16);
  EXPECT_EQ(compress_ring_rows(1, false, 3), 4);
  // The largest numbers that are taken: 2 * 1024 + 2^31 - 1, rounded up to a multiple of 1024.
  EXPECT_EQ(compress_ring_rows(1024, true, 2147483647), 2048 + (std::int64_t{1} << 31));
  EXPECT_EQ(compress_ring_rows(1, false, 2147483647), std::int64_t{1} << 31);
}

TEST(CompressRing, NumbersOutsideTheContractAreNamed) {
  for (const std::int64_t ratio :
       {-kHuge - 1, std::int64_t{-4}, std::int64_t{0}, std::int64_t{1025}, kHuge / 2, kHuge}) {
    EXPECT_TRUE(throws(Status::kInvalidArgument,
                       "compress_ring_rows: compress_ratio is " + std::to_string(ratio) + ", must be in [1, 1024]",
                       [&] { compress_ring_rows(ratio, true, 0); }));
  }
  for (const std::int64_t drafts : {-kHuge - 1, std::int64_t{-1}, std::int64_t{1} << 31, kHuge}) {
    EXPECT_TRUE(throws(Status::kInvalidArgument,
                       "compress_ring_rows: max_drafts is " + std::to_string(drafts) + ", must be in [0, 2147483647]",
                       [&] { compress_ring_rows(4, true, drafts); }));
  }
}

TEST(CompressStateBegin, IsTheFirstRowThatALaterEntryPools) {
  for (const std::int64_t ratio : {1, 4, 128}) {
    for (const bool overlap : {false, true}) {
      for (std::int64_t start = 0; start < 3 * ratio + 2; ++start) {
        // The next entry to complete is floor(start / R); enumerate what it pools below start.
        std::int64_t expected = start / ratio * ratio - (overlap ? ratio : 0);
        if (expected < 0) expected = 0;
        EXPECT_EQ(compress_state_begin(start, ratio, overlap), expected);
      }
    }
  }
  EXPECT_EQ(compress_state_begin(513, 4, true), 508);
  EXPECT_EQ(compress_state_begin(640, 128, false), 640);
  EXPECT_EQ(compress_state_begin(kHuge, 4, true), kHuge - 7);
  EXPECT_EQ(compress_state_begin(kHuge, kHuge, true), 0);
  EXPECT_EQ(compress_state_begin(kHuge - 1, kHuge, true), 0);
  EXPECT_EQ(compress_state_begin(kHuge, 1, false), kHuge);
  EXPECT_TRUE(throws(Status::kInvalidArgument, "compress_state_begin: start is -1, must be >= 0",
                     [] { compress_state_begin(-1, 4, true); }));
  EXPECT_TRUE(throws(Status::kInvalidArgument, "compress_state_begin: compress_ratio is 0, must be >= 1",
                     [] { compress_state_begin(1, 0, true); }));
}

TEST(CompressorRules, EveryRowIsReachable) {
  using namespace compressor;
  const auto rules = compressor_rules();
  ASSERT_EQ(rules.size(), 3U);
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  EXPECT_EQ(&choose_compressor_rule(true, 0), &rules[0]);
  EXPECT_EQ(&choose_compressor_rule(true, 100 * kMiB), &rules[0]);
  EXPECT_EQ(&choose_compressor_rule(false, 0), &rules[1]);
  EXPECT_EQ(&choose_compressor_rule(false, 8 * kMiB - 1), &rules[1]);
  EXPECT_EQ(&choose_compressor_rule(false, 8 * kMiB), &rules[2]);
}

TEST(CompressorRules, EveryCudaRuleIsReachedAndNamed) {
  using namespace compressor;
  std::set<const CompressorCudaRule*> reached;
  for (const std::int64_t window : {1, 8, 128, 260}) {
    for (const std::int64_t head_dim : {75, 128, 512, 1024}) {
      for (const bool aligned : {false, true}) {
        const CompressorCase c{window, head_dim, aligned};
        const CompressorCudaRule& rule = choose_compressor_cuda_rule(c);
        EXPECT_TRUE(rule.can(c));
        EXPECT_EQ(compressor_unmet(rule, c), "");
        EXPECT_EQ(&compressor_cuda_rule(c, CompressAlgorithm::kAuto), &rule);
        EXPECT_STREQ(compress_algorithm_name(rule.algorithm), rule.name);
        reached.insert(&rule);
      }
    }
  }
  EXPECT_EQ(reached.size(), compressor_cuda_rules().size());
  EXPECT_STREQ(compress_algorithm_name(CompressAlgorithm::kAuto), "auto");
  EXPECT_STREQ(compress_algorithm_name(static_cast<CompressAlgorithm>(77)), "unknown algorithm");
}

TEST(CompressorRules, TeamsSpreadTheEntriesOfALongChunk) {
  using compressor::spread_groups;
  for (std::int64_t ratio = 1; ratio <= 1024; ++ratio) {
    for (const std::int64_t most : {1, 49, 81, 82, 1056, 8448}) {
      for (const std::int64_t entries : {1, 2, 48, 65, 2049, 100'000}) {
        const std::int64_t groups = spread_groups(1 << 20, entries, most, ratio);
        ASSERT_GE(groups, 1);
        ASSERT_LE(groups, most);
        ASSERT_EQ(std::gcd(groups, ratio), 1) << ratio << " " << most << " " << entries;
        if (entries < most / 2) {
          ASSERT_GE(groups, entries) << ratio << " " << most;
        }
      }
    }
  }
  EXPECT_EQ(spread_groups(64, 64, 1000, 128), 64);  // a team a token
  EXPECT_EQ(spread_groups(8192, 65, 82, 128), 65);
  EXPECT_EQ(spread_groups(8192, 64, 82, 128), 65);
  EXPECT_EQ(spread_groups(256, 100, 82, 128), 81);
}

TEST(CompressorRules, WhatACudaRuleCannotServeIsSaid) {
  using namespace compressor;
  const auto refused = [](const CompressorCase& c, CompressAlgorithm algorithm, const std::string& why) {
    EXPECT_TRUE(throws(Status::kUnsupported, why, [&] { compressor_cuda_rule(c, algorithm); }));
  };
  refused(
      {256, 100, false}, CompressAlgorithm::kTallWindow,
      "compress: algorithm tall_window cannot serve this call: the window of 256 rows must have at most 128; head_dim "
      "100 must be a multiple of 64 up to 512; kv, gate, ape and state must begin at, and have strides of, multiples "
      "of 16 bytes");
  refused(
      {8, 256, true}, CompressAlgorithm::kShortWindow,
      "compress: algorithm short_window cannot serve this call: head_dim 256 must be a multiple of 128 up to 128, or "
      "head_dim 256 must be a multiple of 512 up to 512");
  EXPECT_TRUE(throws(Status::kInvalidArgument, "compress: algorithm is 77, must be one of CompressAlgorithm", [] {
    compressor_cuda_rule({8, 128, true}, static_cast<CompressAlgorithm>(77));
  }));
}

TEST(CompressorRules, EveryPlanHasAName) {
  for (const CompressPlan plan : {CompressPlan::kNone, CompressPlan::kSome, CompressPlan::kUnknown}) {
    EXPECT_STRNE(compressor::compress_plan_name(plan), "?");
  }
}

}  // namespace
}  // namespace tamis::test
