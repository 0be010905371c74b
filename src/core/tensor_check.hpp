#pragma once

// Checks that public entries make on their views. Each names operation and argument, what was expected and what came.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/check.hpp"
#include "tamis/tensor.hpp"

namespace tamis::core {

/// "fp32 [4, 128]", or "absent".
template <typename Pointer>
std::string describe(const BasicTensorView<Pointer>& view) {
  if (!view.present()) return "absent";
  std::string text = concat(dtype_name(view.dtype()), " [");
  for (int d = 0; d < view.rank(); ++d) text += concat(d == 0 ? "" : ", ", view.size(d));
  return text + "]";
}

/// Stands for "any extent" in a list of expected extents.
inline constexpr std::int64_t kAnyExtent = -1;

struct ViewSpec {
  std::string_view op;    // "topk"
  std::string_view name;  // "row_ends"
  std::initializer_list<DType> dtypes;
  std::initializer_list<std::int64_t> shape;
};

/// Throws kInvalidArgument unless the view is present, on the CPU or CUDA as `device` says, has one of the dtypes, the
/// shape, a contiguous last dimension and, where it holds elements, a pointer that is not null.
template <typename Pointer>
void check_view(const BasicTensorView<Pointer>& view, const ViewSpec& spec, Device device = {}) {
  const auto expected = [&] {
    std::string text;
    for (DType dtype : spec.dtypes) text += concat(text.empty() ? "" : " or ", dtype_name(dtype));
    text += " [";
    bool first = true;
    for (std::int64_t extent : spec.shape) {
      text += first ? "" : ", ";
      text += extent == kAnyExtent ? std::string("any") : std::to_string(extent);
      first = false;
    }
    return text + "]";
  };
  bool ok = view.present() && view.rank() == static_cast<int>(spec.shape.size());
  if (ok) {
    bool dtype_ok = false;
    for (DType dtype : spec.dtypes) dtype_ok |= view.dtype() == dtype;
    ok = dtype_ok;
    int d = 0;
    for (std::int64_t extent : spec.shape) {
      ok &= view.size(d) >= 0 && (extent == kAnyExtent || view.size(d) == extent);
      ++d;
    }
  }
  TAMIS_CHECK(ok, Status::kInvalidArgument, spec.op, ": ", spec.name, " is ", describe(view), ", must be ", expected());
  const int last = view.rank() - 1;
  TAMIS_CHECK(view.size(last) <= 1 || view.stride(last) == 1, Status::kInvalidArgument, spec.op, ": ", spec.name,
              " has stride ", view.stride(last), " in its last dimension, must be contiguous (1)");
  TAMIS_CHECK(view.device() == device, Status::kInvalidArgument, spec.op, ": ", spec.name,
              " is on another device than ", device.kind == Device::Kind::kCpu ? "the CPU" : "its GPU");
  TAMIS_CHECK(view.numel() == 0 || view.data() != nullptr, Status::kInvalidArgument, spec.op, ": ", spec.name, " is ",
              describe(view), " with a null pointer");
}

}  // namespace tamis::core
