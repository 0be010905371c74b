// Outputs whose rows lie on each other are refused: threads would write the same bytes at once.

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/indexer_cases.hpp"
#include "support/indexer_run.hpp"
#include "tamis/indexer.hpp"

namespace tamis {
namespace {

using test::throws;

constexpr test::IndexerFormat kFp8{IndexFormat::kFp8, CacheLayout::kIndexerFp8};
constexpr std::int64_t kBadStrides[] = {0, 1, 3, -4, -8};

std::string too_small(const char* what, std::int64_t stride, std::int64_t least) {
  return std::string(what) + " has row stride " + std::to_string(stride) + ", must be at least " +
         std::to_string(least);
}

TEST(IndexStrideError, TopkOutputs) {
  const test::IndexerCase c({.name = "s", .rows = 3, .heads = 2, .columns = 40, .full = true}, kFp8);
  std::vector<std::int64_t> indices(64);
  std::vector<float> values(64);
  for (const DType dtype : {DType::kInt32, DType::kInt64}) {
    IndexTopkArgs args;
    args.score = c.args;
    args.k = 4;
    args.num_threads = 1;
    args.indices = TensorView(indices.data(), dtype, {3, 4}, {5, 1});
    args.values = TensorView(values.data(), DType::kFloat32, {3, 4}, {6, 1});
    test::Workspace workspace(index_topk_workspace_bytes(args));
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.size();
    EXPECT_NO_THROW(index_topk(args));
    for (const std::int64_t stride : kBadStrides) {
      IndexTopkArgs bad = args;
      bad.indices = TensorView(indices.data() + 32, dtype, {3, 4}, {stride, 1});
      std::string text = too_small("index_topk: indices", stride, 4);
      EXPECT_TRUE(throws(Status::kInvalidArgument, text, [&] { index_topk(bad); }));
      EXPECT_TRUE(throws(Status::kInvalidArgument, text, [&] { index_topk_workspace_bytes(bad); }));
      bad = args;
      bad.values = TensorView(values.data() + 32, DType::kFloat32, {3, 4}, {stride, 1});
      text = too_small("index_topk: values", stride, 4);
      EXPECT_TRUE(throws(Status::kInvalidArgument, text, [&] { index_topk(bad); }));
    }
  }
}

TEST(IndexStrideError, Logits) {
  const test::IndexerCase c({.name = "s", .rows = 3, .heads = 2, .columns = 4, .full = true}, kFp8);
  std::vector<float> logits(64);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    IndexLogitsArgs args;
    args.score = c.args;
    args.num_threads = 1;
    for (const std::int64_t stride : kBadStrides) {
      args.logits = TensorView(logits.data() + 32, dtype, {3, 4}, {stride, 1});
      const std::string text = too_small("index_logits: logits", stride, 4);
      EXPECT_TRUE(throws(Status::kInvalidArgument, text, [&] { index_logits(args); }));
    }
    args.logits = TensorView(logits.data(), dtype, {3, 4}, {4, 1});
    EXPECT_NO_THROW(index_logits(args));
  }
}

// One row never meets another: its stride may be anything.
TEST(IndexStride, ASingleRowMayHaveAnyStride) {
  const test::IndexerCase c({.name = "s", .rows = 1, .heads = 2, .columns = 4, .full = true}, kFp8);
  std::vector<float> logits(4);
  IndexLogitsArgs args;
  args.score = c.args;
  args.num_threads = 1;
  args.logits = TensorView(logits.data(), DType::kFloat32, {1, 4}, {0, 1});
  EXPECT_NO_THROW(index_logits(args));
}

struct Query {
  Query(std::int64_t tokens, std::int64_t heads, IndexFormat format)
      : in(static_cast<std::size_t>(tokens * heads * 128 + 64), 1.0F), positions(static_cast<std::size_t>(tokens), 0) {
    args.q = ConstTensorView(in.data(), DType::kFloat32, {tokens, heads, 128});
    args.weights = ConstTensorView(in.data(), DType::kFloat32, {tokens, heads});
    args.positions = ConstTensorView(positions.data(), DType::kInt64, {tokens});
    args.cos_sin = ConstTensorView(in.data(), DType::kFloat32, {1, 64});
    args.format = format;
    args.num_threads = 1;
    const bool mxfp4 = format == IndexFormat::kMxfp4;
    const DType dtype = format == IndexFormat::kFloat32    ? DType::kFloat32
                        : format == IndexFormat::kBFloat16 ? DType::kBFloat16
                                                           : DType::kUInt8;
    width = mxfp4 ? 64 : 128;
    out.resize(static_cast<std::size_t>(tokens * heads * 128 * 4));
    args.index_q = TensorView(out.data(), dtype, {tokens, heads, width});
    scale.resize(static_cast<std::size_t>(tokens * heads * 4));
    if (mxfp4) args.index_q_scale = TensorView(scale.data(), DType::kUInt8, {tokens, heads, 4});
    weights.resize(static_cast<std::size_t>(tokens * heads));
    args.index_weights = TensorView(weights.data(), DType::kFloat32, {tokens, heads});
  }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  std::int64_t width = 0;
  std::vector<float> in;
  std::vector<std::int64_t> positions;
  std::vector<std::uint8_t> out;
  std::vector<std::uint8_t> scale;
  std::vector<float> weights;
  IndexQueryArgs args;
};

TEST(IndexStrideError, QueryOutputs) {
  for (const IndexFormat format :
       {IndexFormat::kFloat32, IndexFormat::kBFloat16, IndexFormat::kFp8, IndexFormat::kMxfp4}) {
    Query query(3, 2, format);
    EXPECT_NO_THROW(index_query(query.args));
    const auto fails = [](const IndexQueryArgs& args, const std::string& text) {
      EXPECT_TRUE(throws(Status::kInvalidArgument, "index_query: " + text, [&] { index_query(args); }));
    };
    const std::int64_t width = query.width;
    const DType dtype = query.args.index_q.dtype();
    const auto with_q = [&](std::int64_t token_stride, std::int64_t head_stride) {
      IndexQueryArgs args = query.args;
      args.index_q = TensorView(query.out.data(), dtype, {3, 2, width}, {token_stride, head_stride, 1});
      return args;
    };
    fails(with_q(0, width), too_small("index_q", 0, width));
    fails(with_q(width - 1, width), too_small("index_q", width - 1, width));
    fails(with_q(2 * width, 0), too_small("index_q", 0, width));
    // Each stride holds a head, but head 1 of a token lies on head 0 of the next.
    for (const auto& [tokens, heads] : {std::pair{width, width}, {2 * width - 1, width}, {width, 3 * width - 1}}) {
      fails(with_q(tokens, heads), "index_q has token stride " + std::to_string(tokens) + " and head stride " +
                                       std::to_string(heads) + ", its 3 x 2 heads must not overlap");
    }
    EXPECT_NO_THROW(index_query(with_q(2 * width, width)));
    EXPECT_NO_THROW(index_query(with_q(width, 3 * width)));  // [heads, tokens, width] seen the other way round

    IndexQueryArgs args = query.args;
    args.index_weights = TensorView(query.weights.data(), DType::kFloat32, {3, 2}, {0, 1});
    fails(args, too_small("index_weights", 0, 2));
    if (format != IndexFormat::kMxfp4) continue;
    args = query.args;
    args.index_q_scale = TensorView(query.scale.data(), DType::kUInt8, {3, 2, 4}, {0, 4, 1});
    fails(args, too_small("index_q_scale", 0, 4));
    args.index_q_scale = TensorView(query.scale.data(), DType::kUInt8, {3, 2, 4}, {4, 4, 1});
    fails(args, "index_q_scale has token stride 4 and head stride 4, its 3 x 2 heads must not overlap");
  }
}

}  // namespace
}  // namespace tamis
