#include "bench/cuda/topk_answer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "core/float_formats.hpp"

namespace tamis::bench {
namespace {

float score_at(const std::byte* scores, DType dtype, std::int64_t i) {
  if (dtype == DType::kFloat32) {
    float score;
    std::memcpy(&score, scores + 4 * i, sizeof(score));
    return score;
  }
  std::uint16_t bits;
  std::memcpy(&bits, scores + 2 * i, sizeof(bits));
  return dtype == DType::kBFloat16 ? core::bf16_to_float(bits) : core::fp16_to_float(bits);
}

// Unsigned order is the contract's: NaN < -inf < finite < +inf, one key for both zeros.
std::uint32_t key_of(float score) {
  if (score != score) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(score == 0 ? 0.0F : score);
  // Flips the sign bit so that unsigned order equals float order; negatives are inverted whole.
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

}  // namespace

std::vector<std::int32_t> topk_answer(const std::byte* scores, DType dtype, std::int64_t width, std::int64_t k) {
  // Key above, inverted position below: of two equal scores the lower position is the larger number.
  std::vector<std::uint64_t> ranks(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < width; ++i) {
    ranks[static_cast<std::size_t>(i)] =
        static_cast<std::uint64_t>(key_of(score_at(scores, dtype, i))) << 32 | static_cast<std::uint32_t>(~i);
  }
  if (k < width) {
    std::nth_element(ranks.begin(), ranks.begin() + k, ranks.end(), std::greater<>());
    ranks.resize(static_cast<std::size_t>(k));
  }
  std::vector<std::int32_t> positions;
  positions.reserve(static_cast<std::size_t>(k));
  for (const std::uint64_t rank : ranks) {
    positions.push_back(static_cast<std::int32_t>(~static_cast<std::uint32_t>(rank)));
  }
  std::sort(positions.begin(), positions.end());
  positions.resize(static_cast<std::size_t>(k), -1);
  return positions;
}

}  // namespace tamis::bench
