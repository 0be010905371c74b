#include <gtest/gtest.h>

#include <array>
#include <bit>
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

namespace reference = ops::reference;
using test::GuardedBuffer;
using test::throws;

constexpr double kV4Base = 160000.0;
const RopeScaling kV4Scaling{16.0, 65536.0, 32.0, 1.0};

std::vector<double> v4_frequencies() {
  std::vector<double> f(32);
  rope_frequencies(kV4Base, kV4Scaling, f);
  return f;
}

TEST(RopeFrequencies, CheckValuesOfTheSpecification) {
  const std::vector<double> f = v4_frequencies();
  const std::array<std::pair<std::size_t, double>, 8> expected = {{{0, 1.0},
                                                                   {1, 0.687656022},
                                                                   {15, 3.635538584e-3},
                                                                   {16, 2.265625e-3},
                                                                   {20, 2.969777783e-4},
                                                                   {24, 1.953125e-5},
                                                                   {25, 5.372312671e-6},
                                                                   {31, 5.680529037e-7}}};
  for (const auto& [i, value] : expected) EXPECT_NEAR(f[i] / value, 1.0, 1e-9) << i;  // nine digits are printed
  std::vector<double> plain(32);
  rope_frequencies(10000.0, {}, plain);
  EXPECT_NEAR(plain[1] / 0.7498942093, 1.0, 1e-9);
  EXPECT_NEAR(plain[31] / 1.333521432e-4, 1.0, 1e-9);
}

TEST(RopeFrequencies, FollowTheDefinition) {
  for (const std::size_t pairs : {std::size_t{1}, std::size_t{2}, std::size_t{32}, std::size_t{64}}) {
    for (const double base : {10.0, 10000.0, 160000.0}) {
      for (const RopeScaling& s : {RopeScaling{}, kV4Scaling, RopeScaling{4.0, 8.0, 1.0, 1.0}, RopeScaling{0.5}}) {
        std::vector<double> f(pairs);
        rope_frequencies(base, s, f);
        for (std::size_t i = 0; i < pairs; ++i) {
          const double expected = reference::rope_frequency(base, s, static_cast<int>(i), static_cast<int>(pairs));
          ASSERT_NEAR(f[i], expected, 1e-14 * std::fabs(expected));
        }
      }
    }
  }
}

TEST(RopeTable, HoldsCosinesThenSines) {
  const std::vector<double> f = v4_frequencies();
  GuardedBuffer<float> table(1000 * 70);
  rope_table(f, {table.data(), DType::kFloat32, {1000, 64}, {70, 1}});
  for (const std::size_t p : {std::size_t{0}, std::size_t{1}, std::size_t{124}, std::size_t{999}}) {
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(table[p * 70 + i], static_cast<float>(std::cos(static_cast<double>(p) * f[i])));
      EXPECT_EQ(table[p * 70 + 32 + i], static_cast<float>(std::sin(static_cast<double>(p) * f[i])));
    }
    for (std::size_t i = 64; i < 70; ++i) EXPECT_EQ(std::bit_cast<std::uint32_t>(table[p * 70 + i]), 0xFFFFFFFFU);
  }
  EXPECT_TRUE(table.guards_intact());
}

// Several threads share the rows; each row is a function of its position alone.
TEST(ThreadRopeTable, LongTableEqualsItsRows) {
  const std::vector<double> f = {1.0, 0.25};
  GuardedBuffer<float> table(20000 * 4);
  rope_table(f, {table.data(), DType::kFloat32, {20000, 4}});
  for (std::size_t p = 0; p < 20000; ++p) {
    ASSERT_EQ(table[p * 4 + 1], static_cast<float>(std::cos(static_cast<double>(p) * 0.25)));
    ASSERT_EQ(table[p * 4 + 2], static_cast<float>(std::sin(static_cast<double>(p))));
  }
  EXPECT_TRUE(table.guards_intact());
}

struct RopeCase {
  std::int64_t tokens = 5, heads = 3, n = 128, head_stride = 136, token_stride = 3 * 136 + 8;
  std::vector<std::int64_t> positions{0, 3, -1, 40, 39};  // the table has 40 rows: token 2 and 3 are padding
  std::vector<float> table = std::vector<float>(40 * 64);
  RopeCase() { rope_table(v4_frequencies(), {table.data(), DType::kFloat32, {40, 64}}); }
  std::size_t size() const { return static_cast<std::size_t>(tokens * token_stride); }
  ConstTensorView position_view() const { return {positions.data(), DType::kInt64, {tokens}}; }
  ConstTensorView table_view() const { return {table.data(), DType::kFloat32, {40, 64}}; }
  TensorView view(void* data, DType dtype) const {
    return {data, dtype, {tokens, heads, n}, {token_stride, head_stride, 1}};
  }
};

TEST(Rope, RotatesTheLast64DimsInFp32) {
  test::Random random;
  for (const bool inverse : {false, true}) {
    for (const std::int64_t n : {64, 65, 128, 136}) {
      RopeCase c;
      c.n = n;
      GuardedBuffer<float> x(c.size());
      random.fill_normal(x);
      const std::vector<float> before = x.copy();
      rope(c.view(x.data(), DType::kFloat32), c.position_view(), c.table_view(), inverse);
      std::vector<float> expected = before;
      for (std::int64_t t : {0, 1, 4}) {
        for (std::int64_t h = 0; h < c.heads; ++h) {
          const auto at = static_cast<std::size_t>(t * c.token_stride + h * c.head_stride);
          const auto row = static_cast<std::size_t>(c.positions[static_cast<std::size_t>(t)]) * 64;
          const auto y =
              reference::rope({before.data() + at, static_cast<std::size_t>(n)}, {&c.table[row], 64}, inverse);
          for (std::size_t i = 0; i < y.size(); ++i) {
            // One rounding of a product and one of the fma: each at most 2^-24 of |e| + |o| <= 12.
            ASSERT_NEAR(x[at + i], y[i], 2 * 0x1p-24 * 12) << "token " << t << " head " << h << " dim " << i;
            expected[at + i] = x[at + i];
            if (i < y.size() - 64) {
              ASSERT_EQ(x[at + i], before[at + i]);
            }
          }
        }
      }
      // Everything else, padding tokens and the space between heads included, is as before.
      ASSERT_EQ(x.copy(), expected);
      EXPECT_TRUE(x.guards_intact());
    }
  }
}

TEST(Rope, Bf16IsFp32RoundedOnce) {
  test::Random random;
  const RopeCase c;
  std::vector<float> wide(c.size());
  GuardedBuffer<std::uint16_t> narrow(c.size());
  for (std::size_t i = 0; i < wide.size(); ++i) {
    narrow[i] = core::float_to_bf16(random.normal());
    wide[i] = core::bf16_to_float(narrow[i]);
  }
  rope(c.view(wide.data(), DType::kFloat32), c.position_view(), c.table_view());
  rope(c.view(narrow.data(), DType::kBFloat16), c.position_view(), c.table_view());
  for (std::size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(narrow[i], core::float_to_bf16(wide[i]));
  EXPECT_TRUE(narrow.guards_intact());
}

// The pinned form: an fma in each half, so every target and every language gives these bits.
TEST(Rope, HasTheBitsOfTheFmaFormOnEveryTarget) {
  test::Random random;
  for (int round = 0; round < 200; ++round) {
    std::array<float, 64> x{}, table{};
    random.fill_normal(x);
    random.fill_normal(table);
    for (const bool inverse : {false, true}) {
      std::array<float, 64> expected{};
      for (std::size_t i = 0; i < 32; ++i) {
        const float c = table[i], s = inverse ? -table[32 + i] : table[32 + i];
        const float os = x[2 * i + 1] * s, es = x[2 * i] * s;
        expected[2 * i] = std::fma(x[2 * i], c, -os);
        expected[2 * i + 1] = std::fma(x[2 * i + 1], c, es);
      }
      test::for_each_simd_target([&](const char* target) {
        std::array<float, 64> y = x;
        ops::rope_row(y.data(), table.data(), inverse);
        ASSERT_EQ(y, expected) << target;
      });
    }
  }
}

TEST(Rope, PositionsOfAnyValueAreSafe) {
  RopeCase c;
  c.positions = {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                 (std::int64_t{1} << 32) + 1, -40, 40};
  GuardedBuffer<float> x(c.size(), 0x11);
  const std::vector<float> before = x.copy();
  rope(c.view(x.data(), DType::kFloat32), c.position_view(), c.table_view());
  EXPECT_EQ(x.copy(), before);
}

TEST(Rope, DoesNotAllocate) {
  const RopeCase c;
  std::vector<float> x(c.size(), 1.0F);
  const test::AllocationCounter counter;
  rope(c.view(x.data(), DType::kFloat32), c.position_view(), c.table_view());
  rope(c.view(x.data(), DType::kBFloat16), c.position_view(), c.table_view());
  EXPECT_EQ(counter.count(), 0);
}

TEST(RopeErrors, NameTheArgumentWhatWasExpectedAndWhatCame) {
  const auto bad = Status::kInvalidArgument;
  std::vector<double> f(32);
  const auto frequencies = [&](const std::string& text, double base, const RopeScaling& s, std::span<double> out) {
    EXPECT_TRUE(throws(bad, "rope_frequencies: " + text, [&] { rope_frequencies(base, s, out); }));
  };
  frequencies("base is 0, must be finite and > 0", 0, {}, f);
  frequencies("base is nan, must be finite and > 0", std::nan(""), {}, f);
  frequencies("base is inf, must be finite and > 0", INFINITY, {}, f);
  frequencies("base is 1, must be > 1 with scaling.factor > 1", 1, kV4Scaling, f);
  frequencies("out is empty, must have one element a pair", 10000, {}, {});
  frequencies("scaling.factor is inf, must be finite", 10000, {INFINITY}, f);
  frequencies("scaling.factor is nan, must be finite", 10000, {NAN}, f);
  const auto scaling = [&](const std::string& got, const RopeScaling& s) {
    frequencies("scaling has " + got + ", must all be finite and > 0, and beta_fast >= beta_slow", 10000, s, f);
  };
  scaling("original_max_positions 65536, beta_fast 0, beta_slow 1", {16.0, 65536.0, 0.0, 1.0});
  scaling("original_max_positions inf, beta_fast 32, beta_slow 1", {16.0, INFINITY, 32.0, 1.0});
  scaling("original_max_positions 65536, beta_fast inf, beta_slow 1", {16.0, 65536.0, INFINITY, 1.0});
  scaling("original_max_positions 65536, beta_fast 1, beta_slow 32", {16.0, 65536.0, 1.0, 32.0});

  std::vector<float> table(4 * 64), x(2 * 128);
  const std::vector<std::int64_t> p = {0, 1};
  EXPECT_TRUE(throws(bad, "rope_table: frequencies is empty, must have one element a pair", [&] {
    rope_table({}, {table.data(), DType::kFloat32, {4, 64}});
  }));
  EXPECT_TRUE(throws(bad, "rope_table: cos_sin is fp32 [4, 32], must be fp32 [any, 64]", [&] {
    rope_table(f, {table.data(), DType::kFloat32, {4, 32}});
  }));
  const TensorView good_x(x.data(), DType::kFloat32, {2, 1, 128});
  const ConstTensorView good_p(p.data(), DType::kInt64, {2}), good_table(table.data(), DType::kFloat32, {4, 64});
  const auto rotate = [&](const char* text, TensorView a, ConstTensorView b, ConstTensorView c) {
    EXPECT_TRUE(throws(bad, std::string("rope: ") + text, [&] { rope(a, b, c); }));
  };
  rotate("x is fp32 [2, 128], must be fp32 or bf16 [any, any, any]", {x.data(), DType::kFloat32, {2, 128}}, good_p,
         good_table);
  rotate("x has 63 dims a vector, must have at least 64", {x.data(), DType::kFloat32, {2, 1, 63}}, good_p, good_table);
  rotate("x has stride 2 in its last dimension, must be contiguous (1)",
         {x.data(), DType::kFloat32, {2, 1, 64}, {128, 128, 2}}, good_p, good_table);
  rotate("positions is int32 [2], must be int64 [2]", good_x, {p.data(), DType::kInt32, {2}}, good_table);
  rotate("positions is int64 [1], must be int64 [2]", good_x, {p.data(), DType::kInt64, {1}}, good_table);
  rotate("cos_sin is fp32 [4, 32], must be fp32 [any, 64]", good_x, good_p, {table.data(), DType::kFloat32, {4, 32}});
  rotate("cos_sin is absent, must be fp32 [any, 64]", good_x, good_p, {});
}

}  // namespace
}  // namespace tamis
