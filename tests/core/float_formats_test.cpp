#include "core/float_formats.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tamis::core {
namespace {

// The nearest code by search in double, ties to the even code: the definition that the conversions are tested against.
template <typename Decode>
int nearest_code(double value, int num_magnitudes, Decode decode) {
  int best = 0;
  for (int code = 1; code < num_magnitudes; ++code) {
    const double d = std::abs(std::abs(value) - decode(code));
    const double b = std::abs(std::abs(value) - decode(best));
    if (d < b || (d == b && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(FloatFormats, E4m3RoundTripsEveryCode) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(e4m3_to_float(static_cast<std::uint8_t>(code))));
      continue;
    }
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(FloatFormats, E4m3RoundsToNearestEven) {
  const auto decode = [](int code) { return static_cast<double>(e4m3_to_float(static_cast<std::uint8_t>(code))); };
  for (int code = 0; code < 0x7E; ++code) {
    const double lo = decode(code), hi = decode(code + 1);
    for (double t : {0.0, 0.25, 0.5, 0.75, 1.0, 0.4999, 0.5001}) {
      const auto value = static_cast<float>(lo + t * (hi - lo));
      EXPECT_EQ(float_to_e4m3(value), nearest_code(value, 0x7F, decode)) << value;
      EXPECT_EQ(float_to_e4m3(-value), 0x80 | nearest_code(value, 0x7F, decode)) << value;
    }
  }
  // Worked values of the specification.
  EXPECT_EQ(float_to_e4m3(13.5F), 0x56);
  EXPECT_EQ(float_to_e4m3(12.5F), 0x54);
  EXPECT_EQ(float_to_e4m3(-1.5625F), 0xBC);
  EXPECT_EQ(float_to_e4m3(0x1p-10F), 0);
  EXPECT_EQ(float_to_e4m3(1e9F), 0x7E);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
}

TEST(FloatFormats, E2m1RoundsToNearestEven) {
  const auto decode = [](int code) { return static_cast<double>(e2m1_to_float(static_cast<std::uint8_t>(code))); };
  for (float value = 0.0F; value <= 6.5F; value += 0.03125F) {
    EXPECT_EQ(float_to_e2m1(value), nearest_code(std::min(value, 6.0F), 8, decode)) << value;
    EXPECT_EQ(float_to_e2m1(-value), 8 | nearest_code(std::min(value, 6.0F), 8, decode)) << value;
  }
}

TEST(FloatFormats, Fp16RoundTripsEveryCode) {
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const float value = fp16_to_float(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(value))));
    } else {
      EXPECT_EQ(float_to_fp16(value), bits);
    }
  }
  EXPECT_EQ(float_to_fp16(65519.0F), 0x7BFF);
  EXPECT_EQ(float_to_fp16(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_fp16(0x1p-25F), 0);    // half of the smallest subnormal: ties to even
  EXPECT_EQ(float_to_fp16(0x1.8p-24F), 2);  // 1.5 subnormals: ties to even
}

TEST(FloatFormats, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3F80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001U)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0xFFFFFFFFU)))));
}

TEST(FloatFormats, CeilLog2IsExactAroundPowersOfTwo) {
  for (int e = -120; e <= 120; ++e) {
    const float power = exp2_int(e);
    EXPECT_EQ(ceil_log2(power), e);
    EXPECT_EQ(ceil_log2(std::nextafter(power, 1e38F)), e + 1);
    EXPECT_EQ(ceil_log2(std::nextafter(power, 0.0F)), e);
  }
}

}  // namespace
}  // namespace tamis::core
