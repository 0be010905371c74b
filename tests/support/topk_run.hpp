#pragma once

// One top-k call with its scores, outputs and workspace, all fenced and poisoned. The tests of tests/topk that use it
// are compiled twice: for the CPU, and with TAMIS_TEST_CUDA, where run() goes through every CUDA algorithm.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "guarded_buffer.hpp"
#include "tamis/topk.hpp"
#include "topk_cases.hpp"

namespace tamis::test {

struct TopkCall;
/// tests/topk_cuda: runs the call on the GPU with every algorithm that can serve it, and checks that all give the same
/// bytes. The outputs end up in the call's own memory.
void run_topk_on_gpu(TopkCall& call);

/// The algorithms that a test forces one after another. run() sees to those of CUDA.
inline std::vector<TopkAlgorithm> topk_test_algorithms() {
#ifdef TAMIS_TEST_CUDA
  return {TopkAlgorithm::kAuto};
#else
  return {TopkAlgorithm::kSimdFilter, TopkAlgorithm::kSelect};
#endif
}

/// Shapes and formats of the memory behind a call.
struct TopkLayout {
  DType dtype = DType::kFloat32;
  DType index_dtype = DType::kInt32;
  std::int64_t row_stride = 0;      // of scores, in elements; 0: the width
  std::int64_t output_padding = 0;  // elements between the rows of each output
  std::size_t misaligned = 0;       // bytes by which scores and outputs miss a 64-byte boundary
};

/// Change `args` before run() as a test needs.
struct TopkCall {
  TopkCall(std::int64_t rows, std::int64_t width, std::int64_t k, TopkLayout layout = {})
      : score_stride(layout.row_stride == 0 ? width : layout.row_stride),
        scores(bytes(rows * score_stride, layout.dtype), 0xFF, layout.misaligned),
        indices(bytes(rows * (k + layout.output_padding), layout.index_dtype), 0xC7, layout.misaligned),
        values(bytes(rows * (k + layout.output_padding), layout.dtype), 0xC7, layout.misaligned),
        certificate(bytes(rows * (4 + layout.output_padding), DType::kInt32), 0xC7, layout.misaligned) {
    const std::int64_t padding = layout.output_padding;
    args.scores = ConstTensorView(scores.data(), layout.dtype, {rows, width}, {score_stride, 1});
    args.k = k;
    args.indices = TensorView(indices.data(), layout.index_dtype, {rows, k}, {k + padding, 1});
    args.values = TensorView(values.data(), layout.dtype, {rows, k}, {k + padding, 1});
    args.certificate = TensorView(certificate.data(), DType::kInt32, {rows, 4}, {4 + padding, 1});
    args.num_threads = 1;
  }

  void set_row(std::int64_t row, std::vector<float> from) {
    if (!from.empty()) {
      encode_topk_scores(from, args.scores.dtype(), scores.data() + bytes(row * score_stride, args.scores.dtype()));
    }
  }
  void fill(const TopkDistribution& kind) {
    for (std::int64_t r = 0; r < args.scores.size(0); ++r) set_row(r, make_topk_row(kind, args.scores.size(1), r));
  }
  void fill(const char* kind) { fill(topk_distribution(kind)); }

  /// Runs on a workspace of exactly the size asked for, filled with 0xFF, and checks that nothing beside the outputs
  /// changed.
  void run() {
#ifdef TAMIS_TEST_CUDA
    run_topk_on_gpu(*this);
    return;
#endif
    GuardedBuffer<std::uint8_t> workspace(topk_workspace_bytes(args));
    const std::vector<std::uint8_t> before = scores.copy();
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.size();
    topk(args);
    args.workspace = nullptr;
    args.workspace_bytes = 0;
    EXPECT_TRUE(workspace.guards_intact());
    EXPECT_TRUE(scores.copy() == before) << "scores were changed";
    EXPECT_TRUE(indices.guards_intact());
    EXPECT_TRUE(values.guards_intact());
    EXPECT_TRUE(certificate.guards_intact());
  }

  std::int64_t index(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = row * args.indices.stride(0) + i;
    if (args.indices.dtype() == DType::kInt64) return load<std::int64_t>(indices, at * 8);
    return load<std::int32_t>(indices, at * 4);
  }
  std::vector<std::int64_t> index_row(std::int64_t row) const {
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < args.k; ++i) out.push_back(index(row, i));
    return out;
  }
  /// The bits of values[row, i], in the low bytes.
  std::uint32_t value_bits(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = row * args.values.stride(0) + i;
    if (args.values.dtype() == DType::kFloat32) return load<std::uint32_t>(values, at * 4);
    return load<std::uint16_t>(values, at * 2);
  }
  TopkCertificate certificate_row(std::int64_t row) const {
    return load<TopkCertificate>(certificate, row * args.certificate.stride(0) * 4);
  }

  std::int64_t score_stride;
  GuardedBuffer<std::uint8_t> scores, indices, values, certificate;
  TopkArgs args;

 private:
  static std::size_t bytes(std::int64_t elements, DType dtype) {
    return static_cast<std::size_t>(elements * dtype_bytes(dtype));
  }
  template <typename T>
  static T load(const GuardedBuffer<std::uint8_t>& from, std::int64_t byte) {
    T value;
    std::memcpy(&value, from.data() + byte, sizeof(T));
    return value;
  }
};

}  // namespace tamis::test
