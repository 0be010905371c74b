#include <cstdint>

#include "core/check.hpp"
#include "core/tensor_check.hpp"
#include "ops/quantize.hpp"
#include "ops/rows.hpp"
#include "tamis/ops.hpp"

namespace tamis {

namespace {

// A bf16 row longer than this is walked in pieces, since there is no room to hold it as fp32.
constexpr std::int64_t kPiece = 512;

}  // namespace

void rmsnorm(ConstTensorView x, ConstTensorView weight, float eps, TensorView y) {
  core::check_view(x, {"rmsnorm", "x", {DType::kFloat32, DType::kBFloat16}, {core::kAnyExtent, core::kAnyExtent}});
  const std::int64_t rows = x.size(0), n = x.size(1);
  if (weight.present()) core::check_view(weight, {"rmsnorm", "weight", {DType::kFloat32}, {n}});
  core::check_view(y, {"rmsnorm", "y", {DType::kFloat32, DType::kBFloat16}, {rows, n}});
  core::check_row_stride(y, "rmsnorm", "y");
  if (n == 0) return;
  const std::int64_t x_bytes = dtype_bytes(x.dtype()), y_bytes = dtype_bytes(y.dtype());
  const auto* weights = weight.present() ? static_cast<const float*>(weight.data()) : nullptr;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto* in = static_cast<const std::uint8_t*>(x.data()) + r * x.stride(0) * x_bytes;
    auto* out = static_cast<std::uint8_t*>(y.data()) + r * y.stride(0) * y_bytes;
    if (x.dtype() == DType::kFloat32 && y.dtype() == DType::kFloat32) {
      ops::rmsnorm_row(reinterpret_cast<const float*>(in), weights, n, eps, reinterpret_cast<float*>(out));
      continue;
    }
    float partial[ops::kPartialSums] = {};
    float values[kPiece];
    for (std::int64_t begin = 0; begin < n; begin += kPiece) {
      const std::int64_t count = n - begin < kPiece ? n - begin : kPiece;
      ops::load_row(in + begin * x_bytes, x.dtype(), count, values);
      ops::add_squares(values, count, partial);
    }
    const float factor = ops::rms_factor(ops::sum_partials(partial), n, eps);
    for (std::int64_t begin = 0; begin < n; begin += kPiece) {
      const std::int64_t count = n - begin < kPiece ? n - begin : kPiece;
      ops::load_row(in + begin * x_bytes, x.dtype(), count, values);
      ops::scale_row(values, weights == nullptr ? nullptr : weights + begin, count, factor, values);
      ops::store_row(values, count, y.dtype(), out + begin * y_bytes);
    }
  }
}

}  // namespace tamis
