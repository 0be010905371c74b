#pragma once

// Scalar conversions of the storage formats (S-0.2), bit exact. SIMD code is tested against these; constexpr, since
// device code calls them.

#include <bit>
#include <cstdint>

namespace tamis::core {

constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even; NaN stays NaN (quiet), its sign kept.
constexpr std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float round_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

constexpr float fp16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

/// Round to nearest, ties to even; overflow gives infinity.
constexpr std::uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // >= 65520 rounds to infinity
  if (magnitude <
      0x38800000U) {  // below 2^-14: adding 0.5 aligns 2^-24 with the last mantissa bit, rounding on the way
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13));
}

/// e4m3 "fn": no infinities, 0x7F and 0xFF are NaN.
constexpr float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t exponent = (code >> 3) & 0xFU;
  const std::uint32_t mantissa = code & 7U;
  if ((code & 0x7FU) == 0x7FU) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 120U) << 23) | (mantissa << 20));
}

/// Clamps to [-448, 448], then rounds to nearest even. NaN gives 0x7F with the sign of the input.
constexpr std::uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | 0x7FU);
  if (magnitude >= 0x43E00000U) return static_cast<std::uint8_t>(sign | 0x7EU);  // >= 448
  if (magnitude < 0x3C800000U) {  // below 2^-6: adding 2^14 aligns 2^-9 with the last mantissa bit
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000U));
  }
  // Values in (448, 464) cannot occur here, so the carry of rounding never reaches the NaN code.
  return static_cast<std::uint8_t>(sign | ((magnitude - 0x3C000000U + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20));
}

/// e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 by the low three bits; bit 3 is the sign.
constexpr float e2m1_to_float(std::uint8_t code) {
  constexpr float kMagnitudes[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float magnitude = kMagnitudes[code & 7U];
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

/// Clamps to [-6, 6], then rounds to nearest, ties to even code (S-4.4); the sign of zero is kept. NaN gives 6.
constexpr std::uint8_t float_to_e2m1(float value) {
  const auto sign = static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(value) >> 28) & 8U);
  const float magnitude = value < 0 ? -value : value;
  std::uint8_t code = 0;
  if (!(magnitude <= 5.0F)) code = 7;
  else if (magnitude >= 3.5F) code = 6;
  else if (magnitude > 2.5F) code = 5;
  else if (magnitude >= 1.75F) code = 4;
  else if (magnitude > 1.25F) code = 3;
  else if (magnitude >= 0.75F) code = 2;
  else if (magnitude > 0.25F) code = 1;
  return static_cast<std::uint8_t>(sign | code);
}

/// Smallest e with 2^e >= value, from the bits (exact). value must be positive, finite and normal.
constexpr int ceil_log2(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<int>(bits >> 23) + ((bits & 0x7FFFFFU) != 0 ? 1 : 0) - 127;
}

/// 2^e as fp32 for e in [-126, 127]; -127 gives the subnormal 2^-127.
constexpr float exp2_int(int e) {
  if (e == -127) return 0x1p-127F;
  return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
}

}  // namespace tamis::core
