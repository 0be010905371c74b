#pragma once

// Random numbers of a test. The seed comes from the test's name, so a test does the same thing in every run and two
// tests do different things; a failing test names itself and with that its seed.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

namespace tamis::test {

/// FNV-1a of "Suite.Name" of the running test (parameters are part of the name), or of "none" outside a test.
inline std::uint64_t test_seed() {
  std::string name = "none";
  if (const auto* info = ::testing::UnitTest::GetInstance()->current_test_info()) {
    name = std::string(info->test_suite_name()) + "." + info->name();
  }
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3ULL;
  return hash;
}

/// SplitMix64: small, fast, and the same on every platform (the distributions of <random> are not).
class Random {
 public:
  explicit Random(std::uint64_t seed = test_seed()) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// In [0, bound); bound > 0. The bias of the remainder is below 2^-32 for the bounds that tests use.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(bound));
  }
  /// In [lo, hi], both included.
  std::int64_t between(std::int64_t lo, std::int64_t hi) { return lo + below(hi - lo + 1); }
  bool chance(double probability) { return uniform() < probability; }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  float uniform(float lo, float hi) { return lo + static_cast<float>(uniform()) * (hi - lo); }
  /// Standard normal (Box-Muller, one of the pair).
  float normal() {
    const double u = 1.0 - uniform();  // in (0, 1], so the logarithm is finite
    const double angle = 6.283185307179586 * uniform();
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
  }
  /// Any of the 2^32 patterns: NaN, infinities and subnormals included.
  float any_float() { return std::bit_cast<float>(static_cast<std::uint32_t>(bits())); }
  template <typename Container>
  void fill_normal(Container& values, float scale = 1.0F) {
    for (auto& value : values) value = scale * normal();
  }
  template <typename Container>
  void shuffle(Container& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace tamis::test
