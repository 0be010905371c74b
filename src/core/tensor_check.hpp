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

/// "cpu" or "cuda:1".
inline std::string describe(Device device) {
  return device.kind == Device::Kind::kCpu ? std::string("cpu") : concat("cuda:", device.index);
}

/// Throws unless what is called `name` lies on `expected`. Memory of a GPU is no mistake of the caller where this build
/// has no code for one: that is kUnsupported.
inline void check_device(Device device, std::string_view op, std::string_view name, Device expected) {
  if (device == expected) return;
  if (expected.kind == Device::Kind::kCpu) {
    fail(Status::kUnsupported, op, ": ", name, " is on ", describe(device), ", this build works on the CPU only");
  }
  fail(Status::kInvalidArgument, op, ": ", name, " is on ", describe(device), ", must be on ", describe(expected));
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
  std::int64_t bytes = dtype_bytes(view.dtype());
  bool countable = true;
  for (int d = 0; d < view.rank() && bytes != 0; ++d) countable &= !__builtin_mul_overflow(bytes, view.size(d), &bytes);
  TAMIS_CHECK(countable, Status::kInvalidArgument, spec.op, ": ", spec.name, " is ", describe(view),
              ", more bytes than 64 bits count");
  TAMIS_CHECK(view.size(last) <= 1 || view.stride(last) == 1, Status::kInvalidArgument, spec.op, ": ", spec.name,
              " has stride ", view.stride(last), " in its last dimension, must be contiguous (1)");
  check_device(view.device(), spec.op, spec.name, device);
  TAMIS_CHECK(view.numel() == 0 || view.data() != nullptr, Status::kInvalidArgument, spec.op, ": ", spec.name, " is ",
              describe(view), " with a null pointer");
}

/// Throws kInvalidArgument if rows of an output would lie on each other: every stride but the last is at least the last
/// extent, where there is more than one row and anything in it.
template <typename Pointer>
void check_row_stride(const BasicTensorView<Pointer>& view, std::string_view op, std::string_view name) {
  const int last = view.rank() - 1;
  if (view.numel() == 0) return;
  for (int d = 0; d < last; ++d) {
    TAMIS_CHECK(view.size(d) <= 1 || view.stride(d) >= view.size(last), Status::kInvalidArgument, op, ": ", name,
                " has row stride ", view.stride(d), ", must be at least ", view.size(last));
  }
}

}  // namespace tamis::core
