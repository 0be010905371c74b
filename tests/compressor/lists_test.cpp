// The device plan on the CPU: which tokens a step's list holds, what a step does with it, and what is counted.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/compressor_cases.hpp"
#include "support/expect_error.hpp"
#include "tamis/compressor.hpp"

namespace tamis::test {
namespace {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

Ints list_of(const CompressorStep& step, std::int64_t ratio, std::int64_t capacity) {
  Ints tokens(static_cast<std::size_t>(capacity), 99);
  const CompressList lists[1] = {{ratio, {tokens.data(), DType::kInt32, {capacity}}}};
  const auto n = step.tokens();
  const auto requests = static_cast<std::int64_t>(step.query_start_loc.size());
  build_compress_step({{step.positions.data(), DType::kInt64, {n}},
                       {step.token_to_request.data(), DType::kInt32, {n}},
                       {step.query_start_loc.data(), DType::kInt32, {requests}},
                       lists,
                       {}});
  return tokens;
}

TEST(CompressLists, HoldTheTokensThatCompleteAnEntryThenMinusOne) {
  CompressorRig rig(small_shape(compressor_shape("c4_fp32")), 3, 40);
  CompressorStep step = rig.build({{0, 2, 3, 0}, {1, 8, 9, 1}, {2, 3, 1, 2}});
  // Positions 2 3 4 | 8 .. 16 | 3: tokens 1, 6, 10 and 12.
  EXPECT_EQ(list_of(step, 4, 6), (Ints{1, 6, 10, 12, -1, -1}));
  EXPECT_EQ(list_of(step, 16, 3), (Ints{10, -1, -1}));
  step.positions[6] = -1;         // padding
  step.token_to_request[10] = 0;  // outside that request's range
  EXPECT_EQ(list_of(step, 4, 6), (Ints{1, 12, -1, -1, -1, -1}));
}

TEST(CompressLists, CapacityIsEnoughForAnyStep) {
  Random random;
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t ratio = random.between(1, 9), requests = random.between(0, 6);
    std::int64_t tokens = 0, entries = 0;
    for (std::int64_t r = 0; r < requests; ++r) {
      const std::int64_t start = random.between(0, 30), count = random.between(0, 20);
      tokens += count;
      entries += (start + count) / ratio - start / ratio;
    }
    EXPECT_LE(entries, compress_list_capacity(tokens, requests, ratio));
  }
  EXPECT_EQ(compress_list_capacity(0, 5, 4), 0);
  EXPECT_EQ(compress_list_capacity(256, 256, 128), 256);
  EXPECT_EQ(compress_list_capacity(8192, 1, 128), 65);
  EXPECT_EQ(compress_list_capacity(7, 1, 1), 7);
  constexpr std::int64_t kHuge = INT64_MAX;
  EXPECT_EQ(compress_list_capacity(kHuge, kHuge, 4), kHuge);
}

TEST(CompressLists, ErrorsNameWhatCame) {
  const auto invalid = Status::kInvalidArgument;
  EXPECT_TRUE(
      throws(invalid, "compress_list_capacity: tokens is -1, must be >= 0", [] { compress_list_capacity(-1, 1, 4); }));
  EXPECT_TRUE(throws(invalid, "compress_list_capacity: requests is -1, must be >= 0",
                     [] { compress_list_capacity(1, -1, 4); }));
  EXPECT_TRUE(throws(invalid, "compress_list_capacity: compress_ratio is 0, must be in [1, 1024]",
                     [] { compress_list_capacity(1, 1, 0); }));
  CompressorRig rig(small_shape(compressor_shape("c4_fp32")), 1, 40);
  const CompressorStep step = rig.build({{0, 0, 9, 0}});
  EXPECT_TRUE(throws(invalid,
                     "build_compress_step: lists.tokens of ratio 4 has 2 elements, must have >= 3 "
                     "(compress_list_capacity)",
                     [&] { list_of(step, 4, 2); }));
  EXPECT_TRUE(throws(invalid, "build_compress_step: compress_ratio is 1025, must be in [1, 1024]",
                     [&] { list_of(step, 1025, 9); }));
  const std::vector<CompressList> five(5);
  const std::int64_t position = 0;
  const std::int32_t zeros[2] = {0, 1};
  EXPECT_TRUE(throws(invalid, "build_compress_step: lists has 5 elements, must have at most 4", [&] {
    build_compress_step(
        {{&position, DType::kInt64, {1}}, {zeros, DType::kInt32, {1}}, {zeros, DType::kInt32, {2}}, five, {}});
  }));
}

TEST(CompressLists, AStepWithItsListWritesTheSameBytes) {
  for (const char* name : {"c4_fp32", "c4_ring", "c128_paged", "c128_ring", "ratio3_odd_dim"}) {
    const CompressorShape shape = small_shape(compressor_shape(name));
    SCOPED_TRACE(name);
    for (const int threads : {1, 3}) {
      CompressorRig plain(shape, 2, 400, 0, 5), listed(shape, 2, 400, 0, 5);
      for (const auto& chunks : std::vector<std::vector<CompressorChunk>>{
               {{0, 0, 50, 0}, {1, 0, 3, 1}}, {{1, 3, 1, 1}, {0, 50, 210, 0}}, {{0, 260, 2, 0}, {1, 4, 140, 1}}}) {
        CompressorStep step = listed.build(chunks);
        step.num_threads = threads;
        const Ints list = list_of(step, shape.ratio, compress_list_capacity(step.tokens(), 2, shape.ratio) + 2);
        CompressArgs args = listed.args(step);
        args.listed_tokens = {list.data(), DType::kInt32, {static_cast<std::int64_t>(list.size())}};
        compress(args);
        plain.run(chunks);
        EXPECT_EQ(listed.all_state_bytes(), plain.all_state_bytes());
        EXPECT_EQ(listed.cache_bytes(), plain.cache_bytes());
      }
    }
  }
}

// What a list lacks completes nothing; what is no token in it does nothing.
TEST(CompressLists, OnlyListedTokensComplete) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"));
  CompressorRig rig(shape, 1, 40);
  const CompressorStep step = rig.build({{0, 0, 12, 0}});
  const Ints list = {INT32_MIN, 7, 12, INT32_MAX, 6, -1};
  CompressArgs args = rig.args(step);
  args.listed_tokens = {list.data(), DType::kInt32, {6}};
  compress(args);
  const std::vector<std::uint8_t> untouched(static_cast<std::size_t>(4 * shape.head_dim), 0xFF);
  EXPECT_EQ(rig.entry_bytes(0, 0), untouched);
  EXPECT_NE(rig.entry_bytes(0, 1), untouched);
  EXPECT_EQ(rig.entry_bytes(0, 2), untouched);
}

TEST(CompressCounts, SkipsAreCounted) {
  CompressorRig rig(small_shape(compressor_shape("c4_fp32")), 1, 40);
  const CompressorStep step = rig.build({{0, 0, 2, 0}});
  CompressCounts counts;
  for (const CompressPlan plan : {CompressPlan::kNone, CompressPlan::kUnknown, CompressPlan::kNone}) {
    CompressArgs args = rig.args(step);
    args.plan = plan;
    args.counts = &counts;
    compress(args);
  }
  EXPECT_EQ(counts.pooled, 1);
  EXPECT_EQ(counts.skipped, 2);
}

TEST(CompressCapture, TheCpuNeverCaptures) {
  EXPECT_FALSE(stream_is_capturing({}, {}));
#ifndef TAMIS_HAS_CUDA
  EXPECT_TRUE(
      throws(Status::kUnsupported, "stream_is_capturing: device is cuda:0, this build works on the CPU only", [] {
        stream_is_capturing({Device::Kind::kCuda, 0}, {});
      }));
#endif
}

TEST(CompressAlgorithms, AreForCuda) {
  CompressorRig rig(small_shape(compressor_shape("c4_fp32")), 1, 40);
  const CompressorStep step = rig.build({{0, 0, 2, 0}});
  CompressArgs args = rig.args(step);
  args.algorithm = CompressAlgorithm::kShortWindow;
  EXPECT_TRUE(throws(Status::kInvalidArgument, "compress: algorithm is short_window, on the CPU it must be auto",
                     [&] { compress(args); }));
}

}  // namespace
}  // namespace tamis::test
