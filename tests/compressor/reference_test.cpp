// The worked example of S-3.10: first the reference on its four channels, then compress() on the same numbers spread
// over 128 channels, in every split of steps that the section names.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "compressor/reference.hpp"
#include "support/guarded_buffer.hpp"
#include "tamis/compressor.hpp"

namespace tamis::test {
namespace {

float example_kv(std::int64_t t, std::int64_t c) { return static_cast<float>((7 * t + 3 * c) % 11 - 5) / 4.0F; }
float example_score(std::int64_t t, std::int64_t c) { return static_cast<float>((5 * t + 2 * c) % 7 - 3) / 2.0F; }
float example_ape(std::int64_t r, std::int64_t c) { return static_cast<float>((3 * r + c) % 5 - 2) / 4.0F; }

using Four = std::array<double, 4>;
struct ExampleEntry {
  Four pooled, normed, rotated;
};
// [overlap][entry], seven decimals as printed.
constexpr ExampleEntry kExample[2][2] = {{{{0.3880985, 0.1076428, 0.0956483, 0.5957509},
                                           {1.0699509, 0.2967610, 0.2636933, 1.6424291},
                                           {1.0699509, 0.2967610, 0.2636933, 1.6424291}},
                                          {{-0.0767881, -0.1120810, -0.4691901, -0.4043517},
                                           {-0.2421897, -0.3535035, -1.4798258, -1.2753256},
                                           {-0.2421897, -0.3535035, 0.0021091, 1.9535443}}},
                                         {{{0.2229839, -0.0488589, 0.2004645, 0.0042351},
                                           {1.4677861, -0.3216125, 1.3195525, 0.0278773},
                                           {1.4677861, -0.3216125, 1.3195525, 0.0278773}},
                                          {{0.1793599, 0.1212307, -0.1386389, 0.3036609},
                                           {0.9015978, 0.6093965, -0.6969033, 1.5264279},
                                           {0.9015978, 0.6093965, 1.6107308, -0.4703217}}}};
constexpr double kPrinted = 0.6e-7;  // half of the last printed decimal, and double rounding

TEST(CompressorReference, GivesTheWorkedExample) {
  const std::vector<float> ones(4, 1.0F);
  std::vector<float> cos_sin;  // one frequency of 1
  for (int p = 0; p < 8; ++p) {
    cos_sin.push_back(static_cast<float>(std::cos(p)));
    cos_sin.push_back(static_cast<float>(std::sin(p)));
  }
  for (const bool overlap : {false, true}) {
    compressor::ReferenceRows rows{overlap ? 8 : 4, {}, {}};
    for (std::int64_t t = 0; t < 8; ++t) {
      for (std::int64_t c = 0; c < rows.width; ++c) {
        rows.values.push_back(example_kv(t, c));
        rows.gates.push_back(example_score(t, c) + example_ape(t % 4, c));
      }
    }
    for (std::int64_t j = 0; j < 2; ++j) {
      compressor::ReferenceParams p;
      p.ratio = 4;
      p.overlap = overlap;
      p.head_dim = 4;
      p.rope_dims = 0;
      p.norm_weight = ones.data();
      const ExampleEntry& expected = kExample[overlap][j];
      const auto normed = compressor::reference_entry(p, rows, j);
      p.rope_dims = 2;
      p.cos_sin = cos_sin.data();
      p.cos_sin_stride = 2;
      const auto rotated = compressor::reference_entry(p, rows, j);
      for (std::size_t c = 0; c < 4; ++c) {
        EXPECT_NEAR(normed.pooled[c], expected.pooled[c], kPrinted) << overlap << " " << j << " " << c;
        EXPECT_NEAR(normed.value[c], expected.normed[c], kPrinted) << overlap << " " << j << " " << c;
        // The table holds fp32 cosines: 2^-25 of |e| + |o| <= 3.
        EXPECT_NEAR(rotated.value[c], expected.rotated[c], kPrinted + 1e-7) << overlap << " " << j << " " << c;
      }
    }
  }
}

// The four channels, each 32 times: n0 n1 n0 n1 .. (64 dims), then e o e o .. (64 rope dims). Repeating leaves the mean
// of squares as it is, and every rotary pair has the frequency 1.
std::int64_t spread(std::int64_t c) { return c < 64 ? c % 2 : 2 + c % 2; }

class CompressorExample : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::int64_t kDim = 128;
  // Runs steps of the given sizes; `wrong_draft` first runs positions 0..3 with other inputs at 3, then goes on from 3.
  std::vector<float> run(const std::vector<std::int64_t>& sizes, bool wrong_draft = false) {
    overlap_ = GetParam();
    width_ = overlap_ ? 2 * kDim : kDim;
    state_ = GuardedBuffer<float>(static_cast<std::size_t>(4 * 4 * 2 * width_));
    entries_ = GuardedBuffer<float>(2 * kDim);
    if (wrong_draft) step(0, 4, true);
    std::int64_t start = wrong_draft ? 3 : 0;
    for (const std::int64_t size : sizes) {
      step(start, size, false);
      start += size;
    }
    EXPECT_TRUE(state_.guards_intact());
    EXPECT_TRUE(entries_.guards_intact());
    return entries_.copy();
  }

 private:
  void step(std::int64_t start, std::int64_t count, bool wrong_last) {
    std::vector<float> kv, gate, ape, cos_sin, ones(kDim, 1.0F);
    const auto source = [&](std::int64_t c) { return spread(c % kDim) + (c >= kDim ? 4 : 0); };
    std::vector<std::int64_t> positions, state_slots, kv_slots;
    for (std::int64_t t = start; t < start + count; ++t) {
      const bool wrong = wrong_last && t == start + count - 1;
      for (std::int64_t c = 0; c < width_; ++c) {
        kv.push_back(wrong ? 77.0F : example_kv(t, source(c)));
        gate.push_back(wrong ? 3.0F : example_score(t, source(c)));
      }
      positions.push_back(t);
      state_slots.push_back(t);
      kv_slots.push_back(t % 4 == 3 ? t / 4 : -1);
    }
    for (std::int64_t r = 0; r < 4; ++r) {
      for (std::int64_t c = 0; c < width_; ++c) ape.push_back(example_ape(r, source(c)));
    }
    for (int p = 0; p < 8; ++p) {
      for (int i = 0; i < 32; ++i) cos_sin.push_back(static_cast<float>(std::cos(p)));
      for (int i = 0; i < 32; ++i) cos_sin.push_back(static_cast<float>(std::sin(p)));
    }
    const std::vector<std::int32_t> owners(static_cast<std::size_t>(count), 0);
    const std::int32_t qsl[2] = {0, static_cast<std::int32_t>(count)};
    const std::int32_t table[4] = {0, 1, 2, 3};
    CompressArgs a;
    a.compress_ratio = 4;
    a.overlap = overlap_;
    a.kv = {kv.data(), DType::kFloat32, {count, width_}};
    a.gate = {gate.data(), DType::kFloat32, {count, width_}};
    a.ape = {ape.data(), DType::kFloat32, {4, width_}};
    a.norm_weight = {ones.data(), DType::kFloat32, {kDim}};
    a.cos_sin = {cos_sin.data(), DType::kFloat32, {8, 64}};
    a.positions = {positions.data(), DType::kInt64, {count}};
    a.token_to_request = {owners.data(), DType::kInt32, {count}};
    a.query_start_loc = {qsl, DType::kInt32, {2}};
    a.state = {state_.data(), DType::kFloat32, {4, 4, 2 * width_}};
    a.state_table = {table, DType::kInt32, {1, 4}};
    a.state_slots = {state_slots.data(), DType::kInt64, {count}};
    a.cache = {entries_.data(), CacheLayout::kFloat32, kDim, 1, 2, 2 * kDim * 4, 1.0F, {}};
    a.kv_slots = {kv_slots.data(), DType::kInt64, {count}};
    a.num_threads = 1;
    alignas(64) std::byte workspace[4096];
    a.workspace = workspace;
    a.workspace_bytes = compress_workspace_bytes(a);
    ASSERT_LE(a.workspace_bytes, sizeof(workspace));
    compress(a);
  }

  bool overlap_ = false;
  std::int64_t width_ = 0;
  GuardedBuffer<float> state_{0}, entries_{0};
};

TEST_P(CompressorExample, ComesOutOfTheOperationInEverySplit) {
  const std::vector<float> whole = run({8});
  for (std::int64_t j = 0; j < 2; ++j) {
    for (std::int64_t c = 0; c < 128; ++c) {
      // fp32 pooling of 8 rows, a norm over 128 and a rotation: about (2 * 8 + 8 + 66) * 2^-24 * 2.
      EXPECT_NEAR(whole[static_cast<std::size_t>(j * 128 + c)],
                  kExample[GetParam()][j].rotated[static_cast<std::size_t>(spread(c))], 1.1e-5)
          << j << " " << c;
    }
  }
  EXPECT_EQ(run({3, 5}), whole);
  EXPECT_EQ(run({1, 1, 1, 1, 1, 1, 1, 1}), whole);
  EXPECT_EQ(run({4, 4}), whole);
  EXPECT_EQ(run({7, 1}), whole);
  EXPECT_EQ(run({1, 4}, true), whole);  // the rejected draft at 3 wrote entry 0 and its state row; both are replaced
  EXPECT_EQ(run({5}, true), whole);
}
INSTANTIATE_TEST_SUITE_P(Both, CompressorExample, ::testing::Bool());

}  // namespace
}  // namespace tamis::test
