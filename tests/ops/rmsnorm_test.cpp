#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/float_formats.hpp"
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

// Lengths around registers, the 32 partial sums, the pieces of 512, and those of the models.
const std::int64_t kLengths[] = {1, 3, 15, 16, 17, 31, 32, 33, 64, 128, 511, 512, 513, 1024, 1536, 4096, 7168};

// x * factor * weight is three roundings. The factor has half the relative error of the mean (which enters by its root)
// plus a division, an addition and a root: a partial sum adds n / 32 products, the tree 5 more, each 2^-24.
double tolerance(std::int64_t n) { return (0.5 * (static_cast<double>(n) / 32 + 5 + 3) + 3 + 2) * 0x1p-24; }

TEST(Rmsnorm, FollowsTheDefinitionInEveryDtype) {
  test::Random random;
  for (const std::int64_t n : kLengths) {
    const std::int64_t rows = 3, stride = n + 7;
    const auto width = static_cast<std::size_t>(n);
    std::vector<float> weight(width);
    random.fill_normal(weight);
    std::vector<float> x(static_cast<std::size_t>(rows * stride));
    for (float& v : x) v = core::round_to_bf16(20.0F * random.normal());  // the same numbers in both dtypes
    std::vector<std::uint16_t> narrow(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) narrow[i] = core::float_to_bf16(x[i]);
    for (const bool weighted : {true, false}) {
      const ConstTensorView w = weighted ? ConstTensorView(weight.data(), DType::kFloat32, {n}) : ConstTensorView();
      GuardedBuffer<float> y(x.size()), y_from_narrow(x.size());
      GuardedBuffer<std::uint16_t> y_narrow(x.size());
      const ConstTensorView wide_x(x.data(), DType::kFloat32, {rows, n}, {stride, 1});
      const ConstTensorView narrow_x(narrow.data(), DType::kBFloat16, {rows, n}, {stride, 1});
      rmsnorm(wide_x, w, 1e-6F, {y.data(), DType::kFloat32, {rows, n}, {stride, 1}});
      rmsnorm(narrow_x, w, 1e-6F, {y_from_narrow.data(), DType::kFloat32, {rows, n}, {stride, 1}});
      rmsnorm(narrow_x, w, 1e-6F, {y_narrow.data(), DType::kBFloat16, {rows, n}, {stride, 1}});
      for (std::size_t r = 0; r < 3; ++r) {
        const std::size_t at = r * static_cast<std::size_t>(stride);
        const auto expected = ops::reference::rmsnorm({&x[at], width}, weighted ? weight : std::vector<float>(),
                                                      static_cast<double>(1e-6F));
        for (std::size_t i = 0; i < width; ++i) {
          ASSERT_NEAR(y[at + i], expected[i], tolerance(n) * std::fabs(expected[i])) << n << " " << i;
          ASSERT_EQ(y_from_narrow[at + i], y[at + i]) << n;
          ASSERT_EQ(y_narrow[at + i], core::float_to_bf16(y[at + i])) << n;
        }
        for (std::size_t i = width; i < static_cast<std::size_t>(stride); ++i) ASSERT_EQ(y_narrow[at + i], 0xFFFF);
      }
      EXPECT_TRUE(y.guards_intact() && y_narrow.guards_intact());
    }
  }
}

TEST(Rmsnorm, SameBitsOnEveryTargetAndInEveryBatch) {
  test::Random random;
  for (const std::int64_t n : kLengths) {
    std::vector<float> row(static_cast<std::size_t>(n)), weight(row.size());
    random.fill_normal(row, 3.0F);
    random.fill_normal(weight);
    // The order of sums as ops/rows.hpp words it.
    float partial[32] = {};
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float square = row[i] * row[i];
      partial[i % 32] += square;
    }
    for (int half = 16; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) partial[l] += partial[l + half];
    }
    const float factor = 1.0F / std::sqrt(partial[0] / static_cast<float>(n) + 1e-6F);
    std::vector<float> expected(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float scaled = row[i] * factor;
      expected[i] = scaled * weight[i];
    }
    test::for_each_simd_target([&](const char* target) {
      for (const std::int64_t batch : {1, 5}) {
        std::vector<float> x;
        for (std::int64_t r = 0; r < batch; ++r) x.insert(x.end(), row.begin(), row.end());
        std::vector<float> y(x.size());
        rmsnorm({x.data(), DType::kFloat32, {batch, n}}, {weight.data(), DType::kFloat32, {n}}, 1e-6F,
                {y.data(), DType::kFloat32, {batch, n}});
        for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], expected[i % row.size()]) << target << " n " << n;
      }
    });
  }
}

TEST(Rmsnorm, InPlace) {
  test::Random random;
  for (const std::int64_t n : kLengths) {
    std::vector<float> x(static_cast<std::size_t>(2 * n)), y(x.size());
    random.fill_normal(x);
    std::vector<std::uint16_t> narrow(x.size()), narrow_y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) narrow[i] = core::float_to_bf16(x[i]);
    rmsnorm({x.data(), DType::kFloat32, {2, n}}, {}, 1e-6F, {y.data(), DType::kFloat32, {2, n}});
    rmsnorm({x.data(), DType::kFloat32, {2, n}}, {}, 1e-6F, {x.data(), DType::kFloat32, {2, n}});
    rmsnorm({narrow.data(), DType::kBFloat16, {2, n}}, {}, 1e-6F, {narrow_y.data(), DType::kBFloat16, {2, n}});
    rmsnorm({narrow.data(), DType::kBFloat16, {2, n}}, {}, 1e-6F, {narrow.data(), DType::kBFloat16, {2, n}});
    ASSERT_EQ(x, y);
    ASSERT_EQ(narrow, narrow_y);
  }
}

TEST(Rmsnorm, ZerosNanAndNothing) {
  std::vector<float> x(64, 0.0F), y(64, 7.0F);
  rmsnorm({x.data(), DType::kFloat32, {1, 64}}, {}, 1e-6F, {y.data(), DType::kFloat32, {1, 64}});
  for (const float v : y) EXPECT_EQ(v, 0.0F);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  rmsnorm({x.data(), DType::kFloat32, {1, 64}}, {}, 1e-6F, {y.data(), DType::kFloat32, {1, 64}});
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
  const TensorView nothing(nullptr, DType::kFloat32, {0, 64}), empty_rows(nullptr, DType::kFloat32, {3, 0});
  EXPECT_NO_THROW(rmsnorm(nothing, {}, 1e-6F, nothing));
  EXPECT_NO_THROW(rmsnorm(empty_rows, {}, 1e-6F, empty_rows));
}

TEST(Rmsnorm, DoesNotAllocate) {
  std::vector<float> x(2 * 4096, 1.0F);
  const TensorView wide(x.data(), DType::kFloat32, {2, 4096}), narrow(x.data(), DType::kBFloat16, {2, 4096});
  const test::AllocationCounter counter;
  rmsnorm(wide, {}, 1e-6F, wide);
  rmsnorm(narrow, {}, 1e-6F, narrow);
  EXPECT_EQ(counter.count(), 0);
}

TEST(RmsnormErrors, NameTheArgumentWhatWasExpectedAndWhatCame) {
  std::vector<float> memory(256);
  const TensorView good(memory.data(), DType::kFloat32, {2, 64});
  const auto fails = [&](const char* text, ConstTensorView x, ConstTensorView w, TensorView y) {
    EXPECT_TRUE(throws(Status::kInvalidArgument, std::string("rmsnorm: ") + text, [&] { rmsnorm(x, w, 1e-6F, y); }));
  };
  fails("x is absent, must be fp32 or bf16 [any, any]", {}, {}, good);
  fails("x is fp16 [2, 64], must be fp32 or bf16 [any, any]", {memory.data(), DType::kFloat16, {2, 64}}, {}, good);
  fails("x has stride 2 in its last dimension, must be contiguous (1)",
        {memory.data(), DType::kFloat32, {2, 64}, {128, 2}}, {}, good);
  fails("weight is fp32 [63], must be fp32 [64]", good, {memory.data(), DType::kFloat32, {63}}, good);
  fails("weight is bf16 [64], must be fp32 [64]", good, {memory.data(), DType::kBFloat16, {64}}, good);
  fails("y is fp32 [1, 64], must be fp32 or bf16 [2, 64]", good, {}, {memory.data(), DType::kFloat32, {1, 64}});
  fails("y is fp32 [2, 64] with a null pointer", good, {}, {nullptr, DType::kFloat32, {2, 64}});
  fails("y has row stride 0, must be at least 64", good, {}, {memory.data(), DType::kFloat32, {2, 64}, {0, 1}});
  const TensorView on_gpu(memory.data(), DType::kFloat32, {2, 64}, Device{Device::Kind::kCuda, 0});
  EXPECT_TRUE(throws(Status::kUnsupported, "rmsnorm: y is on cuda:0, this build works on the CPU only",
                     [&] { rmsnorm(good, {}, 1e-6F, on_gpu); }));
}

}  // namespace
}  // namespace tamis
