// The streaming form against topk() on the whole row, for any way of cutting the row into blocks.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "allocation_counter.hpp"
#include "random.hpp"
#include "topk/cpu/streaming.hpp"
#include "topk_check.hpp"

namespace tamis::test {
namespace {

using topk_cpu::TopkAccumulator;

// Feeds the row in blocks of the size that next_block() gives, from memory that is overwritten after each feed.
template <typename NextBlock>
void feed_in_blocks(TopkAccumulator& top, const std::vector<float>& row, NextBlock next_block) {
  top.begin_row();
  for (std::size_t begin = 0; begin < row.size();) {
    const std::size_t count = std::min(row.size() - begin, static_cast<std::size_t>(next_block()));
    std::vector<float> block(row.begin() + static_cast<std::ptrdiff_t>(begin),
                             row.begin() + static_cast<std::ptrdiff_t>(begin + count));
    top.feed(block.data(), static_cast<std::int64_t>(count), static_cast<std::int64_t>(begin));
    begin += count;
  }
}

void expect_as_topk(TopkAccumulator& top, TopkCall& c) {
  const std::int64_t count = top.finish(c.args.order);
  ASSERT_EQ(count, std::min(c.args.k, c.args.scores.size(1)));
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(top.positions()[i], c.index(0, i)) << "winner " << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(top.value(i)), c.value_bits(0, i)) << "value " << i;
  }
}

TEST(TopkStreaming, EqualsTopkOnTheWholeRow) {
  Random random;
  for (std::int64_t k : {0, 1, 7, 300, 1000, 5000}) {
    for (std::int64_t width : {0, 1, 63, 1000, 3000, 20011}) {
      GuardedBuffer<std::uint8_t> memory(TopkAccumulator::workspace_bytes(k, width));
      TopkAccumulator top(k, width, memory.data());
      for (const TopkDistribution& kind : kTopkDistributions) {
        SCOPED_TRACE(std::string(kind.name) + " k " + std::to_string(k) + " width " + std::to_string(width));
        TopkCall c(1, width, k);
        const std::vector<float> row = make_topk_row(kind, width, 0);
        c.set_row(0, row);
        for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
          c.args.order = order;
          c.run();
          feed_in_blocks(top, row, [] { return 64; });
          expect_as_topk(top, c);
          feed_in_blocks(top, row, [&] { return random.between(1, 700); });
          expect_as_topk(top, c);
          if (HasFailure()) return;
        }
      }
      EXPECT_TRUE(memory.guards_intact());
    }
  }
}

TEST(TopkStreaming, GapsBetweenBlocksKeepTheirPositions) {
  GuardedBuffer<std::uint8_t> memory(TopkAccumulator::workspace_bytes(2, 6));
  TopkAccumulator top(2, 6, memory.data());
  top.begin_row();
  const std::vector<float> a = {1, 5, 2}, b = {5, 9};
  top.feed(a.data(), 3, 100);
  top.feed(b.data(), 0, 200);
  top.feed(b.data(), 2, 2147483646 - 1);
  ASSERT_EQ(top.finish(TopkOrder::kPosition), 2);
  EXPECT_EQ(top.positions()[0], 101U);
  EXPECT_EQ(top.positions()[1], 2147483646U);
}

TEST(TopkStreaming, WritesIndicesAsTopkDoes) {
  TopkCall c(1, 500, 20, {.index_dtype = DType::kInt64});
  c.fill("normal");
  const std::vector<std::int64_t> offset = {777};
  c.args.mapping = TopkMapping::kRagged;
  c.args.ragged_offsets = ConstTensorView(offset.data(), DType::kInt64, {1});
  c.run();
  GuardedBuffer<std::uint8_t> memory(TopkAccumulator::workspace_bytes(20, 500));
  TopkAccumulator top(20, 500, memory.data());
  feed_in_blocks(top, make_topk_row(topk_distribution("normal"), 500, 0), [] { return 100; });
  const std::int64_t count = top.finish(TopkOrder::kPosition);
  topk_cpu::RowMap map;
  map.mapping = TopkMapping::kRagged;
  map.ragged_offset = 777;
  std::vector<std::int64_t> out(20);
  topk_cpu::write_row_indices(DType::kInt64, out.data(), top.positions(), count, 20, map);
  EXPECT_EQ(out, c.index_row(0));
}

TEST(TopkStreaming, NeverAllocates) {
  GuardedBuffer<std::uint8_t> memory(TopkAccumulator::workspace_bytes(512, 20000));
  const std::vector<float> row = make_topk_row(topk_distribution("ascending"), 20000, 0);
  TopkAccumulator top(512, 20000, memory.data());
  AllocationCounter counter;
  top.begin_row();
  top.feed(row.data(), 20000, 0);
  top.finish(TopkOrder::kByValue);
  EXPECT_EQ(counter.count(), 0);
}

}  // namespace
}  // namespace tamis::test
