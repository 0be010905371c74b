// What compress() writes, against the reference and against itself: any split, any batch, any place in it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "compressor/reference.hpp"
#include "ops/quantize.hpp"
#include "ops/rows.hpp"
#include "support/compressor_cases.hpp"
#include "tamis/compressor.hpp"

namespace tamis::test {
namespace {

class CompressorAgrees : public ::testing::TestWithParam<CompressorShape> {};

// Step between neighbouring numbers of a layout near a value: what storing may be off beside the fp32 bound. e4m3 has 3
// mantissa bits, half a step is 2^-4 of the value; below its normal range half of 2^-9 times the scale, and the scale
// is at most 2 * amax / 448. e2m1: half a step is at most 1 (between 4 and 6) in units of a scale of at most 2 * amax
// / 6.
double storage_error(const CompressorShape& shape, double value, double amax, double cache_scale) {
  constexpr double bf16 = 0x1p-8;
  switch (shape.layout) {
    case CacheLayout::kFloat32: return 0;
    case CacheLayout::kBFloat16: return std::abs(value) * bf16;
    case CacheLayout::kFp8PerTensor: return std::abs(value) * (0x1p-4 + 2 * bf16) + cache_scale * 0x1p-10;
    case CacheLayout::kIndexerMxfp4: return 2 * amax / 6 + std::abs(value) * bf16;
    default: return std::abs(value) * (0x1p-4 + 2 * bf16) + 2 * std::max(amax, 1e-4) / 448 * 0x1p-10;
  }
}

TEST_P(CompressorAgrees, WithReference) {
  const CompressorShape& shape = GetParam();
  const std::int64_t tokens = 2 * shape.window() + shape.ratio + 1;
  CompressorRig rig(shape, 2, tokens);
  rig.run({{0, 0, tokens, 0}, {1, 0, shape.ratio, 1}});
  for (std::int64_t request = 0; request < 2; ++request) {
    const std::int64_t length = request == 0 ? tokens : shape.ratio;
    const auto rows = rig.reference_rows(std::vector<std::int64_t>(static_cast<std::size_t>(length), request));
    for (std::int64_t j = 0; j < length / shape.ratio; ++j) {
      const auto expected = compressor::reference_entry(rig.reference_params(), rows, j);
      const std::vector<float> got = rig.entry_values(request, j);
      double amax = 0;
      for (const double value : expected.value) amax = std::max(amax, std::abs(value));
      for (std::size_t c = 0; c < got.size(); ++c) {
        const double bound = expected.bound[c] + storage_error(shape, expected.value[c], amax, rig.cache().scale);
        ASSERT_NEAR(got[c], expected.value[c], bound) << "request " << request << " entry " << j << " channel " << c;
      }
    }
  }
}

// A quantised entry is the fp32 entry through cache_write(): the bytes follow from the fp32 numbers, which the test
// above has compared. With Hadamard the rounding to bf16 lies before the rotation, so the fp32 run stops before it.
TEST_P(CompressorAgrees, StoresTheBytesOfTheFp32Entry) {
  const CompressorShape& shape = GetParam();
  const std::int64_t tokens = 3 * shape.ratio;
  CompressorShape plain = shape;
  plain.layout = CacheLayout::kFloat32;
  plain.hadamard = shape.hadamard && shape.layout == CacheLayout::kFloat32;
  CompressorRig rig(shape, 1, tokens);
  CompressorRig fp32(plain, 1, tokens);
  rig.run({{0, 0, tokens, 0}});
  fp32.run({{0, 0, tokens, 0}});
  for (std::int64_t j = 0; j < 3; ++j) {
    std::vector<float> row = fp32.entry_values(0, j);
    if (shape.hadamard && shape.layout != CacheLayout::kFloat32) {
      ops::round_row_to_bf16(row.data(), shape.head_dim);
      ops::hadamard_row(row.data(), shape.head_dim);
    }
    const std::vector<std::uint8_t> bytes = rig.entry_bytes(0, j);
    ops::store_entry(row.data(), rig.cache(), rig.entry_slot(0, j), !shape.hadamard);
    EXPECT_EQ(rig.entry_bytes(0, j), bytes) << "entry " << j;
  }
}

TEST_P(CompressorAgrees, WritesNothingButEntriesAndStateRows) {
  const CompressorShape& shape = GetParam();
  const std::int64_t tokens = 2 * shape.ratio + 1;
  CompressorRig rig(shape, 3, 3 * shape.ratio);
  CompressorStep step = rig.build({{1, 0, tokens, 1}});
  const auto kv = step.kv.bytes();
  const auto gate = step.gate.bytes();
  rig.run(step);
  EXPECT_EQ(step.kv.bytes(), kv);
  EXPECT_EQ(step.gate.bytes(), gate);
  // Put the poison back where the call was to write; everything else must still hold it.
  const PagedCache cache = rig.cache();
  for (std::int64_t j = 0; j < tokens / shape.ratio; ++j) {
    auto* bytes = static_cast<std::uint8_t*>(cache.data);
    const std::int64_t slot = rig.entry_slot(1, j);
    std::memset(bytes + ops::data_offset(cache, slot), 0xFF,
                static_cast<std::size_t>(ops::entry_data_bytes(shape.layout, shape.head_dim)));
    std::memset(bytes + ops::scale_offset(cache, slot), 0xFF,
                static_cast<std::size_t>(ops::entry_scale_bytes(shape.layout)));
  }
  const auto left = rig.cache_bytes();
  EXPECT_EQ(left, std::vector<std::uint8_t>(left.size(), 0xFF));
  std::size_t written = 0;
  for (const std::uint8_t byte : rig.all_state_bytes()) written += byte != 0xFF ? 1 : 0;
  const std::int64_t rows = shape.ring ? std::min(tokens, rig.block_size()) : tokens;
  const std::int64_t row_bytes = 2 * shape.width() * dtype_bytes(shape.state);
  EXPECT_LE(written, static_cast<std::size_t>(rows * row_bytes));
  EXPECT_GE(written, static_cast<std::size_t>(rows * row_bytes * 9 / 10));  // random rows hold few 0xFF bytes
}

TEST_P(CompressorAgrees, SavedRowsAreTheReferenceRows) {
  const CompressorShape& shape = GetParam();
  const std::int64_t tokens = 2 * shape.window() + 1;
  CompressorRig rig(shape, 1, tokens);
  rig.run({{0, 0, tokens, 0}});
  const auto rows = rig.reference_rows(std::vector<std::int64_t>(static_cast<std::size_t>(tokens), 0));
  std::vector<std::uint8_t> expected;
  const std::int64_t first = shape.ring ? tokens - rig.block_size() : 0;
  for (std::int64_t t = first; t < tokens; ++t) {
    std::vector<std::uint8_t> row(static_cast<std::size_t>(2 * shape.width() * dtype_bytes(shape.state)));
    const auto bytes = static_cast<std::size_t>(shape.width() * dtype_bytes(shape.state));
    ops::store_row(&rows.values[static_cast<std::size_t>(t * shape.width())], shape.width(), shape.state, row.data());
    ops::store_row(&rows.gates[static_cast<std::size_t>(t * shape.width())], shape.width(), shape.state,
                   row.data() + bytes);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  EXPECT_EQ(rig.state_bytes(0, first, tokens), expected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CompressorAgrees, ::testing::ValuesIn(kCompressorShapes),
                         [](const auto& test) { return std::string(test.param.name); });

// Entries and the state that later steps need, after steps of these sizes.
struct Outcome {
  std::vector<std::vector<std::uint8_t>> entries;
  std::vector<std::uint8_t> state;
  bool operator==(const Outcome&) const = default;
};
Outcome run_split(const CompressorShape& shape, const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  const std::int64_t tokens = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  CompressorRig rig(shape, 1, tokens, 0, seed);
  std::int64_t start = 0;
  for (const std::int64_t size : sizes) {
    rig.run({{0, start, size, 0}});
    start += size;
  }
  return {rig.entries(0, tokens / shape.ratio),
          rig.state_bytes(0, compress_state_begin(tokens, shape.ratio, shape.overlap), tokens)};
}

class CompressorSplits : public ::testing::TestWithParam<CompressorShape> {};

TEST_P(CompressorSplits, EveryCutInTwoGivesTheSameBytes) {
  for (const std::int64_t tokens : {130, 260}) {
    // The second boundary of C128 needs 260 tokens; few channels do there, 130 has them all.
    const CompressorShape shape = tokens == 260 ? small_shape(GetParam()) : GetParam();
    const std::uint64_t seed = test_seed();
    const Outcome whole = run_split(shape, {tokens}, seed);
    for (std::int64_t cut = 1; cut < tokens; ++cut) {
      ASSERT_TRUE(run_split(shape, {cut, tokens - cut}, seed) == whole) << cut << " of " << tokens;
    }
  }
}

TEST_P(CompressorSplits, TwelveTokensInEveryManner) {
  const CompressorShape& shape = GetParam();
  const std::uint64_t seed = test_seed();
  const Outcome whole = run_split(shape, {12}, seed);
  EXPECT_TRUE(run_split(shape, std::vector<std::int64_t>(12, 1), seed) == whole);
  EXPECT_TRUE(run_split(shape, {4, 4, 4}, seed) == whole);
  EXPECT_TRUE(run_split(shape, {5, 7}, seed) == whole);
  EXPECT_TRUE(run_split(shape, {3, 1, 1, 7}, seed) == whole);
}

TEST_P(CompressorSplits, ManyRandomSteps) {
  const CompressorShape& shape = GetParam();
  Random random;
  const std::int64_t tokens = 3 * shape.window() + 5;
  const Outcome whole = run_split(shape, {tokens}, test_seed());
  for (int round = 0; round < 8; ++round) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t left = tokens; left > 0; left -= sizes.back()) {
      sizes.push_back(std::min(left, random.between(1, random.chance(0.5) ? 3 : shape.window() + 3)));
    }
    EXPECT_TRUE(run_split(shape, sizes, test_seed()) == whole) << ::testing::PrintToString(sizes);
  }
}

std::vector<CompressorShape> split_shapes() {
  std::vector<CompressorShape> shapes;
  for (const char* name : {"c4_fp8", "c4_bf16", "c4_ring", "c128_paged", "c128_ring", "c128_ring_bf16", "indexer_fp8",
                           "indexer_mxfp4", "ratio1_overlap", "ratio3_odd_dim", "ratio130_overlap"}) {
    shapes.push_back(compressor_shape(name));
    // The large shapes over hundreds of splits: fewer channels do the same, and the tests above have the full ones.
    if (shapes.back().layout == CacheLayout::kBFloat16) shapes.back().head_dim = 96;
  }
  return shapes;
}
INSTANTIATE_TEST_SUITE_P(Shapes, CompressorSplits, ::testing::ValuesIn(split_shapes()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(CompressorAgrees, InAnyBatchAtAnyPlace) {
  const CompressorShape& shape = GetParam();
  const std::int64_t length = 3 * shape.ratio;
  const std::int64_t other = 2 * shape.ratio + 3;
  const std::int64_t most = std::max(length, other) + 1;
  // cu_seqlens [0, 12] against [0, 12, 23] for C4, then first, middle and last of an uneven batch.
  const std::vector<std::vector<CompressorChunk>> batches = {
      {{0, 0, length, 7}},
      {{0, 0, length, 7}, {1, 0, other, 8}},
      {{1, 0, other, 8}, {0, 0, length, 7}},
      {{2, 0, 1, 9}, {1, 0, other, 8}, {0, 0, length, 7}, {3, 0, 2, 9}, {4, 0, 0, 9}},
      {{4, 0, 0, 9}, {3, 0, 2, 9}, {2, 0, 1, 9}, {1, 0, other, 8}, {0, 0, length, 7}}};
  std::vector<std::vector<std::uint8_t>> expected;
  for (const auto& batch : batches) {
    CompressorRig rig(shape, 5, most);
    rig.run(batch);
    const auto entries = rig.entries(0, 3);
    if (expected.empty()) expected = entries;
    EXPECT_EQ(entries, expected);
  }
}

// Prompts of 1 .. 9 and 126 .. 130 tokens: no entry before its group is complete.
TEST(Compressor, NoEntryBeforeItsGroupIsComplete) {
  for (const char* name : {"c4_fp8", "c128_ring"}) {
    const CompressorShape shape = compressor_shape(name);
    for (std::int64_t tokens = shape.ratio - 3; tokens <= shape.ratio + 5; ++tokens) {
      CompressorRig rig(shape, 1, 2 * shape.ratio);
      rig.run({{0, 0, tokens, 0}});
      const std::vector<std::uint8_t> untouched(rig.entry_bytes(0, 0).size(), 0xFF);
      for (std::int64_t j = 0; j < 2; ++j) {
        EXPECT_EQ(rig.entry_bytes(0, j) == untouched, tokens < (j + 1) * shape.ratio) << name << " " << tokens;
      }
    }
  }
}

// Position and pairing of the rotation at far entries: j up to the last row of the table.
TEST(Compressor, RotatesAtTheFirstTokenOfTheGroup) {
  for (const char* name : {"c4_fp32", "c128_fp32"}) {
    CompressorShape shape = small_shape(compressor_shape(name));
    for (const std::int64_t j : {std::int64_t{1}, std::int64_t{31}, 16384 / shape.ratio - 1}) {
      const std::int64_t end = (j + 1) * shape.ratio;
      const std::int64_t begin = std::max<std::int64_t>(0, end - shape.window());
      CompressorRig rig(shape, 1, end);
      rig.run({{0, begin, end - begin, 0}});
      // The reference wants every row of the request; rows below `begin` do not count and may be anything.
      compressor::ReferenceRows rows{shape.width(), {}, {}};
      rows.values.assign(static_cast<std::size_t>(end * shape.width()), 0.0F);
      rows.gates = rows.values;
      for (std::int64_t t = begin; t < end; ++t) {
        const auto bytes = rig.state_bytes(0, t, t + 1);
        const auto at = static_cast<std::size_t>(t * shape.width());
        const auto half = static_cast<std::size_t>(shape.width()) * 4;
        std::memcpy(&rows.values[at], bytes.data(), half);
        std::memcpy(&rows.gates[at], bytes.data() + half, half);
      }
      const auto expected = compressor::reference_entry(rig.reference_params(), rows, j);
      const auto got = rig.entry_values(0, j);
      for (std::size_t c = 0; c < got.size(); ++c) {
        ASSERT_NEAR(got[c], expected.value[c], expected.bound[c]) << name << " entry " << j << " channel " << c;
      }
    }
  }
}

// Gates far apart (weights underflow), equal, and with -inf among them.
TEST(Compressor, ExtremeGates) {
  CompressorShape shape = small_shape(compressor_shape("c4_fp32"));
  CompressorRig rig(shape, 1, 16);
  const float inf = std::numeric_limits<float>::infinity();
  for (std::int64_t t = 0; t < 16; ++t) {
    auto& row = rig.content_row(0, t);
    for (std::int64_t c = 0; c < shape.width(); ++c) {
      float& gate = row[static_cast<std::size_t>(shape.width() + c)];
      if (c % 5 == 0) gate *= 1e4F;
      if (c % 5 == 1) gate *= 1e30F;
      if (c % 5 == 2) gate = 0;
      if (c % 5 == 3 && t % 4 != 1) gate = -inf;
    }
  }
  rig.run({{0, 0, 7, 0}});
  rig.run({{0, 7, 9, 0}});
  const auto rows = rig.reference_rows(std::vector<std::int64_t>(16, 0));
  for (std::int64_t j = 0; j < 4; ++j) {
    const auto expected = compressor::reference_entry(rig.reference_params(), rows, j);
    const auto got = rig.entry_values(0, j);
    for (std::size_t c = 0; c < got.size(); ++c) {
      ASSERT_NEAR(got[c], expected.value[c], expected.bound[c]) << "entry " << j << " channel " << c;
    }
  }
}

// A negative product too small for fp32 is -0, fused or not; the sum is +0 however many rows and blocks it has.
TEST(Compressor, AValueTooSmallIsPositiveZero) {
  for (const char* name : {"c4_fp32", "c128_fp32"}) {
    const CompressorShape shape = compressor_shape(name);
    CompressorRig rig(shape, 1, 2 * shape.ratio);
    for (std::int64_t t = 0; t < 2 * shape.ratio; ++t) {
      auto& row = rig.content_row(0, t);
      for (std::int64_t c = 0; c < shape.width(); c += shape.head_dim) {  // the first channel of each half
        row[static_cast<std::size_t>(c)] = t % shape.ratio == 0 ? -1e-12F : -0.0F;
        row[static_cast<std::size_t>(shape.width() + c)] = t % shape.ratio == 0 ? -80.0F : 0.0F;
      }
    }
    rig.run({{0, 0, 2 * shape.ratio, 0}});
    for (std::int64_t j = 0; j < 2; ++j) {
      const float value = rig.entry_values(0, j).front();
      EXPECT_EQ(value, 0.0F) << name << " entry " << j;
      EXPECT_FALSE(std::signbit(value)) << name << " entry " << j;
    }
  }
}

TEST(Compressor, NanOfARowThatCountsMakesItsEntryNanAndNoOther) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t bad : {4, 5, 7}) {
    for (const bool in_gate : {false, true}) {
      CompressorRig rig(shape, 1, 16);
      // Channel 3 of half A: counts for the next entry only.
      rig.content_row(0, bad)[static_cast<std::size_t>(3 + (in_gate ? shape.width() : 0))] = nan;
      rig.run({{0, 0, 16, 0}});
      for (std::int64_t j = 0; j < 4; ++j) {
        for (const float value : rig.entry_values(0, j)) EXPECT_EQ(std::isnan(value), j == 2) << bad << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace tamis::test
