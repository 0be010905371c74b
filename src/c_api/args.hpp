#pragma once

// From the structs of tamis.h to the views of the C++ headers, with every number from outside checked on the way.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include "core/check.hpp"
#include "tamis/cache.hpp"
#include "tamis/tamis.h"
#include "tamis/tensor.hpp"

namespace tamis::c_api {

/// Where a value came from, for the text of an error: "topk: scores".
struct Origin {
  const char* op;
  const char* argument;
};

/// An enumerator from its number, which may be anything. `last` is the largest one that exists.
template <typename Enum>
Enum enumerator(Origin origin, std::int32_t value, Enum last) {
  TAMIS_CHECK(value >= 0 && value <= static_cast<std::int32_t>(last), Status::kInvalidArgument, origin.op, ": ",
              origin.argument, " is ", value, ", must be in [0, ", static_cast<std::int32_t>(last), "]");
  return static_cast<Enum>(value);
}

Device device(Origin origin, const tamis_device& from);

/// A view; absent for rank 0. Throws kInvalidArgument on an unknown dtype or device, a rank outside [0, 4], or extents
/// and strides that span more bytes than 63 bits count, so that the arithmetic of operations on it cannot overflow.
TensorView tensor(Origin origin, const tamis_tensor& from);

/// A cache; absent for page_size 0. Throws kInvalidArgument on an unknown layout or device, or if slots or bytes do not
/// fit 63 bits.
PagedCache paged_cache(Origin origin, const tamis_paged_cache& from);

/// Throws kInvalidArgument if `pointer` is null.
void require(Origin origin, const void* pointer);

/// Longest array that a pointer and a count may describe. Products of two such counts fit 64 bits.
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;

/// A pointer and a count as a span. Throws kInvalidArgument on a count outside [0, kMaxCount], or a null pointer to
/// more than nothing.
template <typename T>
std::span<T> span(const char* op, const char* count_name, const char* name, T* data, std::int64_t count) {
  TAMIS_CHECK(count >= 0 && count <= kMaxCount, Status::kInvalidArgument, op, ": ", count_name, " is ", count,
              ", must be in [0, ", kMaxCount, "]");
  if (count > 0) require({op, name}, data);
  return {data, static_cast<std::size_t>(count)};
}

/// The part of a caller's argument struct that this library knows. Fields that the caller's (older) struct does not
/// wholly contain read as zero, which is the default of every field.
template <typename Args>
class ArgsReader {
  static_assert(std::is_trivially_copyable_v<Args> && std::is_standard_layout_v<Args>);
  static_assert(offsetof(Args, struct_size) == 0);
  // A struct_size past this is taken for an uninitialised one rather than for a struct of the far future, whose tail
  // would have to be read.
  static constexpr std::size_t kMaxStructSize = std::size_t{1} << 16;

 public:
  ArgsReader(const char* op, const Args* args) : op_(op) {
    TAMIS_CHECK(args != nullptr, Status::kInvalidArgument, op, ": args is null");
    std::size_t caller_size = 0;
    std::memcpy(&caller_size, args, sizeof caller_size);
    TAMIS_CHECK(caller_size >= sizeof caller_size && caller_size <= kMaxStructSize, Status::kInvalidArgument, op,
                ": args.struct_size is ", caller_size, ", must be the sizeof of its type, ", sizeof(Args),
                " in this version");
    const auto* bytes = reinterpret_cast<const unsigned char*>(args);
    for (std::size_t i = sizeof(Args); i < caller_size; ++i) {
      TAMIS_CHECK(bytes[i] == 0, Status::kUnsupported, op, ": args.struct_size is ", caller_size, ", version ",
                  tamis_version(), " knows ", sizeof(Args), " bytes, and byte ", i,
                  " is set: the caller was compiled against a newer tamis.h and uses what this library does not have");
    }
    size_ = std::min(caller_size, sizeof(Args));
    std::memcpy(&args_, bytes, size_);
  }

  template <typename Field>
  Field operator()(Field Args::*field) const {
    const auto offset = static_cast<std::size_t>(reinterpret_cast<const unsigned char*>(&(args_.*field)) -
                                                 reinterpret_cast<const unsigned char*>(&args_));
    return offset + sizeof(Field) <= size_ ? args_.*field : Field{};
  }

  TensorView operator()(tamis_tensor Args::*field, const char* name) const {
    return tensor({op_, name}, (*this)(field));
  }
  PagedCache operator()(tamis_paged_cache Args::*field, const char* name) const {
    return paged_cache({op_, name}, (*this)(field));
  }
  template <typename Enum>
  Enum operator()(std::int32_t Args::*field, const char* name, Enum last) const {
    return enumerator({op_, name}, (*this)(field), last);
  }

 private:
  const char* op_;
  std::size_t size_ = 0;
  Args args_{};
};

}  // namespace tamis::c_api
