#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/check.hpp"
#include "core/float_formats.hpp"
#include "indexer/reference.hpp"
#include "support/allocation_counter.hpp"
#include "support/expect_error.hpp"
#include "support/guarded_buffer.hpp"
#include "support/random.hpp"
#include "support/simd_targets.hpp"
#include "tamis/indexer.hpp"
#include "tamis/ops.hpp"

namespace tamis {
namespace {

constexpr std::int64_t kPositions = 300;

std::vector<float> make_table() {
  std::vector<double> frequencies(32);
  rope_frequencies(160000.0, {.factor = 16.0}, frequencies);
  std::vector<float> table(kPositions * 64);
  rope_table(frequencies, TensorView(table.data(), DType::kFloat32, {kPositions, 64}));
  return table;
}

// Inputs of a call and guarded outputs. Not movable: the arguments point into it.
struct QueryCase {
  std::int64_t tokens, heads;
  std::vector<std::uint8_t> q, weights;
  std::vector<std::int64_t> positions;
  std::vector<float> table = make_table();
  test::GuardedBuffer<std::uint8_t> index_q, index_q_scale;
  test::GuardedBuffer<float> index_weights;
  IndexQueryArgs args;

  QueryCase(std::int64_t tokens_in, std::int64_t heads_in, DType dtype, IndexFormat format, bool rotated,
            const std::vector<float>& values)
      : tokens(tokens_in),
        heads(heads_in),
        index_q(static_cast<std::size_t>(tokens * heads * head_bytes(format))),
        index_q_scale(static_cast<std::size_t>(format == IndexFormat::kMxfp4 ? tokens * heads * 4 : 0)),
        index_weights(static_cast<std::size_t>(tokens * heads)) {
    test::Random random;
    for (float value : values) append(q, value, dtype);
    for (std::int64_t i = 0; i < tokens * heads; ++i) append(weights, random.normal(), dtype);
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(t % 3 == 0 ? t : random.below(kPositions));
    if (tokens > 3) positions[1] = -1, positions[2] = kPositions, positions[3] = INT64_MAX;  // padding
    args.q = ConstTensorView(q.data(), dtype, {tokens, heads, 128});
    args.weights = ConstTensorView(weights.data(), dtype, {tokens, heads});
    args.positions = ConstTensorView(positions.data(), DType::kInt64, {tokens});
    args.cos_sin = ConstTensorView(table.data(), DType::kFloat32, {kPositions, 64});
    args.hadamard = rotated;
    args.format = format;
    const std::int64_t width = format == IndexFormat::kMxfp4 ? 64 : 128;
    args.index_q = TensorView(index_q.data(), out_dtype(format), {tokens, heads, width});
    if (format == IndexFormat::kMxfp4)
      args.index_q_scale = TensorView(index_q_scale.data(), DType::kUInt8, {tokens, heads, 4});
    args.index_weights = TensorView(index_weights.data(), DType::kFloat32, {tokens, heads});
    args.num_threads = 1;
  }
  static std::int64_t head_bytes(IndexFormat format) {
    const std::int64_t bytes[] = {512, 256, 128, 64};
    return bytes[static_cast<int>(format)];
  }
  static DType out_dtype(IndexFormat format) {
    const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat8E4M3, DType::kUInt8};
    return dtypes[static_cast<int>(format)];
  }
  static void append(std::vector<std::uint8_t>& bytes, float value, DType dtype) {
    const auto bits = dtype == DType::kFloat32 ? std::bit_cast<std::uint32_t>(value) : core::float_to_bf16(value);
    for (int i = 0; i < dtype_bytes(dtype); ++i) bytes.push_back(static_cast<std::uint8_t>(bits >> (8 * i)));
  }
  void expect_reference(const std::string& what) const {
    const indexer::ReferenceQuery want = indexer::reference_index_query(args);
    EXPECT_EQ(index_q.copy(), want.index_q) << what;
    EXPECT_EQ(index_q_scale.copy(), want.index_q_scale) << what;
    EXPECT_EQ(index_weights.copy(), want.index_weights) << what;
    EXPECT_TRUE(index_q.guards_intact() && index_q_scale.guards_intact() && index_weights.guards_intact()) << what;
  }
};

constexpr IndexFormat kFormats[] = {IndexFormat::kFloat32, IndexFormat::kBFloat16, IndexFormat::kFp8,
                                    IndexFormat::kMxfp4};

std::vector<float> normal_values(std::int64_t n) {
  test::Random random;
  std::vector<float> values(static_cast<std::size_t>(n));
  random.fill_normal(values);
  return values;
}

TEST(IndexQuery, EqualsReferenceByteForByte) {
  for (IndexFormat format : kFormats) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (bool rotated : {false, true}) {
        for (std::int64_t heads : {1, 8, 33, 64}) {
          QueryCase c(7, heads, dtype, format, rotated, normal_values(7 * heads * 128));
          test::for_each_simd_target([&](const std::string& target) {
            c.index_q.fill(0xFF), c.index_q_scale.fill(0xFF), c.index_weights.fill(0xFF);
            index_query(c.args);
            c.expect_reference(core::concat(target, " format ", static_cast<int>(format), " heads ", heads));
          });
        }
      }
    }
  }
}

// Magnitudes on both sides of each power of two where the scale steps: 448 * 2^e, and 6 * 2^e for MXFP4; also zeros,
// -0 and subnormals.
TEST(IndexQuery, ScaleStepsAreExact) {
  std::vector<float> values;
  std::int64_t heads = 0;
  for (float limit : {448.0F, 6.0F}) {
    for (int e = -20; e <= 9; ++e) {
      const float exact = limit * core::exp2_int(e);
      for (float largest : {exact, std::nextafter(exact, 1e38F), std::nextafter(exact, 0.0F), exact * 1.01F}) {
        for (int c = 0; c < 128; ++c)
          values.push_back(c % 32 == 3 ? -largest : largest * static_cast<float>(c % 32) / 40.0F);
        ++heads;
      }
    }
  }
  for (float all : {0.0F, -0.0F, 1e-40F, 448.0F, -6.0F, 1e-4F, 1e36F}) {
    values.insert(values.end(), 128, all);
    ++heads;
  }
  for (IndexFormat format : kFormats) {
    for (bool rotated : {false, true}) {
      QueryCase c(1, heads, DType::kFloat32, format, rotated, values);
      index_query(c.args);
      c.expect_reference(core::concat("format ", static_cast<int>(format), rotated ? " rotated" : ""));
    }
  }
}

TEST(IndexQueryExample, Mxfp4BlockOfTheSpecification) {  // S-4.4
  std::vector<float> values(128, 0.0F);
  values[0] = 0.3F, values[1] = -1.1F, values[2] = 2.6F, values[3] = 5.0F;
  QueryCase c(1, 1, DType::kFloat32, IndexFormat::kMxfp4, false, values);
  index_query(c.args);
  EXPECT_EQ(c.index_q_scale[0], 127);
  EXPECT_EQ(c.index_q[0], 0xA1);
  EXPECT_EQ(c.index_q[1], 0x65);
  EXPECT_EQ(c.index_q_scale[1], 1);  // a block of zeros has the scale of the floor, 2^-126
}

TEST(IndexQueryExample, Fp8TileAndFoldedWeight) {  // the tile of S-5.1; position 0 does not rotate
  std::vector<float> values(128, 0.0F);
  const float tile[] = {3.0F, 1.0F, 0.10009765625F, -0.0123291015625F, -2.71875F, 1.00135803e-05F, 3.0040741e-05F};
  std::copy(std::begin(tile), std::end(tile), values.begin() + 64);
  QueryCase c(1, 64, DType::kFloat32, IndexFormat::kFp8, false, std::vector<float>(64 * 128, 0.0F));
  std::memcpy(c.q.data(), values.data(), 512);
  const float weight = 1.5F;
  std::memcpy(c.weights.data(), &weight, 4);
  index_query(c.args);
  const std::uint8_t codes[] = {0x7C, 0x70, 0x55, 0xBD, 0xFB, 0x01, 0x02};
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(c.index_q[64 + i], codes[i]) << i;
  EXPECT_EQ(c.index_weights[0], ((1.5F * 0x1p-7F) * 0.08838834764831845F) * 0.125F);
  // A head of zeros has the floor's scale 2^-22.
  float other = 0;
  std::memcpy(&other, c.weights.data() + 4, 4);
  EXPECT_EQ(c.index_weights[1], ((other * 0x1p-22F) * 0.08838834764831845F) * 0.125F);
}

TEST(IndexQueryExample, RotationPreservesDotProducts) {
  // Unquantised, rotating q and k leaves q . k; the bound is a rounding of the butterfly's 7 sums and its product a
  // vector, to first order 2 * 8 * 2^-24 * |q| * |k|, and RoPE is the same in both.
  const auto values = normal_values(2 * 128);
  QueryCase plain(1, 2, DType::kFloat32, IndexFormat::kFloat32, false, values);
  QueryCase rotated(1, 2, DType::kFloat32, IndexFormat::kFloat32, true, values);
  index_query(plain.args);
  index_query(rotated.args);
  const auto head = [](const QueryCase& c, int h) {
    return reinterpret_cast<const float*>(c.index_q.data()) + 128 * h;
  };
  const auto dot = [](const float* a, const float* b) { return std::inner_product(a, a + 128, b, 0.0); };
  const double norms = std::sqrt(dot(head(plain, 0), head(plain, 0)) * dot(head(plain, 1), head(plain, 1)));
  EXPECT_NEAR(dot(head(rotated, 0), head(rotated, 1)), dot(head(plain, 0), head(plain, 1)), 16 * 0x1p-24 * norms);
  EXPECT_NE(head(rotated, 0)[0], head(plain, 0)[0]);
}

TEST(IndexQuery, PaddingPositionsRotateLikePositionZero) {
  const std::vector<float> one = normal_values(8 * 128);
  std::vector<float> values;
  for (int t = 0; t < 4; ++t) values.insert(values.end(), one.begin(), one.end());
  QueryCase c(4, 8, DType::kFloat32, IndexFormat::kFloat32, false, values);  // positions 0, -1, 300, INT64_MAX
  index_query(c.args);
  const auto bytes = c.index_q.copy();
  for (std::ptrdiff_t t = 1; t < 4; ++t)
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 8 * 512, bytes.begin() + t * 8 * 512)) << t;
}

TEST(IndexQuery, ATokenDoesNotDependOnItsBatch) {
  const auto values = normal_values(9 * 8 * 128);
  QueryCase all(9, 8, DType::kBFloat16, IndexFormat::kFp8, true, values);
  index_query(all.args);
  for (std::int64_t t = 0; t < 9; ++t) {
    QueryCase one(1, 8, DType::kBFloat16, IndexFormat::kFp8, true,
                  std::vector<float>(values.begin() + t * 1024, values.begin() + (t + 1) * 1024));
    one.positions[0] = all.positions[static_cast<std::size_t>(t)];
    std::copy_n(all.weights.begin() + t * 16, 16, one.weights.begin());
    index_query(one.args);
    EXPECT_TRUE(std::equal(one.index_q.begin(), one.index_q.end(), all.index_q.begin() + t * 1024)) << t;
    EXPECT_TRUE(std::equal(one.index_weights.begin(), one.index_weights.end(), all.index_weights.begin() + t * 8)) << t;
  }
}

TEST(IndexQuery, StridedViews) {
  const auto values = normal_values(5 * 8 * 128);
  QueryCase dense(5, 8, DType::kFloat32, IndexFormat::kFp8, true, values);
  index_query(dense.args);
  // Heads 131 apart and tokens 1100 apart in every array that allows it.
  QueryCase c(5, 8, DType::kFloat32, IndexFormat::kFp8, true, values);
  std::vector<float> q(5 * 1100, std::numeric_limits<float>::quiet_NaN()), weights(5 * 11, 0.0F);
  for (std::int64_t t = 0; t < 5; ++t) {
    for (std::int64_t h = 0; h < 8; ++h) {
      std::copy_n(values.begin() + (t * 8 + h) * 128, 128, q.begin() + t * 1100 + h * 131);
      std::memcpy(&weights[static_cast<std::size_t>(t * 11 + h)], c.weights.data() + 4 * (t * 8 + h), 4);
    }
  }
  test::GuardedBuffer<std::uint8_t> out(5 * 1100, 0xEE);
  test::GuardedBuffer<float> out_weights(5 * 9, 0xEE);
  c.args.q = ConstTensorView(q.data(), DType::kFloat32, {5, 8, 128}, {1100, 131, 1});
  c.args.weights = ConstTensorView(weights.data(), DType::kFloat32, {5, 8}, {11, 1});
  c.args.index_q = TensorView(out.data(), DType::kUInt8, {5, 8, 128}, {1100, 131, 1});
  c.args.index_weights = TensorView(out_weights.data(), DType::kFloat32, {5, 8}, {9, 1});
  index_query(c.args);
  EXPECT_TRUE(out.guards_intact() && out_weights.guards_intact());
  for (std::int64_t at = 0; at < 5 * 1100; ++at) {
    const std::int64_t t = at / 1100, h = at % 1100 / 131, i = at % 1100 % 131;
    const bool inside = h < 8 && i < 128;
    const std::uint8_t want = inside ? dense.index_q[static_cast<std::size_t>((t * 8 + h) * 128 + i)] : 0xEE;
    ASSERT_EQ(out[static_cast<std::size_t>(at)], want) << t << " " << h << " " << i;
  }
  for (std::int64_t t = 0; t < 5; ++t) {
    for (std::int64_t h = 0; h < 8; ++h)
      EXPECT_EQ(out_weights[static_cast<std::size_t>(t * 9 + h)],
                dense.index_weights[static_cast<std::size_t>(t * 8 + h)]);
  }
}

TEST(IndexQuery, NoAllocationOnOneThread) {
  for (IndexFormat format : kFormats) {
    QueryCase c(9, 64, DType::kBFloat16, format, true, normal_values(9 * 64 * 128));
    const test::AllocationCounter counter;
    index_query(c.args);
    EXPECT_EQ(counter.count(), 0);
  }
}

TEST(IndexQuery, NoTokens) {
  QueryCase c(0, 8, DType::kFloat32, IndexFormat::kMxfp4, true, {});
  index_query(c.args);
  EXPECT_TRUE(c.index_q.guards_intact());
}

TEST(ThreadIndexQuery, ThreadsDoNotChangeAnything) {
  for (IndexFormat format : kFormats) {
    QueryCase c(37, 8, DType::kBFloat16, format, true, normal_values(37 * 8 * 128));
    for (int threads : {0, 2, 5}) {
      c.index_q.fill(0xFF), c.index_q_scale.fill(0xFF), c.index_weights.fill(0xFF);
      c.args.num_threads = threads;
      index_query(c.args);
      c.expect_reference(core::concat(threads, " threads"));
    }
  }
}

TEST(IndexQueryError, Texts) {
  QueryCase c(2, 8, DType::kFloat32, IndexFormat::kFp8, false, normal_values(2 * 8 * 128));
  const auto fails = [&](const std::string& text, const auto& change) {
    IndexQueryArgs args = c.args;
    change(args);
    EXPECT_TRUE(test::throws(Status::kInvalidArgument, "index_query: " + text, [&] { index_query(args); }));
  };
  const void* in = c.q.data();
  void* out = c.index_q.data();
  fails("q is fp32 [2, 8, 64], must be fp32 or bf16 [any, any, 128]", [&](IndexQueryArgs& a) {
    a.q = ConstTensorView(in, DType::kFloat32, {2, 8, 64});
  });
  fails("q has 0 heads, must have at least 1", [&](IndexQueryArgs& a) {
    a.q = ConstTensorView(in, DType::kFloat32, {2, 0, 128});
  });
  fails("weights is fp32 [2, 7], must be fp32 or bf16 [2, 8]", [&](IndexQueryArgs& a) {
    a.weights = ConstTensorView(in, DType::kFloat32, {2, 7});
  });
  fails("positions is int32 [2], must be int64 [2]",
        [&](IndexQueryArgs& a) { a.positions = ConstTensorView(in, DType::kInt32, {2}); });
  fails("cos_sin is fp32 [300, 32], must be fp32 [any, 64]", [&](IndexQueryArgs& a) {
    a.cos_sin = ConstTensorView(in, DType::kFloat32, {300, 32});
  });
  fails("cos_sin has 0 positions, must have at least 1", [&](IndexQueryArgs& a) {
    a.cos_sin = ConstTensorView(in, DType::kFloat32, {0, 64});
  });
  fails("index_q is fp8_e4m3 [2, 8, 128], must be fp32 [2, 8, 128]",
        [](IndexQueryArgs& a) { a.format = IndexFormat::kFloat32; });
  fails("index_q is fp8_e4m3 [2, 8, 128], must be bf16 [2, 8, 128]",
        [](IndexQueryArgs& a) { a.format = IndexFormat::kBFloat16; });
  fails("index_q is fp8_e4m3 [2, 8, 128], must be uint8 [2, 8, 64]",
        [](IndexQueryArgs& a) { a.format = IndexFormat::kMxfp4; });
  fails("index_q is absent, must be uint8 or fp8_e4m3 [2, 8, 128]", [](IndexQueryArgs& a) { a.index_q = {}; });
  fails("index_q_scale is absent, must be uint8 [2, 8, 4]", [&](IndexQueryArgs& a) {
    a.format = IndexFormat::kMxfp4;
    a.index_q = TensorView(out, DType::kUInt8, {2, 8, 64});
  });
  fails("index_q_scale is uint8 [2, 8, 4], must be absent for format fp8", [&](IndexQueryArgs& a) {
    a.index_q_scale = TensorView(out, DType::kUInt8, {2, 8, 4});
  });
  fails("index_weights is absent, must be fp32 [2, 8]", [](IndexQueryArgs& a) { a.index_weights = {}; });
  fails("format is 7, must be fp32, bf16, fp8 or mxfp4",
        [](IndexQueryArgs& a) { a.format = static_cast<IndexFormat>(7); });
}

}  // namespace
}  // namespace tamis
