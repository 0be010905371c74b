#pragma once

// Named shapes and named kinds of scores for top-k, and a call with its memory. Tests, benchmarks and fuzzers share
// them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "core/float_formats.hpp"
#include "tamis/tensor.hpp"

namespace tamis::test {

using TopkScores = std::span<float>;
using TopkGenerator = std::mt19937_64;

/// Seed from a name, so that a case is the same everywhere (FNV-1a).
inline std::uint64_t topk_seed(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3ULL;
  return hash;
}

inline void fill_topk_normal(TopkScores s, TopkGenerator& g) {
  std::normal_distribution<float> normal;
  for (float& x : s) x = normal(g);
}

/// Scatters `special` over the row: each score becomes it with the given probability.
inline void scatter_topk(TopkScores s, TopkGenerator& g, double probability, float special) {
  std::bernoulli_distribution pick(probability);
  for (float& x : s) {
    if (pick(g)) x = special;
  }
}

struct TopkDistribution {
  const char* name;
  bool headline;  // one of those whose time must stay within 1.1x of `normal`
  void (*fill)(TopkScores, TopkGenerator&);
};

inline constexpr float kTopkInf = std::numeric_limits<float>::infinity();
inline constexpr float kTopkNan = std::numeric_limits<float>::quiet_NaN();

inline constexpr TopkDistribution kTopkDistributions[] = {
    {"normal", true, fill_topk_normal},
    {"normal_plus_100", true,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       for (float& x : s) x += 100.0F;
     }},
    {"normal_times_1e_8", true,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       for (float& x : s) x *= 1e-8F;
     }},
    {"ascending", true,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       std::sort(s.begin(), s.end());
     }},
    {"descending", true,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       std::sort(s.begin(), s.end(), std::greater<>());
     }},
    {"quantised", true,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       for (float& x : s) x = std::round(x * 8.0F) / 8.0F;
     }},
    {"all_equal", true, [](TopkScores s, TopkGenerator&) { std::fill(s.begin(), s.end(), 0.5F); }},
    {"relu_90", true,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       for (float& x : s) x = std::max(0.0F, x - 1.2816F);  // 90% of a normal lies below 1.2816
     }},
    {"negative", false,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       for (float& x : s) x = -std::abs(x) - 1.0F;
     }},
    // All in one bin of a histogram over the leading bits.
    {"one_fp16_bin", false,
     [](TopkScores s, TopkGenerator& g) {
       for (std::size_t i = 0; i < s.size(); ++i) {
         s[i] = 1.0F + 0.245F * static_cast<float>(i) / static_cast<float>(s.size());
       }
       std::shuffle(s.begin(), s.end(), g);
     }},
    {"neighbouring_floats", false,
     [](TopkScores s, TopkGenerator& g) {
       for (std::size_t i = 0; i < s.size(); ++i) s[i] = 1.0F + static_cast<float>(i % 5000) * 0x1p-23F;
       std::shuffle(s.begin(), s.end(), g);
     }},
    {"below_fp16_range", false,
     [](TopkScores s, TopkGenerator& g) {
       std::uniform_real_distribution<float> uniform(-1e6F, -7e4F);
       for (float& x : s) x = uniform(g);
     }},
    {"subnormal", false,
     [](TopkScores s, TopkGenerator& g) {
       std::uniform_int_distribution<std::uint32_t> bits(0, 2000);
       for (float& x : s) x = std::bit_cast<float>(bits(g) | (static_cast<std::uint32_t>(g() & 1U) << 31));
     }},
    {"signed_zeros", false,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       for (float& x : s) x = x > 2.5F ? x : (g() % 2 == 0 ? 0.0F : -0.0F);
     }},
    {"infinities", false,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       scatter_topk(s, g, 0.05, kTopkInf);
       scatter_topk(s, g, 0.3, -kTopkInf);
     }},
    {"all_minus_inf", false, [](TopkScores s, TopkGenerator&) { std::fill(s.begin(), s.end(), -kTopkInf); }},
    {"few_finite_rest_minus_inf", false,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       scatter_topk(s, g, 0.97, -kTopkInf);
     }},
    {"all_nan", false, [](TopkScores s, TopkGenerator&) { std::fill(s.begin(), s.end(), kTopkNan); }},
    {"few_nan", false,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       scatter_topk(s, g, 0.01, kTopkNan);
       scatter_topk(s, g, 0.01, -kTopkNan);
     }},
    {"mostly_nan", false,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       scatter_topk(s, g, 0.5, kTopkNan);
       scatter_topk(s, g, 0.9, -kTopkNan);
       scatter_topk(s, g, 0.02, -kTopkInf);
     }},
    // Winners lie in one short stretch that a sample is likely to hit wholly or to miss.
    {"one_peak", false,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       for (std::size_t i = s.size() / 3; i < std::min(s.size(), s.size() / 3 + 700); ++i) s[i] += 50.0F;
     }},
    // Period 16: any stride that is a multiple of it sees one phase only.
    {"sawtooth", false,
     [](TopkScores s, TopkGenerator& g) {
       fill_topk_normal(s, g);
       for (std::size_t i = 0; i < s.size(); ++i) s[i] = s[i] * 0.01F + static_cast<float>(i % 16);
     }},
    // Neighbours are alike, as the scores of neighbouring tokens are: a sample that takes several of them sees one.
    {"steps_of_64", false,
     [](TopkScores s, TopkGenerator& g) {
       std::normal_distribution<float> normal;
       for (std::size_t i = 0; i < s.size(); ++i) s[i] = i % 64 == 0 ? normal(g) : s[i - 1];
     }},
};

struct TopkShape {
  const char* name;
  std::int64_t rows, width, k;
};

/// Shapes as served: score rows of DeepSeek's indexers after compression. For benchmarks and `tamis verify`.
inline constexpr TopkShape kTopkModelShapes[] = {
    {"decode_1x8k_k512", 1, 8192, 512},     {"decode_1x64k_k512", 1, 65536, 512},
    {"decode_1x256k_k512", 1, 262144, 512}, {"decode_1x256k_k2048", 1, 262144, 2048},
    {"decode_1x1m_k512", 1, 1048576, 512},  {"decode_16x64k_k1024", 16, 65536, 1024},
    {"decode_64x8k_k2048", 64, 8192, 2048}, {"decode_64x32k_k512", 64, 32768, 512},
};

/// Small shapes around every edge of the code: groups of 16 and 32, the candidate limit 2 * k + 1024, k = width +- 1.
inline constexpr TopkShape kTopkEdgeShapes[] = {
    {"1x1_k1", 1, 1, 1},
    {"3x31_k5", 3, 31, 5},
    {"2x32_k32", 2, 32, 32},
    {"2x33_k32", 2, 33, 32},
    {"5x64_k1", 5, 64, 1},
    {"2x235_k705", 2, 235, 705},
    {"3x705_k704", 3, 705, 704},
    {"2x1026_k1", 2, 1026, 1},
    {"2x1027_k1", 2, 1027, 1},
    {"2x1028_k3", 2, 1028, 3},
    {"2x4097_k2048", 2, 4097, 2048},
    {"2x8320_k2048", 2, 8320, 2048},
    {"2x16383_k512", 2, 16383, 512},
    {"1x16385_k511", 1, 16385, 511},
    {"1x20011_k1025", 1, 20011, 1025},
};

/// Row r of a case: any two rows differ, and a row does not depend on how many there are.
inline std::vector<float> make_topk_row(const TopkDistribution& kind, std::int64_t width, std::int64_t row) {
  TopkGenerator g(topk_seed(kind.name) + static_cast<std::uint64_t>(width) * 1000003ULL +
                  static_cast<std::uint64_t>(row));
  std::vector<float> scores(static_cast<std::size_t>(width));
  kind.fill(scores, g);
  return scores;
}

inline const TopkDistribution& topk_distribution(std::string_view name) {
  for (const TopkDistribution& kind : kTopkDistributions) {
    if (name == kind.name) return kind;
  }
  std::abort();
}

/// The bytes of fp32 scores in another format, rounded to nearest.
inline void encode_topk_scores(std::span<const float> from, DType dtype, void* to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, from.data(), from.size_bytes());
    return;
  }
  auto* out = static_cast<unsigned char*>(to);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint16_t bits = dtype == DType::kBFloat16 ? core::float_to_bf16(from[i]) : core::float_to_fp16(from[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

}  // namespace tamis::test
