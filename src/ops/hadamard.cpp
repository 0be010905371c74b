#include <bit>
#include <cstdint>

#include "core/check.hpp"
#include "core/tensor_check.hpp"
#include "ops/rows.hpp"
#include "tamis/ops.hpp"

namespace tamis {

void hadamard(TensorView x) {
  core::check_view(x, {"hadamard", "x", {DType::kFloat32}, {core::kAnyExtent, core::kAnyExtent}});
  core::check_row_stride(x, "hadamard", "x");
  const std::int64_t n = x.size(1);
  TAMIS_CHECK(n >= 1 && n <= 1024 && std::has_single_bit(static_cast<std::uint64_t>(n)), Status::kInvalidArgument,
              "hadamard: x has rows of ", n, ", must be a power of two in [1, 1024]");
  for (std::int64_t r = 0; r < x.size(0); ++r) {
    ops::hadamard_row(static_cast<float*>(x.data()) + r * x.stride(0), n);
  }
}

}  // namespace tamis
