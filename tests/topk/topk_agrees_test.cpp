// Every algorithm, dtype, order, edge shape and kind of scores against the reference.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "simd_targets.hpp"
#include "topk_check.hpp"

namespace tamis::test {
namespace {

struct Agreement {
  TopkAlgorithm algorithm;
  DType dtype;
  TopkOrder order;
};

class TopkAgrees : public testing::TestWithParam<Agreement> {};

TEST_P(TopkAgrees, WithReferenceOnEdgeShapes) {
  const auto [algorithm, dtype, order] = GetParam();
  for (const TopkShape& shape : kTopkEdgeShapes) {
    if (algorithm == TopkAlgorithm::kIdentity && shape.width > shape.k) continue;  // refused; see TopkErrors
    for (const TopkDistribution& kind : kTopkDistributions) {
      SCOPED_TRACE(std::string(shape.name) + " " + kind.name);
      TopkCall c(shape.rows, shape.width, shape.k, {.dtype = dtype});
      c.fill(kind);
      c.args.algorithm = algorithm;
      c.args.order = order;
      c.run();
      expect_as_reference(c);
      if (HasFailure()) return;
    }
  }
}

std::string agreement_name(const testing::TestParamInfo<Agreement>& info) {
  constexpr const char* kOrders[] = {"position", "unsorted", "by_value"};
  return std::string(topk_algorithm_name(info.param.algorithm)) + "_" + dtype_name(info.param.dtype) + "_" +
         kOrders[static_cast<int>(info.param.order)];
}

std::vector<Agreement> agreements() {
  std::vector<Agreement> all;
  std::vector<TopkAlgorithm> algorithms = topk_test_algorithms();
  if (algorithms.size() > 1) algorithms.push_back(TopkAlgorithm::kIdentity);
  for (TopkAlgorithm algorithm : algorithms) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) all.push_back({algorithm, dtype, order});
    }
  }
  all.push_back({TopkAlgorithm::kAuto, DType::kFloat32, TopkOrder::kUnsorted});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, TopkAgrees, testing::ValuesIn(agreements()), agreement_name);

// The lengths and k that broke others, exact, over the kinds that overflow fixed candidate buffers.
TEST(TopkAgreesOnLongRows, EveryDistribution) {
  for (const TopkDistribution& kind : kTopkDistributions) {
    for (std::int64_t width : {65536, 70001}) {
      for (std::int64_t k : {512, 2047}) {
        SCOPED_TRACE(std::string(kind.name) + " width " + std::to_string(width) + " k " + std::to_string(k));
        TopkCall c(1, width, k);
        c.fill(kind);
        c.run();
        expect_as_reference(c);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(TopkAgreesOnLongRows, SixteenBitFormats) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const TopkDistribution& kind : kTopkDistributions) {
      SCOPED_TRACE(std::string(kind.name) + " " + dtype_name(dtype));
      TopkCall c(1, 40007, 512, {.dtype = dtype});
      c.fill(kind);
      c.run();
      expect_as_reference(c);
      if (HasFailure()) return;
    }
  }
}

TEST(TopkAgreesOnLongRows, MillionScores) {
  TopkCall c(1, 1048576, 2048);
  c.fill("normal");
  c.run();
  expect_as_reference(c);
}

TEST(TopkAgreesOnLongRows, SeveralSeedsAtAQuarterMillion) {
  TopkCall c(4, 262209, 2048);  // odd width
  c.fill("normal");
  c.run();
  expect_as_reference(c);
}

// Every k around the edges of the code against every length around them.
TEST(TopkAgreesOnLongRows, DegenerateSizes) {
  for (std::int64_t k : {0, 1, 2, 3, 31, 511, 512, 513, 1025, 2047, 4096, 4097}) {
    for (std::int64_t width : {std::int64_t{0}, std::int64_t{1}, std::int64_t{31}, std::int64_t{32}, std::int64_t{33},
                               k - 1, k, k + 1, 2 * k + 1024, 2 * k + 1025, 2 * k + 1041}) {
      if (width < 0) continue;
      SCOPED_TRACE("width " + std::to_string(width) + " k " + std::to_string(k));
      TopkCall c(2, width, k);
      c.fill("quantised");
      c.run();
      expect_as_reference(c);
      if (HasFailure()) return;
    }
  }
}

TEST(TopkAgreesOnLongRows, KBeyondTheFilter) {
  TopkCall c(1, 70003, 65600);
  c.fill("few_nan");
  EXPECT_EQ(topk_choose(c.args).algorithm, TopkAlgorithm::kSelect);
  c.run();
  expect_as_reference(c);
}

TEST(TopkAgreesOnLongRows, LargestKOfTheFilter) {
  TopkCall c(1, 200003, 65536);
  c.fill("quantised");
  EXPECT_EQ(topk_choose(c.args).algorithm, TopkAlgorithm::kSimdFilter);
  c.run();
  expect_as_reference(c);
}

// Each SIMD target that this machine has gives the same answer.
TEST(TopkTargets, AllAgreeWithReference) {
  int targets = 0;
  for_each_simd_target([&](const char* target) {
    ++targets;
    for (const TopkDistribution& kind : kTopkDistributions) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        SCOPED_TRACE(std::string(target) + " " + kind.name + " " + dtype_name(dtype));
        TopkCall c(1, 9001, 300, {.dtype = dtype});
        c.fill(kind);
        c.run();
        expect_as_reference(c);
        if (HasFailure()) return;
      }
    }
  });
  EXPECT_GE(targets, 1);
}

}  // namespace
}  // namespace tamis::test
