#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include "core/check.hpp"
#include "core/parallel.hpp"
#include "core/tensor_check.hpp"
#include "ops/layouts.hpp"
#include "ops/quantize.hpp"
#include "ops/rows.hpp"
#include "tamis/ops.hpp"

namespace tamis {

void rope_frequencies(double base, const RopeScaling& scaling, std::span<double> out) {
  TAMIS_CHECK(std::isfinite(base) && base > 0, Status::kInvalidArgument, "rope_frequencies: base is ", base,
              ", must be finite and > 0");
  TAMIS_CHECK(!out.empty(), Status::kInvalidArgument, "rope_frequencies: out is empty, must have one element a pair");
  const double dims = 2.0 * static_cast<double>(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::pow(base, -2.0 * static_cast<double>(i) / dims);
  TAMIS_CHECK(std::isfinite(scaling.factor), Status::kInvalidArgument, "rope_frequencies: scaling.factor is ",
              scaling.factor, ", must be finite");
  if (scaling.factor <= 1.0) return;

  TAMIS_CHECK(base > 1, Status::kInvalidArgument, "rope_frequencies: base is ", base,
              ", must be > 1 with scaling.factor > 1");
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  TAMIS_CHECK(positive(scaling.original_max_positions) && positive(scaling.beta_slow) && positive(scaling.beta_fast) &&
                  scaling.beta_fast >= scaling.beta_slow,
              Status::kInvalidArgument, "rope_frequencies: scaling has original_max_positions ",
              scaling.original_max_positions, ", beta_fast ", scaling.beta_fast, ", beta_slow ", scaling.beta_slow,
              ", must all be finite and > 0, and beta_fast >= beta_slow");
  // The pair that turns `rotations` times over the original context. Pairs that turn faster than beta_fast keep their
  // frequency, those slower than beta_slow are stretched by the factor, and a ramp lies between.
  const auto pair_of = [&](double rotations) {
    return dims * std::log(scaling.original_max_positions / (2.0 * std::numbers::pi * rotations)) /
           (2.0 * std::log(base));
  };
  const double low = std::max(std::floor(pair_of(scaling.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of(scaling.beta_slow)), dims - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    out[i] = out[i] / scaling.factor * ramp + out[i] * (1.0 - ramp);
  }
}

void rope_table(std::span<const double> frequencies, TensorView cos_sin) {
  TAMIS_CHECK(!frequencies.empty(), Status::kInvalidArgument,
              "rope_table: frequencies is empty, must have one element a pair");
  const auto pairs = static_cast<std::int64_t>(frequencies.size());
  core::check_view(cos_sin, {"rope_table", "cos_sin", {DType::kFloat32}, {core::kAnyExtent, 2 * pairs}});
  core::check_row_stride(cos_sin, "rope_table", "cos_sin");
  constexpr std::int64_t kRowsAPiece = 4096;  // some milliseconds: a table of a million positions uses all cores
  core::parallel_for(cos_sin.size(0), kRowsAPiece, 0, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t p = begin; p < end; ++p) {
      float* row = static_cast<float*>(cos_sin.data()) + p * cos_sin.stride(0);
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(i)];
        row[i] = static_cast<float>(std::cos(angle));
        row[pairs + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

void rope(TensorView x, ConstTensorView positions, ConstTensorView cos_sin, bool inverse) {
  core::check_view(
      x, {"rope", "x", {DType::kFloat32, DType::kBFloat16}, {core::kAnyExtent, core::kAnyExtent, core::kAnyExtent}});
  const std::int64_t tokens = x.size(0), heads = x.size(1), n = x.size(2);
  TAMIS_CHECK(n >= ops::kRopeDims, Status::kInvalidArgument, "rope: x has ", n, " dims a vector, must have at least ",
              ops::kRopeDims);
  core::check_row_stride(x, "rope", "x");
  core::check_view(positions, {"rope", "positions", {DType::kInt64}, {tokens}});
  core::check_view(cos_sin, {"rope", "cos_sin", {DType::kFloat32}, {core::kAnyExtent, ops::kRopeDims}});
  const std::int64_t bytes = dtype_bytes(x.dtype());
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t position = static_cast<const std::int64_t*>(positions.data())[t];
    if (position < 0 || position >= cos_sin.size(0)) continue;
    const float* angles = static_cast<const float*>(cos_sin.data()) + position * cos_sin.stride(0);
    for (std::int64_t h = 0; h < heads; ++h) {
      auto* last =
          static_cast<std::uint8_t*>(x.data()) + (t * x.stride(0) + h * x.stride(1) + n - ops::kRopeDims) * bytes;
      if (x.dtype() == DType::kFloat32) {
        ops::rope_row(reinterpret_cast<float*>(last), angles, inverse);
        continue;
      }
      float values[ops::kRopeDims];
      ops::load_row(last, x.dtype(), ops::kRopeDims, values);
      ops::rope_row(values, angles, inverse);
      ops::store_row(values, ops::kRopeDims, x.dtype(), last);
    }
  }
}

}  // namespace tamis
