#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace tamis::gemm {

/// y = x W^T in fp32, with W packed once. Backed by oneDNN.
///
/// A row of y has the same bits whatever rows are computed with it: rows go through primitives of a few fixed row
/// counts whose accumulation order over `in` was found equal (oneDNN's brgemm kernels, checked by tests), and one row
/// at a time where the machine has no such kernel.
class Linear {
 public:
  Linear();

  /// @param weight  [out_features, in_features] row-major; copied into the packed form.
  /// @param x_stride, y_stride  Elements between rows of x and y; 0 means dense.
  Linear(std::span<const float> weight, std::int64_t out_features, std::int64_t in_features, std::int64_t x_stride = 0,
         std::int64_t y_stride = 0);
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;
  ~Linear();

  /// Multiplies `rows` rows. x and y must not overlap. num_threads as in the operations: 0 as the arena has, 1 none.
  void operator()(const float* x, std::int64_t rows, float* y, int num_threads) const;

  std::int64_t out_features() const { return out_features_; }
  std::int64_t in_features() const { return in_features_; }

 private:
  struct Packed;
  std::int64_t out_features_ = 0;
  std::int64_t in_features_ = 0;
  std::int64_t x_stride_ = 0;
  std::int64_t y_stride_ = 0;
  std::unique_ptr<Packed> packed_;
};

}  // namespace tamis::gemm
