#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace tamis {

/// Element types. kUInt8 also stands for packed bytes (fp8 with separate scales, MXFP4 nibbles, cache pages).
enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kFloat8E4M3, kUInt8, kInt32, kInt64 };

/// Bytes of one element.
constexpr std::int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kBFloat16:
    case DType::kFloat16: return 2;
    case DType::kFloat8E4M3:
    case DType::kUInt8: return 1;
    case DType::kInt64: return 8;
  }
  return 0;
}

/// Short name as printed in errors and tables: fp32, bf16, fp16, fp8_e4m3, uint8, int32, int64.
const char* dtype_name(DType dtype) noexcept;

struct Device {
  enum class Kind : std::uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// An opaque device queue (a cudaStream_t on CUDA). Ignored on the CPU.
struct Stream {
  void* handle = nullptr;
};

inline constexpr int kMaxRank = 4;

/// Throws Error kInvalidArgument: a view of more than kMaxRank dimensions, or with another number of strides.
[[noreturn]] void throw_bad_view(std::size_t rank, std::size_t strides);

/// A view: pointer, dtype, shape, strides in elements, device. Owns nothing. A default-constructed view is absent,
/// which is how optional arguments are left out.
template <typename Pointer>
class BasicTensorView {
 public:
  BasicTensorView() = default;

  /// A dense row-major view.
  BasicTensorView(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {})
      : data_(data), dtype_(dtype), rank_(static_cast<int>(shape.size())), device_(device) {
    if (shape.size() > kMaxRank) throw_bad_view(shape.size(), shape.size());
    int i = 0;
    for (std::int64_t extent : shape) shape_[static_cast<std::size_t>(i++)] = extent;
    std::int64_t step = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      strides_[static_cast<std::size_t>(d)] = step;
      step *= shape_[static_cast<std::size_t>(d)];
    }
  }

  /// A strided view; strides in elements.
  BasicTensorView(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape,
                  std::initializer_list<std::int64_t> strides, Device device = {})
      : BasicTensorView(data, dtype, shape, device) {
    if (strides.size() != shape.size()) throw_bad_view(shape.size(), strides.size());
    int i = 0;
    for (std::int64_t step : strides) strides_[static_cast<std::size_t>(i++)] = step;
  }

  /// A mutable view converts to a read-only one.
  template <typename Other>
  requires(!std::same_as<Other, Pointer> && std::convertible_to<Other, Pointer>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor): views convert freely
      : data_(other.data()), dtype_(other.dtype()), rank_(other.rank()), device_(other.device()) {
    for (int d = 0; d < rank_; ++d) {
      shape_[static_cast<std::size_t>(d)] = other.size(d);
      strides_[static_cast<std::size_t>(d)] = other.stride(d);
    }
  }

  /// False for a default-constructed view. A present view may still have a null pointer when it holds no elements.
  bool present() const { return rank_ > 0; }
  Pointer data() const { return data_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  Device device() const { return device_; }
  std::int64_t size(int d) const { return shape_[static_cast<std::size_t>(d)]; }
  std::int64_t stride(int d) const { return strides_[static_cast<std::size_t>(d)]; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank_; ++d) n *= size(d);
    return n;
  }

 private:
  Pointer data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  int rank_ = 0;
  Device device_{};
  std::array<std::int64_t, kMaxRank> shape_{};
  std::array<std::int64_t, kMaxRank> strides_{};
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

}  // namespace tamis
