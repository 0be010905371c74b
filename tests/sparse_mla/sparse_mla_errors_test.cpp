// The text of every error of sparse_mla(), and that nothing is written when there is one.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "core/check.hpp"
#include "expect_error.hpp"
#include "sparse_mla_cases.hpp"

namespace tamis {
namespace {

using test::SparseMlaData;
using test::throws;

constexpr auto kV4 = CacheLayout::kFp8Mla584;
constexpr DType f32 = DType::kFloat32, b16 = DType::kBFloat16, i32 = DType::kInt32;

class SparseMlaErrors : public ::testing::Test {
 protected:
  SparseMlaErrors() : data_({"", 2, 3, 512, {kV4, 64, 1, 8}, {kV4, 2, 10, 4}}) { data_.make_workspace(); }

  // Changes the arguments, expects the call and the size query to fail with the text, and puts them back.
  void expect(const std::string& text, const std::function<void(SparseMlaArgs&)>& change, bool query_too = true) {
    const SparseMlaArgs good = data_.args;
    SparseMlaArgs args = good;
    change(args);
    EXPECT_TRUE(throws(Status::kInvalidArgument, text, [&] { sparse_mla(args); }));
    if (query_too) {
      EXPECT_TRUE(throws(Status::kInvalidArgument, text, [&] { sparse_mla_workspace_bytes(args); }));
    }
    for (const std::uint8_t byte : data_.out) ASSERT_EQ(byte, 0xFF);
    for (const float value : data_.lse) ASSERT_TRUE(std::isnan(value));
  }

  SparseMlaData data_;
  float f_[16] = {};
  std::int32_t i_[16] = {};
};

TEST_F(SparseMlaErrors, AboutQ) {
  expect("sparse_mla: q is absent, must be fp32 or bf16 [any, any, any]", [](auto& a) { a.q = {}; });
  expect("sparse_mla: q is fp16 [2, 3, 512], must be fp32 or bf16 [any, any, any]", [&](auto& a) {
    a.q = ConstTensorView(f_, DType::kFloat16, {2, 3, 512});
  });
  expect("sparse_mla: q is bf16 [6, 512], must be fp32 or bf16 [any, any, any]", [&](auto& a) {
    a.q = ConstTensorView(f_, b16, {6, 512});
  });
  expect("sparse_mla: q has head_dim_qk 448, must be 512 or 576", [&](auto& a) {
    a.q = ConstTensorView(f_, b16, {2, 3, 448});
  });
  expect("sparse_mla: q has stride 2 in its last dimension, must be contiguous (1)", [&](auto& a) {
    a.q = ConstTensorView(f_, b16, {2, 3, 512}, {3072, 1024, 2});
  });
  SparseMlaArgs on_gpu = data_.args;
  on_gpu.q = ConstTensorView(f_, b16, {2, 3, 512}, Device{Device::Kind::kCuda, 1});
  EXPECT_TRUE(throws(Status::kUnsupported, "sparse_mla: q is on cuda:1, this build works on the CPU only",
                     [&] { sparse_mla(on_gpu); }));
  expect("sparse_mla: q is bf16 [2, 3, 512] with a null pointer", [&](auto& a) {
    a.q = ConstTensorView(nullptr, b16, {2, 3, 512});
  });
}

TEST_F(SparseMlaErrors, AboutSources) {
  expect("sparse_mla: main.cache is absent, must be present", [](auto& a) { a.main = {}; });
  expect("sparse_mla: extra.cache is absent, must be present where extra has topk_indices",
         [](auto& a) { a.extra.cache = {}; });
  expect("sparse_mla: extra.cache is absent, must be present where extra has topk_lens", [&](auto& a) {
    a.extra = {};
    a.extra.topk_lens = ConstTensorView(i_, i32, {2});
  });
  expect("sparse_mla: main.cache has layout indexer_fp8, must be fp8_mla584, fp8_mla656, bf16 or fp32",
         [](auto& a) { a.main.cache.layout = CacheLayout::kIndexerFp8; });
  expect("sparse_mla: extra.cache has layout fp8_tensor, must be fp8_mla584, fp8_mla656, bf16 or fp32",
         [](auto& a) { a.extra.cache.layout = CacheLayout::kFp8PerTensor; });
  expect("sparse_mla: main.cache has head_dim 576, must be that of q, 512", [](auto& a) {
    a.main.cache.layout = CacheLayout::kFp8Mla656;
    a.main.cache.head_dim = 576;
    a.main.cache.page_stride_bytes = 64 * 656;
  });
  expect("sparse_mla: main.topk_indices is absent, must be int32 [2, any]", [](auto& a) { a.main.topk_indices = {}; });
  expect("sparse_mla: main.topk_indices is int64 [2, 8], must be int32 [2, any]", [&](auto& a) {
    a.main.topk_indices = ConstTensorView(i_, DType::kInt64, {2, 8});
  });
  expect("sparse_mla: extra.topk_indices is int32 [3, 4], must be int32 [2, any]", [&](auto& a) {
    a.extra.topk_indices = ConstTensorView(i_, i32, {3, 4});
  });
  expect("sparse_mla: main.topk_lens is int32 [3], must be int32 [2]",
         [&](auto& a) { a.main.topk_lens = ConstTensorView(i_, i32, {3}); });
  expect("sparse_mla: extra.topk_lens is fp32 [2], must be int32 [2]",
         [&](auto& a) { a.extra.topk_lens = ConstTensorView(f_, f32, {2}); });
}

TEST_F(SparseMlaErrors, NamesTheCacheThatCannotBeAddressed) {
  // The texts themselves are check_cache's, tested there; here that both caches go through it under their names.
  for (const bool extra : {false, true}) {
    SparseMlaArgs args = data_.args;
    SparseMlaSource& source = extra ? args.extra : args.main;
    source.cache.num_pages = 10;
    source.cache.page_stride_bytes = 100;
    const auto [status, text] = test::error_of([&] { sparse_mla(args); });
    EXPECT_EQ(status, Status::kInvalidArgument);
    const std::string front =
        core::concat("sparse_mla: ", extra ? "extra" : "main", ".cache has page_stride_bytes 100");
    EXPECT_EQ(text.substr(0, front.size()), front);
  }
}

TEST_F(SparseMlaErrors, AboutSinkAndScale) {
  expect("sparse_mla: attn_sink is fp32 [4], must be fp32 [3]",
         [&](auto& a) { a.attn_sink = ConstTensorView(f_, f32, {4}); });
  expect("sparse_mla: attn_sink is bf16 [3], must be fp32 [3]",
         [&](auto& a) { a.attn_sink = ConstTensorView(f_, b16, {3}); });
  expect("sparse_mla: softmax_scale is nan, must be finite (0 means head_dim_qk^-0.5)",
         [](auto& a) { a.softmax_scale = NAN; });
  expect("sparse_mla: softmax_scale is inf, must be finite (0 means head_dim_qk^-0.5)",
         [](auto& a) { a.softmax_scale = INFINITY; });
}

TEST_F(SparseMlaErrors, AboutOutputs) {
  expect("sparse_mla: out is absent, must be fp32 or bf16 [2, 3, 512]", [](auto& a) { a.out = {}; });
  expect("sparse_mla: out is fp32 [2, 3, 576], must be fp32 or bf16 [2, 3, 512]", [&](auto& a) {
    a.out = TensorView(f_, f32, {2, 3, 576});
  });
  expect("sparse_mla: out has row stride 511, must be at least 512", [&](auto& a) {
    a.out = TensorView(f_, f32, {2, 3, 512}, {1536, 511, 1});
  });
  expect("sparse_mla: out has row stride 0, must be at least 512", [&](auto& a) {
    a.out = TensorView(f_, f32, {2, 3, 512}, {0, 512, 1});
  });
  expect("sparse_mla: lse is fp32 [3, 2], must be fp32 [2, 3]", [&](auto& a) { a.lse = TensorView(f_, f32, {3, 2}); });
  expect("sparse_mla: lse has row stride 2, must be at least 3", [&](auto& a) {
    a.lse = TensorView(f_, f32, {2, 3}, {2, 1});
  });
  expect("sparse_mla: max_logits is bf16 [2, 3], must be fp32 [2, 3]", [&](auto& a) {
    a.max_logits = TensorView(f_, b16, {2, 3});
  });
  expect("sparse_mla: max_logits has row stride -3, must be at least 3", [&](auto& a) {
    a.max_logits = TensorView(f_, f32, {2, 3}, {-3, 1});
  });
}

TEST_F(SparseMlaErrors, AboutThreadsAndWorkspace) {
  expect("sparse_mla: num_threads is -1, must be >= 0", [](auto& a) { a.num_threads = -1; });
  const std::size_t need = data_.args.workspace_bytes;
  expect(
      core::concat("sparse_mla: workspace has ", need - 1, " bytes, must have ", need),
      [&](auto& a) { a.workspace_bytes = need - 1; }, false);
  expect(
      "sparse_mla: workspace is at 0, must not be null and be a multiple of 64", [](auto& a) { a.workspace = nullptr; },
      false);
  void* off = data_.workspace->data() + 32;
  expect(
      core::concat("sparse_mla: workspace is at ", off, ", must not be null and be a multiple of 64"),
      [&](auto& a) { a.workspace = off; }, false);
}

TEST_F(SparseMlaErrors, NoneWithoutRowsAndWorkspace) {
  SparseMlaData empty({"", 0, 4, 512, {kV4, 64, 1, 8}});
  EXPECT_EQ(sparse_mla_workspace_bytes(empty.args), 0U);
  EXPECT_NO_THROW(sparse_mla(empty.args));
}

}  // namespace
}  // namespace tamis
