#pragma once

// Named shapes and named kinds of scores for top-k, and a call with its memory. Tests, benchmarks and fuzzers share
// them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/float_formats.hpp"
#include "tamis/topk.hpp"

namespace tamis::cases {

using Scores = std::span<float>;
using Generator = std::mt19937_64;

/// Seed from a name, so that a case is the same everywhere (FNV-1a).
inline std::uint64_t seed_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3ULL;
  return hash;
}

inline void fill_normal(Scores s, Generator& g) {
  std::normal_distribution<float> normal;
  for (float& x : s) x = normal(g);
}

/// Scatters `special` over the row: each score becomes it with the given probability.
inline void scatter(Scores s, Generator& g, double probability, float special) {
  std::bernoulli_distribution pick(probability);
  for (float& x : s) {
    if (pick(g)) x = special;
  }
}

struct TopkDistribution {
  const char* name;
  bool headline;  // one of those whose time must stay within 1.1x of `normal`
  void (*fill)(Scores, Generator&);
};

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline constexpr TopkDistribution kTopkDistributions[] = {
    {"normal", true, fill_normal},
    {"normal_plus_100", true,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       for (float& x : s) x += 100.0F;
     }},
    {"normal_times_1e_8", true,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       for (float& x : s) x *= 1e-8F;
     }},
    {"ascending", true,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       std::sort(s.begin(), s.end());
     }},
    {"descending", true,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       std::sort(s.begin(), s.end(), std::greater<>());
     }},
    {"quantised", true,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       for (float& x : s) x = std::round(x * 8.0F) / 8.0F;
     }},
    {"all_equal", true, [](Scores s, Generator&) { std::fill(s.begin(), s.end(), 0.5F); }},
    {"relu_90", true,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       for (float& x : s) x = std::max(0.0F, x - 1.2816F);  // 90% of a normal lies below 1.2816
     }},
    {"negative", false,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       for (float& x : s) x = -std::abs(x) - 1.0F;
     }},
    // All in one bin of a histogram over the leading bits.
    {"one_fp16_bin", false,
     [](Scores s, Generator& g) {
       for (std::size_t i = 0; i < s.size(); ++i) {
         s[i] = 1.0F + 0.245F * static_cast<float>(i) / static_cast<float>(s.size());
       }
       std::shuffle(s.begin(), s.end(), g);
     }},
    {"neighbouring_floats", false,
     [](Scores s, Generator& g) {
       for (std::size_t i = 0; i < s.size(); ++i) s[i] = 1.0F + static_cast<float>(i % 5000) * 0x1p-23F;
       std::shuffle(s.begin(), s.end(), g);
     }},
    {"below_fp16_range", false,
     [](Scores s, Generator& g) {
       std::uniform_real_distribution<float> uniform(-1e6F, -7e4F);
       for (float& x : s) x = uniform(g);
     }},
    {"subnormal", false,
     [](Scores s, Generator& g) {
       std::uniform_int_distribution<std::uint32_t> bits(0, 2000);
       for (float& x : s) x = std::bit_cast<float>(bits(g) | (static_cast<std::uint32_t>(g() & 1U) << 31));
     }},
    {"signed_zeros", false,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       for (float& x : s) x = x > 2.5F ? x : (g() % 2 == 0 ? 0.0F : -0.0F);
     }},
    {"infinities", false,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       scatter(s, g, 0.05, kInf);
       scatter(s, g, 0.3, -kInf);
     }},
    {"all_minus_inf", false, [](Scores s, Generator&) { std::fill(s.begin(), s.end(), -kInf); }},
    {"few_finite_rest_minus_inf", false,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       scatter(s, g, 0.97, -kInf);
     }},
    {"all_nan", false, [](Scores s, Generator&) { std::fill(s.begin(), s.end(), kNan); }},
    {"few_nan", false,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       scatter(s, g, 0.01, kNan);
       scatter(s, g, 0.01, -kNan);
     }},
    {"mostly_nan", false,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       scatter(s, g, 0.5, kNan);
       scatter(s, g, 0.9, -kNan);
       scatter(s, g, 0.02, -kInf);
     }},
    // Winners lie in one short stretch that a sample is likely to hit wholly or to miss.
    {"one_peak", false,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       for (std::size_t i = s.size() / 3; i < std::min(s.size(), s.size() / 3 + 700); ++i) s[i] += 50.0F;
     }},
    // Period 16: any stride that is a multiple of it sees one phase only.
    {"sawtooth", false,
     [](Scores s, Generator& g) {
       fill_normal(s, g);
       for (std::size_t i = 0; i < s.size(); ++i) s[i] = s[i] * 0.01F + static_cast<float>(i % 16);
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
inline std::vector<float> make_row(const TopkDistribution& kind, std::int64_t width, std::int64_t row) {
  Generator g(seed_of(kind.name) + static_cast<std::uint64_t>(width) * 1000003ULL + static_cast<std::uint64_t>(row));
  std::vector<float> scores(static_cast<std::size_t>(width));
  kind.fill(scores, g);
  return scores;
}

inline const TopkDistribution& distribution(std::string_view name) {
  for (const TopkDistribution& kind : kTopkDistributions) {
    if (name == kind.name) return kind;
  }
  std::abort();
}

/// The bytes of fp32 scores in another format, rounded to nearest.
inline void encode_scores(Scores from, DType dtype, void* to) {
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

/// Memory of one tensor between two guards, at any byte offset from a 64-byte boundary; starts out as poison.
class Guarded {
 public:
  static constexpr std::size_t kGuard = 128;
  static constexpr unsigned char kPoison = 0xA5;

  explicit Guarded(std::size_t bytes, std::size_t offset = 0)
      : bytes_(bytes), storage_(bytes + 2 * kGuard + 64 + offset, kPoison) {
    const auto base = reinterpret_cast<std::uintptr_t>(storage_.data());
    begin_ = (base + kGuard + 63) / 64 * 64 - base + offset;
  }
  unsigned char* data() { return storage_.data() + begin_; }
  const unsigned char* data() const { return storage_.data() + begin_; }
  std::size_t size() const { return bytes_; }
  /// Nothing was written in front or behind.
  bool intact() const {
    const auto poison = [](unsigned char byte) { return byte == kPoison; };
    return std::all_of(storage_.begin(), storage_.begin() + static_cast<std::ptrdiff_t>(begin_), poison) &&
           std::all_of(storage_.begin() + static_cast<std::ptrdiff_t>(begin_ + bytes_), storage_.end(), poison);
  }
  void poison() { std::memset(data(), kPoison, bytes_); }

 private:
  std::size_t bytes_, begin_ = 0;
  std::vector<unsigned char> storage_;
};

/// One call with its scores, outputs and workspace. Change `args` before run() as a test needs.
struct TopkCase {
  TopkCase(std::int64_t rows, std::int64_t width, std::int64_t k, DType dtype = DType::kFloat32,
           std::int64_t row_stride = 0, std::size_t offset = 0, DType index_dtype = DType::kInt32)
      : stride(row_stride == 0 ? width : row_stride),
        scores(static_cast<std::size_t>(rows * stride * dtype_bytes(dtype)), offset),
        indices(static_cast<std::size_t>(rows * k * dtype_bytes(index_dtype))),
        values(static_cast<std::size_t>(rows * k * dtype_bytes(dtype))),
        certificate(static_cast<std::size_t>(rows * 16)) {
    args.scores = ConstTensorView(scores.data(), dtype, {rows, width}, {stride, 1});
    args.k = k;
    args.indices = TensorView(indices.data(), index_dtype, {rows, k});
    args.values = TensorView(values.data(), dtype, {rows, k});
    args.certificate = TensorView(certificate.data(), DType::kInt32, {rows, 4});
    args.num_threads = 1;
  }
  TopkCase(const TopkCase&) = delete;
  TopkCase& operator=(const TopkCase&) = delete;

  void set_row(std::int64_t row, std::vector<float> from) {
    encode_scores(from, args.scores.dtype(), scores.data() + row * stride * dtype_bytes(args.scores.dtype()));
  }
  void fill(const TopkDistribution& kind) {
    for (std::int64_t r = 0; r < args.scores.size(0); ++r) set_row(r, make_row(kind, args.scores.size(1), r));
  }
  /// Runs on a workspace of exactly the size asked for, filled with 0xFF.
  void run() {
    const std::size_t bytes = topk_workspace_bytes(args);
    Guarded workspace(bytes);
    std::memset(workspace.data(), 0xFF, bytes);
    args.workspace = workspace.data();
    args.workspace_bytes = bytes;
    topk(args);
    guards_intact =
        scores.intact() && indices.intact() && values.intact() && certificate.intact() && workspace.intact();
    args.workspace = nullptr;
    args.workspace_bytes = 0;
  }
  std::int64_t index(std::int64_t row, std::int64_t i) const {
    const auto at = static_cast<std::size_t>(row * args.indices.stride(0) + i);
    if (args.indices.dtype() == DType::kInt64) {
      std::int64_t value;
      std::memcpy(&value, indices.data() + at * 8, 8);
      return value;
    }
    std::int32_t value;
    std::memcpy(&value, indices.data() + at * 4, 4);
    return value;
  }
  std::vector<std::int64_t> index_row(std::int64_t row) const {
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < args.k; ++i) out.push_back(index(row, i));
    return out;
  }
  TopkCertificate certificate_row(std::int64_t row) const {
    TopkCertificate value;
    std::memcpy(&value, certificate.data() + row * 16, 16);
    return value;
  }

  std::int64_t stride;
  Guarded scores, indices, values, certificate;
  TopkArgs args;
  bool guards_intact = false;
};

}  // namespace tamis::cases
