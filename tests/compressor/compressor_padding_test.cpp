// Padding inside the range of a request: in front of its tokens, behind them, between them. Every byte of state and
// cache must be that of the run without padding.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "support/compressor_padding.hpp"
#include "tamis/compressor.hpp"

namespace tamis::test {
namespace {

using Sizes = std::vector<std::int64_t>;

struct Pattern {
  const char* name;
  std::int64_t (*count)(std::int64_t k, std::int64_t n);  // padding tokens in front of token k of n; k = n: at the end
};
// 300 is longer than any ring and window of the shapes below.
constexpr Pattern kPatterns[] = {
    {"one behind", [](std::int64_t k, std::int64_t n) -> std::int64_t { return k == n ? 1 : 0; }},
    {"many behind", [](std::int64_t k, std::int64_t n) -> std::int64_t { return k == n ? 300 : 0; }},
    {"one in front", [](std::int64_t k, std::int64_t) -> std::int64_t { return k == 0 ? 1 : 0; }},
    {"many in front", [](std::int64_t k, std::int64_t) -> std::int64_t { return k == 0 ? 300 : 0; }},
    {"one before the last", [](std::int64_t k, std::int64_t n) -> std::int64_t { return k == n - 1 ? 1 : 0; }},
    {"many in the middle", [](std::int64_t k, std::int64_t n) -> std::int64_t { return k == (n + 1) / 2 ? 300 : 0; }},
    {"everywhere", [](std::int64_t, std::int64_t) -> std::int64_t { return 1; }},
    {"here and there", [](std::int64_t k, std::int64_t n) -> std::int64_t { return k % 3 == 1 ? 2
                                                                                   : k == n   ? 5
                                                                                              : 0; }},
};

std::vector<CompressorShape> padding_shapes() {
  std::vector<CompressorShape> shapes;
  for (const char* name : {"c4_fp32", "c4_ring", "c128_paged", "c128_ring", "c128_ring_bf16", "ratio1_overlap"}) {
    shapes.push_back(small_shape(compressor_shape(name)));
  }
  CompressorShape paged = shapes.front();  // R = 4 without overlap, blocks and ring of 4 rows
  paged.name = "plain4_paged";
  paged.overlap = false;
  CompressorShape ring = paged;
  ring.name = "plain4_ring";
  ring.ring = true;
  shapes.push_back(paged);
  shapes.push_back(ring);
  return shapes;
}

// Two requests with different inputs, each in steps of these sizes.
template <typename Count>
void expect_no_effect(const CompressorShape& shape, const Sizes& sizes, PaddingKind kind, const Count& count,
                      int num_threads, const std::string& what) {
  std::int64_t tokens = 0;
  for (const std::int64_t size : sizes) tokens += size;
  CompressorRig clean(shape, 2, tokens);
  CompressorRig padded(shape, 2, tokens);
  std::int64_t start = 0;
  for (const std::int64_t size : sizes) {
    const std::vector<CompressorChunk> chunks = {{0, start, size, 0}, {1, start, size, 1}};
    clean.run(chunks);
    CompressorStep step = padded.build(chunks);
    step.num_threads = num_threads;
    padded.run(with_padding(step, shape, kind, count));
    start += size;
  }
  ASSERT_EQ(padded.entries(0, tokens / shape.ratio), clean.entries(0, tokens / shape.ratio)) << what;
  ASSERT_EQ(padded.cache_bytes(), clean.cache_bytes()) << what;
  ASSERT_EQ(padded.all_state_bytes(), clean.all_state_bytes()) << what;
}

class CompressorPaddingInRange : public ::testing::TestWithParam<CompressorShape> {};

TEST_P(CompressorPaddingInRange, HasNoEffect) {
  const CompressorShape& shape = GetParam();
  const std::int64_t half = std::max<std::int64_t>(1, shape.ratio / 2);
  // Halves of groups; then steps that complete several, cut off the boundaries and, for rings, longer than them.
  for (const Sizes& sizes : {Sizes{half, half}, Sizes{half, 3 * shape.ratio + 1, 1, 2 * shape.ratio}}) {
    for (const PaddingKind kind : kPaddingKinds) {
      for (const Pattern& pattern : kPatterns) {
        expect_no_effect(shape, sizes, kind, pattern.count, 1,
                         std::string(pattern.name) + ", kind " + std::to_string(static_cast<int>(kind)) + ", " +
                             std::to_string(sizes.size()) + " steps");
      }
    }
  }
}

TEST_P(CompressorPaddingInRange, AnyPlaceAnySplit) {
  const CompressorShape& shape = GetParam();
  Random random;
  for (int round = 0; round < 30; ++round) {
    Sizes sizes;
    for (std::int64_t left = 2 * shape.window() + 5; left > 0; left -= sizes.back()) {
      sizes.push_back(std::min(left, random.between(1, random.chance(0.5) ? 3 : shape.window() + 3)));
    }
    const double chance = random.chance(0.5) ? 0.05 : 0.4;
    const PaddingKind kind = kPaddingKinds[random.below(6)];
    const auto count = [&](std::int64_t, std::int64_t) { return random.chance(chance) ? random.between(1, 6) : 0; };
    expect_no_effect(shape, sizes, kind, count, 1,
                     ::testing::PrintToString(sizes) + ", kind " + std::to_string(static_cast<int>(kind)));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CompressorPaddingInRange, ::testing::ValuesIn(padding_shapes()),
                         [](const auto& test) { return std::string(test.param.name); });

// Pieces of tokens that begin and end inside padding.
TEST(ThreadCompressorPadding, InRangeHasNoEffect) {
  for (const CompressorShape& shape : padding_shapes()) {
    for (const Pattern& pattern : kPatterns) {
      expect_no_effect(shape, {shape.ratio + 1, 3 * shape.ratio}, PaddingKind::kMinusOne, pattern.count, 3,
                       std::string(shape.name) + ", " + pattern.name);
    }
  }
}

}  // namespace
}  // namespace tamis::test
