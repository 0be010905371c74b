#include "gemm/linear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tamis/status.hpp"

namespace tamis::gemm {
namespace {

std::vector<float> normal(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(n);
  for (float& v : values) v = distribution(generator);
  return values;
}

struct Shape {
  std::int64_t out, in;
};

class LinearShapes : public testing::TestWithParam<Shape> {};

TEST_P(LinearShapes, AgreesWithDoubleSums) {
  const auto [out, in] = GetParam();
  const std::int64_t rows = 87;  // 64 + 16 + 4 + 3 x 1: every row count takes part
  const auto weight = normal(static_cast<std::size_t>(out * in), 1);
  const auto x = normal(static_cast<std::size_t>(rows * in), 2);
  std::vector<float> y(static_cast<std::size_t>(rows * out), NAN);
  Linear(weight, out, in)(x.data(), rows, y.data(), 1);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = 0, magnitude = 0;
      for (std::int64_t i = 0; i < in; ++i) {
        const double product =
            static_cast<double>(x[static_cast<std::size_t>(r * in + i)]) * weight[static_cast<std::size_t>(o * in + i)];
        sum += product;
        magnitude += std::abs(product);
      }
      // One rounding a product and one an addition, each at most 2^-24 of a partial sum.
      ASSERT_NEAR(y[static_cast<std::size_t>(r * out + o)], sum, magnitude * static_cast<double>(in) * 0x1p-24);
    }
  }
}

TEST_P(LinearShapes, ARowHasTheSameBitsInAnyBatch) {
  const auto [out, in] = GetParam();
  const std::int64_t rows = 130;
  const Linear linear(normal(static_cast<std::size_t>(out * in), 3), out, in);
  const auto x = normal(static_cast<std::size_t>(rows * in), 4);
  std::vector<float> whole(static_cast<std::size_t>(rows * out)), part(whole.size());
  linear(x.data(), rows, whole.data(), 1);
  for (std::int64_t first : {0, 1, 5, 66}) {
    for (std::int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64}) {
      linear(x.data() + first * in, count, part.data(), 1);
      for (std::int64_t i = 0; i < count * out; ++i) {
        ASSERT_EQ(part[static_cast<std::size_t>(i)], whole[static_cast<std::size_t>(first * out + i)])
            << "row " << first << " of " << count << ", element " << i;
      }
    }
  }
}

// The products of tiny-v4, an odd one, and one of more than a panel.
INSTANTIATE_TEST_SUITE_P(Shapes, LinearShapes,
                         testing::Values(Shape{128, 256}, Shape{2048, 128}, Shape{512, 256}, Shape{4, 256},
                                         Shape{8, 256}, Shape{24, 1024}, Shape{260, 256}, Shape{256, 96},
                                         Shape{96, 256}, Shape{64, 1024}, Shape{1, 7}, Shape{33, 129}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.out) + "x" + std::to_string(shape.param.in);
                         });

// Primitives are shared by the threads that execute them: a scratch memory shared with them shows in repeats only.
TEST(ThreadLinear, ThreadsDoNotChangeBits) {
  for (const auto& [out, in] : {Shape{2048, 512}, Shape{96, 256}, Shape{256, 96}, Shape{24, 1024}}) {
    const std::int64_t rows = 681;
    const Linear linear(normal(static_cast<std::size_t>(out * in), 5), out, in);
    const auto x = normal(static_cast<std::size_t>(rows * in), 6);
    std::vector<float> one(static_cast<std::size_t>(rows * out));
    linear(x.data(), rows, one.data(), 1);
    for (int threads : {0, 2, 3}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<float> many(one.size(), NAN);
        linear(x.data(), rows, many.data(), threads);
        ASSERT_EQ(one, many) << out << " x " << in << ", " << threads << " threads, repeat " << repeat;
      }
    }
  }
}

TEST(Linear, StridedRowsStayApart) {
  const std::int64_t out = 20, in = 24, rows = 9;
  const auto weight = normal(static_cast<std::size_t>(out * in), 7);
  const auto x = normal(static_cast<std::size_t>(rows * 40), 8);
  std::vector<float> strided(static_cast<std::size_t>(rows * 50), -7.0F);
  Linear(weight, out, in, 40, 50)(x.data(), rows, strided.data(), 1);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::vector<float> dense(static_cast<std::size_t>(out));
    Linear(weight, out, in)(x.data() + r * 40, 1, dense.data(), 1);
    for (std::int64_t o = 0; o < 50; ++o) {
      EXPECT_EQ(strided[static_cast<std::size_t>(r * 50 + o)], o < out ? dense[static_cast<std::size_t>(o)] : -7.0F);
    }
  }
}

TEST(Linear, NamesTheWeightThatDoesNotFit) {
  const std::vector<float> weight(10);
  try {
    Linear(weight, 3, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "linear: weight has 10 elements, must have 3 x 4");
  }
}

}  // namespace
}  // namespace tamis::gemm
