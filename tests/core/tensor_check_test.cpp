#include "core/tensor_check.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"

namespace tamis::core {
namespace {

using test::throws;
constexpr Status kBad = Status::kInvalidArgument;
float memory[64];

TEST(TensorView, HoldsShapeStridesAndDevice) {
  const TensorView dense(memory, DType::kFloat32, {2, 3, 4});
  EXPECT_EQ(dense.rank(), 3);
  EXPECT_EQ(dense.numel(), 24);
  EXPECT_EQ(dense.stride(0), 12);
  EXPECT_EQ(dense.stride(2), 1);
  const ConstTensorView strided = TensorView(memory, DType::kFloat32, {2, 3}, {8, 1}, {Device::Kind::kCuda, 1});
  EXPECT_EQ(strided.stride(0), 8);
  EXPECT_EQ(strided.device().index, 1);
  EXPECT_FALSE(TensorView().present());
}

TEST(TensorView, RefusesMoreDimensionsThanItHolds) {
  EXPECT_TRUE(throws(kBad, "tensor view: 5 extents and 5 strides, must be as many of both and at most 4", [] {
    TensorView(memory, DType::kFloat32, {1, 1, 1, 1, 1});
  }));
  EXPECT_TRUE(throws(kBad, "tensor view: 2 extents and 1 strides, must be as many of both and at most 4", [] {
    TensorView(memory, DType::kFloat32, {2, 2}, {2});
  }));
  EXPECT_TRUE(throws(kBad, "tensor view: 2 extents and 3 strides, must be as many of both and at most 4", [] {
    TensorView(memory, DType::kFloat32, {2, 2}, {2, 1, 1});
  }));
}

void check(const ConstTensorView& view, Device device = {}) {
  check_view(view, {"op", "x", {DType::kFloat32, DType::kBFloat16}, {2, kAnyExtent}}, device);
}

TEST(CheckView, NamesWhatWasExpectedAndWhatCame) {
  EXPECT_NO_THROW(check({memory, DType::kFloat32, {2, 7}}));
  EXPECT_NO_THROW(check({nullptr, DType::kFloat32, {2, 0}}));
  EXPECT_TRUE(throws(kBad, "op: x is absent, must be fp32 or bf16 [2, any]", [] { check({}); }));
  EXPECT_TRUE(throws(kBad, "op: x is int32 [2, 7], must be fp32 or bf16 [2, any]", [] {
    check({memory, DType::kInt32, {2, 7}});
  }));
  EXPECT_TRUE(throws(kBad, "op: x is fp32 [3, 7], must be fp32 or bf16 [2, any]", [] {
    check({memory, DType::kFloat32, {3, 7}});
  }));
  EXPECT_TRUE(throws(kBad, "op: x is fp32 [2, 7] with a null pointer", [] {
    check({nullptr, DType::kFloat32, {2, 7}});
  }));
  EXPECT_TRUE(throws(kBad, "op: x has stride 2 in its last dimension, must be contiguous (1)", [] {
    check({memory, DType::kFloat32, {2, 7}, {14, 2}});
  }));
}

// 2^34 x 2^30 elements wrap to 0, which would let a null pointer pass for an empty view.
TEST(CheckView, CountsBytesIn64Bits) {
  EXPECT_TRUE(throws(kBad, "op: x is fp32 [2, 2305843009213693952], more bytes than 64 bits count", [] {
    check({nullptr, DType::kFloat32, {2, std::int64_t{1} << 61}});
  }));
  const ConstTensorView wraps(nullptr, DType::kFloat32, {std::int64_t{1} << 34, std::int64_t{1} << 30});
  EXPECT_TRUE(throws(kBad, "op: x is fp32 [17179869184, 1073741824], more bytes than 64 bits count", [&] {
    check_view(wraps, {"op", "x", {DType::kFloat32}, {kAnyExtent, kAnyExtent}});
  }));
}

TEST(CheckView, AGpuIsOurGapAndAnotherGpuTheCallersMistake) {
  const Device gpu0{Device::Kind::kCuda, 0}, gpu1{Device::Kind::kCuda, 1};
  EXPECT_TRUE(throws(Status::kUnsupported, "op: x is on cuda:1, this build works on the CPU only", [&] {
    check({memory, DType::kFloat32, {2, 7}, gpu1});
  }));
  EXPECT_TRUE(throws(kBad, "op: x is on cuda:1, must be on cuda:0", [&] {
    check({memory, DType::kFloat32, {2, 7}, gpu1}, gpu0);
  }));
  EXPECT_TRUE(throws(kBad, "op: x is on cpu, must be on cuda:0", [&] {
    check({memory, DType::kFloat32, {2, 7}}, gpu0);
  }));
  EXPECT_NO_THROW(check({memory, DType::kFloat32, {2, 7}, gpu1}, gpu1));
}

TEST(CheckRowStride, RowsOfAnOutputMustNotLieOnEachOther) {
  const auto rows = [](const TensorView& view) { check_row_stride(view, "op", "y"); };
  EXPECT_NO_THROW(rows({memory, DType::kFloat32, {4, 8}}));
  EXPECT_NO_THROW(rows({memory, DType::kFloat32, {1, 8}, {0, 1}}));
  EXPECT_NO_THROW(rows({nullptr, DType::kFloat32, {4, 0, 8}}));
  EXPECT_TRUE(throws(kBad, "op: y has row stride 0, must be at least 8", [&] {
    rows({memory, DType::kFloat32, {4, 8}, {0, 1}});
  }));
  EXPECT_TRUE(throws(kBad, "op: y has row stride 7, must be at least 8", [&] {
    rows({memory, DType::kFloat32, {2, 2, 8}, {16, 7, 1}});
  }));
  EXPECT_TRUE(throws(kBad, "op: y has row stride -8, must be at least 8", [&] {
    rows({memory, DType::kFloat32, {4, 8}, {-8, 1}});
  }));
}

}  // namespace
}  // namespace tamis::core
