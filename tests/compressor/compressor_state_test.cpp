// State between steps: rejected drafts, prefix hits, never-written rows, the plan.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/compressor_cases.hpp"
#include "tamis/compressor.hpp"

namespace tamis::test {
namespace {

constexpr std::int64_t kMaxDrafts = 8;
constexpr std::int64_t kTruth = 0;  // contents
constexpr std::int64_t kWrong = 1;

class CompressorRollback : public ::testing::TestWithParam<CompressorShape> {};

// For every phase around a boundary: `prefix` tokens, a step of n drafts of which `accepted` are right, then three more
// steps with the true tokens, the last of them past the next boundary. Entries and needed state equal a run without
// drafts.
TEST_P(CompressorRollback, EveryPhaseEveryCount) {
  const CompressorShape& shape = GetParam();
  const std::int64_t first = shape.ratio == 128 ? 120 : 0;
  for (std::int64_t prefix = first; prefix <= first + 16; ++prefix) {
    const std::int64_t end = prefix + kMaxDrafts + 3 + shape.ratio;
    CompressorRig fresh(shape, 1, end, kMaxDrafts);
    fresh.run({{0, 0, end, kTruth}});
    const auto entries = fresh.entries(0, end / shape.ratio);
    const std::int64_t needed = compress_state_begin(end, shape.ratio, shape.overlap);
    const auto state = fresh.state_bytes(0, needed, end);
    for (std::int64_t drafts = 1; drafts <= kMaxDrafts; ++drafts) {
      for (std::int64_t accepted = 0; accepted <= drafts; ++accepted) {
        CompressorRig rig(shape, 1, end, kMaxDrafts);
        if (prefix > 0) rig.run({{0, 0, prefix, kTruth}});
        CompressorStep verify = rig.build({{0, prefix, drafts, kTruth}});
        const CompressorStep wrong = rig.build({{0, prefix, drafts, kWrong}});
        const std::size_t row = static_cast<std::size_t>(verify.kv.stride() * dtype_bytes(shape.input));
        const std::size_t gate_row = static_cast<std::size_t>(verify.gate.stride() * dtype_bytes(shape.input));
        for (auto i = static_cast<std::size_t>(accepted); i < static_cast<std::size_t>(drafts); ++i) {
          std::memcpy(verify.kv.data() + i * row, wrong.kv.data() + i * row, row);
          std::memcpy(verify.gate.data() + i * gate_row, wrong.gate.data() + i * gate_row, gate_row);
        }
        rig.run(verify);
        std::int64_t next = prefix + accepted;
        for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}, end - next - 3}) {
          rig.run({{0, next, size, kTruth}});
          next += size;
        }
        ASSERT_EQ(next, end);
        ASSERT_EQ(rig.entries(0, end / shape.ratio), entries) << prefix << " + " << drafts << ", kept " << accepted;
        ASSERT_EQ(rig.state_bytes(0, needed, end), state) << prefix << " + " << drafts << ", kept " << accepted;
      }
    }
  }
}

std::vector<CompressorShape> rollback_shapes() {
  std::vector<CompressorShape> shapes;
  for (const char* name : {"c4_fp32", "c4_ring", "c128_paged", "c128_ring", "c128_ring_bf16"}) {
    shapes.push_back(small_shape(compressor_shape(name)));
  }
  return shapes;
}
INSTANTIATE_TEST_SUITE_P(Shapes, CompressorRollback, ::testing::ValuesIn(rollback_shapes()),
                         [](const auto& test) { return std::string(test.param.name); });

// Why compress_ring_rows() asks for more rows when there are drafts: in a ring of exactly one window, drafts past the
// boundary overwrite rows of the group that is open again after the rollback.
TEST(CompressorRing, WithoutRoomForDraftsARollbackLosesRows) {
  const CompressorShape shape = small_shape(compressor_shape("c128_ring"));
  for (const std::int64_t max_drafts : {std::int64_t{0}, std::int64_t{4}}) {
    CompressorRig fresh(shape, 1, 140, max_drafts);
    fresh.run({{0, 0, 128, kTruth}});
    CompressorRig rig(shape, 1, 140, max_drafts);
    rig.run({{0, 0, 126, kTruth}});
    rig.run({{0, 126, 4, kWrong}});  // 126 .. 129; 128 and 129 wrap onto rows 0 and 1 of a ring of 128
    rig.run({{0, 126, 2, kTruth}});
    EXPECT_EQ(rig.entry_bytes(0, 0) == fresh.entry_bytes(0, 0), max_drafts >= 4);
  }
}

// A request starts at a prefix hit in blocks that hold another request's leftovers, after the rows from
// compress_state_begin() on were replayed, in a step of their own or in front of the first new tokens.
TEST(CompressorPrefixHit, ReplayFromStateBeginEqualsAColdRun) {
  for (const char* name : {"c4_fp32", "c4_ring", "c128_paged", "c128_ring"}) {
    const CompressorShape shape = small_shape(compressor_shape(name));
    constexpr std::int64_t kEnd = 1000;
    CompressorRig cold(shape, 1, kEnd);
    cold.run({{0, 0, kEnd, kTruth}});
    for (const std::int64_t hit : {512, 513, 515, 640, 641}) {
      const std::int64_t begin = compress_state_begin(hit, shape.ratio, shape.overlap);
      for (const bool one_step : {false, true}) {
        CompressorRig rig(shape, 1, kEnd);
        rig.run({{0, 0, kEnd, kWrong}});  // leftovers
        rig.poison_cache(0xFF);
        CompressorStep replay = rig.build({{0, begin, (one_step ? kEnd : hit) - begin, kTruth}});
        // Entries below the hit are cached already; replayed tokens write none.
        for (std::int64_t t = begin; t < hit; ++t) replay.kv_slots[static_cast<std::size_t>(t - begin)] = -1;
        if (replay.tokens() > 0) rig.run(replay);
        if (!one_step) rig.run({{0, hit, kEnd - hit, kTruth}});
        for (std::int64_t j = hit / shape.ratio; j < kEnd / shape.ratio; ++j) {
          ASSERT_EQ(rig.entry_bytes(0, j), cold.entry_bytes(0, j)) << name << " hit " << hit << " entry " << j;
        }
      }
    }
  }
}

// Without the replay the first entries after the hit differ: the test above does test something.
TEST(CompressorPrefixHit, WithoutReplayTheFirstEntryIsWrong) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"));
  CompressorRig cold(shape, 1, 520);
  cold.run({{0, 0, 520, kTruth}});
  CompressorRig rig(shape, 1, 520);
  rig.run({{0, 0, 520, kWrong}});
  rig.run({{0, 512, 8, kTruth}});
  EXPECT_NE(rig.entry_bytes(0, 128), cold.entry_bytes(0, 128));
  EXPECT_EQ(rig.entry_bytes(0, 129), cold.entry_bytes(0, 129));
}

// Nothing that was never written reaches a result: the same bytes over state full of NaN, zeros or large numbers.
TEST(CompressorState, NeverWrittenRowsAreUnreachable) {
  for (const CompressorShape& full : kCompressorShapes) {
    CompressorShape shape = full;
    std::vector<std::vector<std::uint8_t>> expected;
    for (const std::uint8_t poison : {0xFF, 0x00, 0x7E, 0x7F}) {
      const std::int64_t tokens = 2 * shape.ratio + 1;
      CompressorRig rig(shape, 2, tokens);
      rig.poison_state(poison);
      rig.run({{0, 0, 1, 0}, {1, 0, tokens, 1}});
      for (std::int64_t t = 1; t < tokens; t += 3) rig.run({{0, t, std::min<std::int64_t>(3, tokens - t), 0}});
      auto entries = rig.entries(0, 2);
      for (auto& entry : rig.entries(1, 2)) entries.push_back(entry);
      for (const float value : rig.entry_values(0, 1)) ASSERT_TRUE(std::isfinite(value)) << shape;
      if (expected.empty()) expected = entries;
      EXPECT_EQ(entries, expected) << shape << " poison " << int{poison};
    }
  }
}

// A row without a block is left out; the entry then pools the others.
TEST(CompressorState, RowsWithoutABlockAreLeftOut) {
  for (const char* name : {"c4_fp32", "c4_ring"}) {
    CompressorShape shape = small_shape(compressor_shape(name));
    shape.state = DType::kFloat32;
    for (const std::int32_t missing : {-1, INT32_MIN, INT32_MAX, 1000000}) {
      CompressorRig rig(shape, 1, 16);
      rig.run({{0, 0, 4, 0}});
      CompressorStep step = rig.build({{0, 4, 4, 0}});
      // Paged with blocks of 4: the first column holds positions 0..3. The ring has one block.
      rig.step_state()[0] = missing;
      rig.run(step);
      auto rows = rig.reference_rows(std::vector<std::int64_t>(8, 0));
      const auto half = static_cast<std::size_t>(4 * shape.width());
      std::fill(rows.gates.begin(), rows.gates.begin() + static_cast<std::ptrdiff_t>(half),
                -std::numeric_limits<float>::infinity());
      const auto expected = compressor::reference_entry(rig.reference_params(), rows, 1);
      const auto got = rig.entry_values(0, 1);
      for (std::size_t c = 0; c < got.size(); ++c) ASSERT_NEAR(got[c], expected.value[c], expected.bound[c]) << name;
    }
  }
}

// Freed pages of a sliding window: table entries below the window are null, as engines leave them.
TEST(CompressorState, FreedBlocksBelowTheWindowDoNotMatter) {
  const CompressorShape shape = small_shape(compressor_shape("c128_paged"));
  CompressorRig whole(shape, 1, 512);
  whole.run({{0, 0, 512, 0}});
  CompressorRig rig(shape, 1, 512);
  rig.run({{0, 0, 390, 0}});
  CompressorStep step = rig.build({{0, 390, 122, 0}});
  for (std::int64_t block = 0; block < 384 / rig.block_size(); ++block) {
    rig.step_state()[static_cast<std::size_t>(block)] = -1;
  }
  rig.run(step);
  EXPECT_EQ(rig.entry_bytes(0, 3), whole.entry_bytes(0, 3));
}

TEST(CompressorPlan, NoneSavesStateAndSkipsEntries) {
  for (const char* name : {"c4_fp32", "c128_ring", "c128_paged"}) {
    const CompressorShape shape = small_shape(compressor_shape(name));
    CompressorRig pooled(shape, 1, 2 * shape.ratio);
    CompressorRig skipped(shape, 1, 2 * shape.ratio);
    for (std::int64_t t = 0; t < shape.ratio; ++t) {
      CompressorStep step = skipped.build({{0, t, 1, 0}});
      step.plan = compress_plan(std::vector<std::int64_t>{t}, std::vector<std::int64_t>{1}, shape.ratio);
      EXPECT_EQ(step.plan == CompressPlan::kNone, t + 1 < shape.ratio);
      skipped.run(step);
      pooled.run({{0, t, 1, 0}});
    }
    EXPECT_EQ(skipped.cache_bytes(), pooled.cache_bytes()) << name;
    EXPECT_EQ(skipped.all_state_bytes(), pooled.all_state_bytes()) << name;

    // Taken at its word even where it is wrong: state is saved, the entry is not written.
    CompressorRig wrong(shape, 1, 2 * shape.ratio);
    CompressorStep step = wrong.build({{0, 0, shape.ratio, 0}});
    step.plan = CompressPlan::kNone;
    wrong.run(step);
    EXPECT_EQ(wrong.entry_bytes(0, 0), std::vector<std::uint8_t>(wrong.entry_bytes(0, 0).size(), 0xFF));
    EXPECT_EQ(wrong.state_bytes(0, 0, shape.ratio), pooled.state_bytes(0, 0, shape.ratio));
  }
}

TEST(CompressorPlan, SomeAndUnknownGiveTheSame) {
  const CompressorShape shape = compressor_shape("c4_fp8");
  std::vector<std::vector<std::uint8_t>> results;
  for (const CompressPlan plan : {CompressPlan::kSome, CompressPlan::kUnknown}) {
    CompressorRig rig(shape, 1, 16);
    CompressorStep step = rig.build({{0, 0, 14, 0}});
    step.plan = plan;
    rig.run(step);
    results.push_back(rig.cache_bytes());
  }
  EXPECT_EQ(results[0], results[1]);
}

// A step that saves more than 8 MiB writes rows past the caches where they are aligned (one block in 16 here).
TEST(CompressorState, LargeStepSavesTheSameRows) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    CompressorShape shape = compressor_shape("c4_fp8");
    shape.state = dtype;
    const std::int64_t tokens = (std::int64_t{8} << 20) / (2 * shape.width() * dtype_bytes(dtype));
    CompressorRig large(shape, 1, tokens);
    large.run({{0, 0, tokens, 0}});
    CompressorRig small(shape, 1, tokens);
    small.run({{0, 0, tokens - 3, 0}});
    small.run({{0, tokens - 3, 3, 0}});
    EXPECT_EQ(large.all_state_bytes(), small.all_state_bytes());
    EXPECT_EQ(large.cache_bytes(), small.cache_bytes());
  }
}

// A ring keeps the last block_size tokens of a chunk that is longer, and pools the rest before they are lost.
TEST(CompressorRing, ChunkLongerThanTheRing) {
  for (const char* name : {"c128_ring", "c4_ring"}) {
    const CompressorShape shape = small_shape(compressor_shape(name));
    CompressorRig one(shape, 1, 700);
    one.run({{0, 0, 700, 0}});
    CompressorRig parts(shape, 1, 700);
    parts.run({{0, 0, 100, 0}});
    parts.run({{0, 100, 555, 0}});
    parts.run({{0, 655, 45, 0}});
    EXPECT_EQ(parts.entries(0, 700 / shape.ratio), one.entries(0, 700 / shape.ratio)) << name;
    EXPECT_EQ(parts.state_bytes(0, 700 - parts.block_size(), 700), one.state_bytes(0, 700 - one.block_size(), 700));
  }
}

}  // namespace
}  // namespace tamis::test
