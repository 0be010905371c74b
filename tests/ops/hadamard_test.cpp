#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/reference.hpp"
#include "ops/rows.hpp"
#include "support/allocation_counter.hpp"
#include "support/expect_error.hpp"
#include "support/guarded_buffer.hpp"
#include "support/random.hpp"
#include "support/simd_targets.hpp"
#include "tamis/ops.hpp"

namespace tamis {
namespace {

using test::GuardedBuffer;
using test::throws;

TEST(Hadamard, WorkedRowOfTheSpecification) {
  test::for_each_simd_target([](const char* target) {
    std::vector<float> x = {1, 2, 3, 4};
    hadamard({x.data(), DType::kFloat32, {1, 4}});
    EXPECT_EQ(x, (std::vector<float>{5, -1, -2, 0})) << target;
  });
}

TEST(Hadamard, FollowsTheDefinitionAtEveryLength) {
  test::Random random;
  for (std::int64_t n = 1; n <= 1024; n *= 2) {
    const std::int64_t stride = n + 3;
    GuardedBuffer<float> x(static_cast<std::size_t>(2 * stride));
    random.fill_normal(x);
    const std::vector<float> before = x.copy();
    hadamard({x.data(), DType::kFloat32, {2, n}, {stride, 1}});
    for (std::size_t r = 0; r < 2; ++r) {
      const std::size_t at = r * static_cast<std::size_t>(stride);
      const auto expected = ops::reference::hadamard({&before[at], static_cast<std::size_t>(n)});
      double norm = 0;
      for (std::int64_t i = 0; i < n; ++i) norm += std::fabs(before[at + static_cast<std::size_t>(i)]);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        // log2(n) sums, each within 2^-24 of at most sum |x|; then the factor's and the product's rounding.
        const double bound =
            (std::log2(static_cast<double>(n)) + 2) * 0x1p-24 * norm / std::sqrt(static_cast<double>(n));
        ASSERT_NEAR(x[at + i], expected[i], bound) << n << " " << i;
      }
      for (std::size_t i = expected.size(); i < static_cast<std::size_t>(stride); ++i) {
        ASSERT_EQ(x[at + i], before[at + i]);
      }
    }
    EXPECT_TRUE(x.guards_intact());
  }
}

TEST(Hadamard, HasTheBitsOfTheButterflyOnEveryTarget) {
  test::Random random;
  for (std::size_t n = 1; n <= 1024; n *= 2) {
    std::vector<float> x(n);
    random.fill_normal(x);
    std::vector<float> expected = x;
    for (std::size_t stride = n / 2; stride > 0; stride /= 2) {
      for (std::size_t i = 0; i < n; ++i) {
        if ((i & stride) != 0) continue;
        const float a = expected[i], b = expected[i + stride];
        expected[i] = a + b;
        expected[i + stride] = a - b;
      }
    }
    for (float& v : expected) v *= static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
    test::for_each_simd_target([&](const char* target) {
      std::vector<float> y = x;
      ops::hadamard_row(y.data(), static_cast<std::int64_t>(n));
      ASSERT_EQ(y, expected) << target << " n " << n;
    });
  }
}

TEST(Hadamard, FactorOf128IsThatOfTheSpecification) {
  std::vector<float> x(128, 0.0F);
  x[0] = 1.0F;
  hadamard({x.data(), DType::kFloat32, {1, 128}});
  for (const float v : x) EXPECT_EQ(v, 0.08838834764831845F);
}

TEST(Hadamard, KeepsDotProducts) {
  test::Random random;
  std::vector<float> q(128), k(128);
  random.fill_normal(q);
  random.fill_normal(k);
  const auto dot = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < 128; ++i) sum += static_cast<double>(q[i]) * k[i];
    return sum;
  };
  const double before = dot();
  hadamard({q.data(), DType::kFloat32, {1, 128}});
  hadamard({k.data(), DType::kFloat32, {1, 128}});
  EXPECT_NEAR(dot(), before, 1e-5 + 1e-5 * std::fabs(before));  // S-8
}

TEST(Hadamard, NothingToDoAndNothingAllocated) {
  std::vector<float> x(256, 1.0F);
  const TensorView view(x.data(), DType::kFloat32, {2, 128});
  const test::AllocationCounter counter;
  hadamard({nullptr, DType::kFloat32, {0, 128}});
  hadamard(view);
  EXPECT_EQ(counter.count(), 0);
}

TEST(HadamardErrors, NameTheArgumentWhatWasExpectedAndWhatCame) {
  std::vector<float> x(4096);
  const auto fails = [&](const char* text, TensorView view) {
    EXPECT_TRUE(throws(Status::kInvalidArgument, std::string("hadamard: ") + text, [&] { hadamard(view); }));
  };
  fails("x has rows of 96, must be a power of two in [1, 1024]", {x.data(), DType::kFloat32, {2, 96}});
  fails("x has rows of 0, must be a power of two in [1, 1024]", {x.data(), DType::kFloat32, {2, 0}});
  fails("x has rows of 2048, must be a power of two in [1, 1024]", {x.data(), DType::kFloat32, {2, 2048}});
  fails("x is bf16 [2, 128], must be fp32 [any, any]", {x.data(), DType::kBFloat16, {2, 128}});
  fails("x has stride 2 in its last dimension, must be contiguous (1)", {x.data(), DType::kFloat32, {2, 64}, {128, 2}});
}

}  // namespace
}  // namespace tamis
