#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/float_formats.hpp"
#include "indexer/reference.hpp"
#include "support/allocation_counter.hpp"
#include "support/expect_error.hpp"
#include "support/indexer_cases.hpp"
#include "support/indexer_run.hpp"
#include "support/simd_targets.hpp"
#include "tamis/indexer.hpp"

namespace tamis {
namespace {

using test::IndexerCase;
using test::IndexerFormat;
using test::IndexerShape;
using test::run_index_logits;

constexpr std::uint32_t kPoison = 0xC3C3C3C3U;
constexpr float kInf = std::numeric_limits<float>::infinity();

// Every result inside the windows against the definition; everything else untouched.
void expect_agreement(const IndexScoreArgs& args, const std::vector<std::uint32_t>& bits) {
  // Roundings that a term meets: 127 additions of the dot (its product is rounded with the first), one by its weight
  // and heads - 1 additions of heads, the key scale, and without FMA one more for the product and one for the weight.
  // ReLU adds none.
  const double roundings = 128.0 + static_cast<double>(args.index_q.size(1)) + 4.0;
  for (std::int64_t row = 0; row < args.index_q.size(0); ++row) {
    const auto [start, end] = indexer::reference_window(args, row);
    const auto expected = indexer::reference_index_scores(args, row);
    for (std::int64_t column = 0; column < args.max_columns; ++column) {
      const std::uint32_t got_bits = bits[static_cast<std::size_t>(row * args.max_columns + column)];
      if (column < start || column >= end) {
        ASSERT_EQ(got_bits, kPoison) << "row " << row << " column " << column << " is outside its window";
        continue;
      }
      const auto got = static_cast<double>(std::bit_cast<float>(got_bits));
      const auto& want = expected[static_cast<std::size_t>(column - start)];
      if (std::isinf(want.score)) {
        ASSERT_EQ(got, want.score) << "row " << row << " column " << column;
      } else {
        const double bound = 1.01 * roundings * 0x1p-24 * want.magnitude;
        ASSERT_LE(std::abs(got - want.score), bound)
            << "row " << row << " column " << column << ": " << got << ", expected " << want.score;
      }
    }
  }
}

class IndexLogits : public ::testing::TestWithParam<std::tuple<IndexerShape, IndexerFormat>> {};

std::string case_name(const ::testing::TestParamInfo<std::tuple<IndexerShape, IndexerFormat>>& info) {
  return std::get<0>(info.param).name + "_" + test::indexer_format_text(std::get<1>(info.param));
}

TEST_P(IndexLogits, AgreesWithReference) {
  const auto& [shape, format] = GetParam();
  const IndexerCase c(shape, format);
  expect_agreement(c.args, run_index_logits(c.args));
}

TEST_P(IndexLogits, CleanWritesMinusInfinityOutsideAndNothingElse) {
  const auto& [shape, format] = GetParam();
  const IndexerCase c(shape, format);
  auto expected = run_index_logits(c.args);
  for (std::uint32_t& bits : expected) {
    if (bits == kPoison) bits = std::bit_cast<std::uint32_t>(-kInf);
  }
  EXPECT_EQ(run_index_logits(c.args, 1, true), expected);
}

TEST_P(IndexLogits, ARowDoesNotDependOnItsBatch) {
  const auto& [shape, format] = GetParam();
  const IndexerCase c(shape, format);
  const auto all = run_index_logits(c.args);
  const auto columns = static_cast<std::size_t>(shape.columns);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const auto alone = run_index_logits(c.slice(row, row + 1));
    const auto* in_batch = all.data() + static_cast<std::size_t>(row) * columns;
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), in_batch)) << "row " << row;
  }
}

TEST_P(IndexLogits, AScoreDoesNotDependOnTheWindow) {
  const auto& [shape, format] = GetParam();
  IndexerCase c(shape, format);
  const auto all = run_index_logits(c.args);
  test::Random random;
  for (int i = 0; i < 5; ++i) {
    std::vector<std::int32_t> starts, ends;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const auto [start, end] = indexer::reference_window(c.args, row);
      starts.push_back(static_cast<std::int32_t>(random.between(start, end)));
      ends.push_back(static_cast<std::int32_t>(random.between(starts.back(), end)));
    }
    IndexScoreArgs narrow = c.args;
    narrow.row_starts = ConstTensorView(starts.data(), DType::kInt32, {shape.rows});
    narrow.row_ends = ConstTensorView(ends.data(), DType::kInt32, {shape.rows});
    const auto part = run_index_logits(narrow);
    for (std::size_t at = 0; at < part.size(); ++at) {
      const auto row = at / static_cast<std::size_t>(shape.columns);
      const auto column = static_cast<std::int32_t>(at % static_cast<std::size_t>(shape.columns));
      const bool inside = column >= starts[row] && column < ends[row];
      ASSERT_EQ(part[at], inside ? all[at] : kPoison) << "row " << row << " column " << column;
    }
  }
}

TEST_P(IndexLogits, Bf16IsTheRoundedFp32Score) {
  const auto& [shape, format] = GetParam();
  const IndexerCase c(shape, format);
  const auto fp32 = run_index_logits(c.args, 1, true);
  // Columns of a row lie `columns + 3` apart.
  const std::int64_t stride = shape.columns + 3;
  test::GuardedBuffer<std::uint16_t> out(static_cast<std::size_t>(shape.rows * stride), 0xC3, 2);
  IndexLogitsArgs args;
  args.score = c.args;
  args.clean = true;
  args.num_threads = 1;
  args.logits = TensorView(out.data(), DType::kBFloat16, {shape.rows, shape.columns}, {stride, 1});
  index_logits(args);
  EXPECT_TRUE(out.guards_intact());
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t column = 0; column < stride; ++column) {
      const std::uint16_t got = out[static_cast<std::size_t>(row * stride + column)];
      if (column >= shape.columns) {
        ASSERT_EQ(got, 0xC3C3) << "padding of row " << row;
      } else {
        const auto score = std::bit_cast<float>(fp32[static_cast<std::size_t>(row * shape.columns + column)]);
        ASSERT_EQ(got, core::float_to_bf16(score)) << row << " " << column;
      }
    }
  }
}

TEST_P(IndexLogits, InstructionSetsWithFmaGiveEqualBits) {
  const auto& [shape, format] = GetParam();
  const IndexerCase c(shape, format);
  const auto best = run_index_logits(c.args);
  test::for_each_simd_target([&](const std::string& target) {
    const auto got = run_index_logits(c.args);
    const bool has_fma = target.rfind("AVX", 0) == 0 || target.rfind("NEON", 0) == 0;
    if (has_fma) EXPECT_EQ(got, best) << target;
    else expect_agreement(c.args, got);  // every product is rounded, so the last bits differ
  });
}

INSTANTIATE_TEST_SUITE_P(All, IndexLogits,
                         ::testing::Combine(::testing::ValuesIn(test::indexer_shapes()),
                                            ::testing::ValuesIn(test::indexer_formats())),
                         case_name);

TEST(ThreadIndexLogits, ThreadsDoNotChangeAnything) {
  for (const IndexerShape& shape : test::indexer_shapes()) {
    const IndexerCase c(shape, {IndexFormat::kFp8, CacheLayout::kIndexerFp8});
    const auto one = run_index_logits(c.args, 1);
    for (int threads : {0, 2, 3, 16}) EXPECT_EQ(run_index_logits(c.args, threads), one) << shape << " " << threads;
  }
}

// fp32 keys and queries whose further dims are zero: examples of the specification in two dims.
struct TinyCall {
  std::vector<float> q, keys, weights;
  std::vector<std::int32_t> row_ends;
  std::vector<float> out;

  std::vector<float> run() {
    const auto heads = static_cast<std::int64_t>(weights.size());
    const auto columns = static_cast<std::int64_t>(keys.size() / 128);
    row_ends = {static_cast<std::int32_t>(columns)};
    out.assign(static_cast<std::size_t>(columns), -1.0F);
    IndexLogitsArgs args;
    args.score.format = IndexFormat::kFloat32;
    args.score.index_q = ConstTensorView(q.data(), DType::kFloat32, {1, heads, 128});
    args.score.index_weights = ConstTensorView(weights.data(), DType::kFloat32, {1, heads});
    args.score.index_k = {keys.data(), CacheLayout::kFloat32, 128, 1, columns, 512 * columns, 1.0F, {}};
    args.score.row_ends = ConstTensorView(row_ends.data(), DType::kInt32, {1});
    args.score.max_columns = columns;
    args.logits = TensorView(out.data(), DType::kFloat32, {1, columns});
    args.num_threads = 1;
    index_logits(args);
    return out;
  }
  static std::vector<float> padded(std::initializer_list<std::initializer_list<float>> vectors) {
    std::vector<float> flat;
    for (const auto& v : vectors) {
      flat.insert(flat.end(), v.begin(), v.end());
      flat.resize((flat.size() + 127) / 128 * 128, 0.0F);
    }
    return flat;
  }
};

TEST(IndexLogitsExample, OfTheSpecification) {  // S-4.1
  TinyCall call;
  call.q = TinyCall::padded({{1, 2}, {-1, 1}});
  call.weights = {0.5F, -0.25F};
  call.keys = TinyCall::padded({{1, 0}, {0, 1}, {-1, -1}, {2, -1}});
  EXPECT_EQ(call.run(), (std::vector<float>{0.5F, 0.75F, 0.0F, 0.0F}));
}

TEST(IndexLogitsExample, NanAndInfinityFollowTheFormula) {
  TinyCall call;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  call.q = TinyCall::padded({{1, 0}, {0, 1}});
  call.weights = {2.0F, -1.0F};
  call.keys = TinyCall::padded({{nan, 1}, {kInf, 1}, {-kInf, 1}, {1, 1}});
  const auto got = call.run();
  EXPECT_TRUE(std::isnan(got[0]));
  // inf * 0 in the second head is NaN, as in the formula; the neighbour is exact.
  EXPECT_TRUE(std::isnan(got[1]));
  EXPECT_TRUE(std::isnan(got[2]));
  EXPECT_EQ(got[3], 1.0F);
}

TEST(IndexLogitsExample, EveryFp8CodeDecodes) {
  // Key j holds code j in dim 5 and zeros elsewhere, the query is 1 there; a second head with -1 shows negative codes.
  std::vector<std::uint8_t> keys(256 * 132, 0);
  for (std::size_t j = 0; j < 256; ++j) {
    keys[128 * j + 5] = static_cast<std::uint8_t>(j);
    const float scale = 0.5F;
    std::memcpy(keys.data() + 256 * 128 + 4 * j, &scale, 4);
  }
  std::vector<std::uint8_t> q(256, 0);
  q[5] = 0x38;        // 1.0
  q[128 + 5] = 0xB8;  // -1.0
  const float weights[] = {1.0F, -1.0F};
  const std::int32_t end = 256;
  float out[256];
  IndexLogitsArgs args;
  args.score.index_q = ConstTensorView(q.data(), DType::kFloat8E4M3, {1, 2, 128});
  args.score.index_weights = ConstTensorView(weights, DType::kFloat32, {1, 2});
  args.score.index_k = {keys.data(), CacheLayout::kIndexerFp8, 128, 1, 256, 256 * 132, 1.0F, {}};
  args.score.row_ends = ConstTensorView(&end, DType::kInt32, {1});
  args.score.max_columns = 256;
  args.logits = TensorView(out, DType::kFloat32, {1, 256});
  test::for_each_simd_target([&](const std::string& target) {
    index_logits(args);
    for (int j = 0; j < 256; ++j) {
      const float want = 0.5F * core::e4m3_to_float(static_cast<std::uint8_t>(j));
      if (std::isnan(want)) EXPECT_TRUE(std::isnan(out[j])) << target << " code " << j;
      else EXPECT_EQ(out[j], want) << target << " code " << j;
    }
  });
}

TEST(IndexLogitsExample, EveryMxfp4CodeAndScaleByteDecodes) {
  // Key j: code j % 16 in an even and an odd dim of block j % 4, whose scale byte walks through the middle range.
  std::vector<std::uint8_t> keys(256 * 68, 0);
  for (std::size_t j = 0; j < 256; ++j) {
    const auto code = static_cast<std::uint8_t>(j % 16);
    keys[64 * j + 16 * (j % 4) + 3] = static_cast<std::uint8_t>(code | (code << 4));
    for (std::size_t b = 0; b < 4; ++b)
      keys[256 * 64 + 4 * j + b] = static_cast<std::uint8_t>(b == j % 4 ? 64 + j / 2 : 0);
  }
  std::vector<std::uint8_t> q(64, 0);
  for (std::size_t b = 0; b < 4; ++b) q[16 * b + 3] = 0x42;  // 1 in the even dim, 2 in the odd one
  std::vector<std::uint8_t> q_scale(4, 127);
  std::vector<std::uint8_t> q_two = q;
  for (std::size_t b = 0; b < 4; ++b) q_two[16 * b + 3] = 0xCA;
  q.insert(q.end(), q_two.begin(), q_two.end());
  q_scale.insert(q_scale.end(), 4, 127);
  const float weights[] = {1.0F, -1.0F};
  const std::int32_t end = 256;
  float out[256];
  IndexLogitsArgs args;
  args.score.format = IndexFormat::kMxfp4;
  args.score.index_q = ConstTensorView(q.data(), DType::kUInt8, {1, 2, 64});
  args.score.index_q_scale = ConstTensorView(q_scale.data(), DType::kUInt8, {1, 2, 4});
  args.score.index_weights = ConstTensorView(weights, DType::kFloat32, {1, 2});
  args.score.index_k = {keys.data(), CacheLayout::kIndexerMxfp4, 128, 1, 256, 256 * 68, 1.0F, {}};
  args.score.row_ends = ConstTensorView(&end, DType::kInt32, {1});
  args.score.max_columns = 256;
  args.logits = TensorView(out, DType::kFloat32, {1, 256});
  test::for_each_simd_target([&](const std::string& target) {
    index_logits(args);
    for (int j = 0; j < 256; ++j) {
      const float want =
          3.0F * core::e2m1_to_float(static_cast<std::uint8_t>(j % 16)) * core::exp2_int(64 + j / 2 - 127);
      EXPECT_EQ(out[j], want) << target << " key " << j;
    }
  });
}

TEST(IndexLogitsExample, RowRangesOfTheSpecification) {  // S-4.5: r0 (s=0, q=6), r1 (s=10, q=5), gathered keys
  IndexerShape shape{.name = "s45", .rows = 11, .heads = 8, .columns = 4, .starts = true};
  IndexerCase c(shape, {IndexFormat::kFp8, CacheLayout::kIndexerFp8});
  c.row_starts = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1};
  c.row_ends = {0, 0, 0, 1, 1, 1, 3, 4, 4, 4, 4};
  const auto bits = run_index_logits(c.args);
  expect_agreement(c.args, bits);
  std::string seen;
  for (std::uint32_t b : bits) seen += b == kPoison ? '.' : 'x';
  EXPECT_EQ(seen, "............x...x...x....xx..xxx.xxx.xxx.xxx");
}

TEST(IndexLogitsMemory, StridedInputsAndMisalignedBytes) {
  const IndexerShape shape{.name = "strided", .rows = 5, .heads = 9, .columns = 200, .page_size = 64};
  for (const IndexerFormat& format : test::indexer_formats()) {
    const IndexerCase c(shape, format);
    const auto expected = run_index_logits(c.args);
    // The same numbers with gaps between heads and rows that hold NaN patterns.
    const std::int64_t item = dtype_bytes(c.args.index_q.dtype());
    const std::int64_t width = c.args.index_q.size(2);
    const std::int64_t head_stride = width + 3, row_stride = 9 * head_stride + 5;
    std::vector<std::uint8_t> q(static_cast<std::size_t>(5 * row_stride * item), 0xFF);
    std::vector<std::uint8_t> q_scale(5 * (9 * 7 + 1), 0xFF);
    std::vector<float> weights(5 * 11, std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t r = 0; r < 5; ++r) {
      for (std::int64_t h = 0; h < 9; ++h) {
        std::memcpy(q.data() + (r * row_stride + h * head_stride) * item, c.q.data() + (r * 9 + h) * width * item,
                    static_cast<std::size_t>(width * item));
        weights[static_cast<std::size_t>(r * 11 + h)] = c.weights[static_cast<std::size_t>(r * 9 + h)];
        for (std::int64_t b = 0; b < 4 && !c.q_scale.empty(); ++b)
          q_scale[static_cast<std::size_t>(r * 64 + h * 7 + b)] =
              c.q_scale[static_cast<std::size_t>((r * 9 + h) * 4 + b)];
      }
    }
    IndexScoreArgs args = c.args;
    args.index_q = ConstTensorView(q.data(), c.args.index_q.dtype(), {5, 9, width}, {row_stride, head_stride, 1});
    if (args.index_q_scale.present())
      args.index_q_scale = ConstTensorView(q_scale.data(), DType::kUInt8, {5, 9, 4}, {64, 7, 1});
    args.index_weights = ConstTensorView(weights.data(), DType::kFloat32, {5, 9}, {11, 1});
    EXPECT_EQ(run_index_logits(args), expected) << test::indexer_format_text(format);
    // Keys of one byte each may start anywhere.
    if (format.layout == CacheLayout::kIndexerFp8 || format.layout == CacheLayout::kIndexerMxfp4) {
      std::vector<std::uint8_t> moved(c.keys.size() + 1);
      std::copy(c.keys.begin(), c.keys.end(), moved.begin() + 1);
      args.index_k.data = moved.data() + 1;
      EXPECT_EQ(run_index_logits(args), expected) << test::indexer_format_text(format);
    }
  }
}

TEST(IndexLogitsMemory, NoAllocationOnOneThread) {
  for (const IndexerFormat& format : test::indexer_formats()) {
    const IndexerCase c({.name = "alloc", .rows = 40, .heads = 9, .columns = 300, .page_size = 64, .rows_a_table = 4},
                        format);
    std::vector<float> out(40 * 300);
    IndexLogitsArgs args;
    args.score = c.args;
    args.logits = TensorView(out.data(), DType::kFloat32, {40, 300});
    args.num_threads = 1;
    args.clean = true;
    const test::AllocationCounter counter;
    index_logits(args);
    EXPECT_EQ(counter.count(), 0);
  }
}

TEST(IndexLogitsError, Texts) {
  const IndexerCase c({.name = "e", .rows = 2, .heads = 8, .columns = 100, .page_size = 64},
                      {IndexFormat::kFp8, CacheLayout::kIndexerFp8});
  std::vector<float> out(200);
  IndexLogitsArgs good;
  good.score = c.args;
  good.logits = TensorView(out.data(), DType::kFloat32, {2, 100});
  good.num_threads = 1;
  index_logits(good);
  const auto fails = [&](const std::string& text, const auto& change) {
    IndexLogitsArgs args = good;
    change(args);
    EXPECT_TRUE(test::throws(Status::kInvalidArgument, "index_logits: " + text, [&] { index_logits(args); }));
  };
  const auto* bytes = c.q.data();
  fails("index_q is absent, must be uint8 or fp8_e4m3 [any, any, 128]",
        [](IndexLogitsArgs& a) { a.score.index_q = {}; });
  fails("index_q is uint8 [2, 8, 64], must be uint8 or fp8_e4m3 [any, any, 128]", [&](IndexLogitsArgs& a) {
    a.score.index_q = ConstTensorView(bytes, DType::kUInt8, {2, 8, 64});
  });
  fails("index_q is uint8 [2, 8, 128], must be fp32 [any, any, 128]",
        [](IndexLogitsArgs& a) { a.score.format = IndexFormat::kFloat32; });
  fails("index_q is uint8 [2, 8, 128], must be bf16 [any, any, 128]",
        [](IndexLogitsArgs& a) { a.score.format = IndexFormat::kBFloat16; });
  fails("index_q is uint8 [2, 8, 128], must be uint8 [any, any, 64]",
        [](IndexLogitsArgs& a) { a.score.format = IndexFormat::kMxfp4; });
  fails("index_q has 0 heads, must have at least 1", [&](IndexLogitsArgs& a) {
    a.score.index_q = ConstTensorView(bytes, DType::kUInt8, {2, 0, 128});
  });
  fails("format is 9, must be fp32, bf16, fp8 or mxfp4",
        [](IndexLogitsArgs& a) { a.score.format = static_cast<IndexFormat>(9); });
  fails("index_q_scale is absent, must be uint8 [2, 8, 4]", [&](IndexLogitsArgs& a) {
    a.score.format = IndexFormat::kMxfp4;
    a.score.index_q = ConstTensorView(bytes, DType::kUInt8, {2, 8, 64});
  });
  fails("index_q_scale is uint8 [2, 8, 4], must be absent for format fp8", [&](IndexLogitsArgs& a) {
    a.score.index_q_scale = ConstTensorView(bytes, DType::kUInt8, {2, 8, 4});
  });
  fails("index_weights is absent, must be fp32 [2, 8]", [](IndexLogitsArgs& a) { a.score.index_weights = {}; });
  fails("index_k is absent (page_size 0), must have page_size >= 1", [](IndexLogitsArgs& a) { a.score.index_k = {}; });
  fails("index_k has layout bf16, must have indexer_fp8 for format fp8",
        [](IndexLogitsArgs& a) { a.score.index_k.layout = CacheLayout::kBFloat16, a.score.index_k.page_size = 16; });
  fails("index_k has head_dim 64, layout indexer_fp8 has 128",
        [](IndexLogitsArgs& a) { a.score.index_k.head_dim = 64; });
  fails("page_table is int64 [2, 2], must be int32 [any, any]", [&](IndexLogitsArgs& a) {
    a.score.page_table = ConstTensorView(bytes, DType::kInt64, {2, 2});
  });
  fails("row_to_table is int32 [3], must be int32 [2]",
        [&](IndexLogitsArgs& a) { a.score.row_to_table = ConstTensorView(bytes, DType::kInt32, {3}); });
  fails("row_starts is int32 [3], must be int32 [2]",
        [&](IndexLogitsArgs& a) { a.score.row_starts = ConstTensorView(bytes, DType::kInt32, {3}); });
  fails("row_ends is absent, must be int32 [2]", [](IndexLogitsArgs& a) { a.score.row_ends = {}; });
  fails("max_columns is -1, must be in [0, 2147483647]", [](IndexLogitsArgs& a) { a.score.max_columns = -1; });
  fails("logits is fp32 [2, 100], must be fp32 or bf16 [2, 99]", [](IndexLogitsArgs& a) { a.score.max_columns = 99; });
  fails("logits is absent, must be fp32 or bf16 [2, 100]", [](IndexLogitsArgs& a) { a.logits = {}; });

  const IndexerCase f({.name = "f", .rows = 1, .heads = 8, .columns = 10},
                      {IndexFormat::kFloat32, CacheLayout::kFloat32});
  IndexLogitsArgs args;
  args.score = f.args;
  args.score.index_k.head_dim = 64;
  args.logits = TensorView(out.data(), DType::kFloat32, {1, 10});
  EXPECT_TRUE(test::throws(Status::kInvalidArgument, "index_logits: index_k has head_dim 64, must have 128",
                           [&] { index_logits(args); }));
}

}  // namespace
}  // namespace tamis
