#pragma once

// The binary interface of DLPack 1.3, as far as it is used here: how array libraries hand each other tensors without a
// copy. Layouts follow dlpack.h of https://github.com/dmlc/dlpack (v1.3); names are ours.

#include <cstdint>

namespace tamis::python {

struct DlVersion {
  std::uint32_t major, minor;
};

enum DlDeviceType : std::int32_t { kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13 };

struct DlDevice {
  DlDeviceType type;
  std::int32_t index;
};

enum DlTypeCode : std::uint8_t { kDlInt = 0, kDlUInt = 1, kDlFloat = 2, kDlBfloat = 4, kDlFloat8E4M3Fn = 10 };

struct DlDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
  friend bool operator==(const DlDataType&, const DlDataType&) = default;
};

struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t ndim;
  DlDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; may be null before version 1.2: dense
  std::uint64_t byte_offset;
};

/// What a capsule named "dltensor" holds.
struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor*);
};

/// What a capsule named "dltensor_versioned" holds.
struct DlManagedTensorVersioned {
  DlVersion version;
  void* context;
  void (*deleter)(DlManagedTensorVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};
inline constexpr std::uint64_t kDlReadOnly = 1;

/// What the capsule `type(array).__dlpack_c_exchange_api__` holds: the same without a Python object per array, about a
/// hundred nanoseconds each. Functions that return int give 0, or -1 with a Python exception set.
struct DlExchangeApi {
  DlVersion version;
  void* previous;
  int (*allocate)(DlTensor* prototype, DlManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*from_object)(void* object, DlManagedTensorVersioned** out);
  int (*to_object)(DlManagedTensorVersioned* tensor, void** out);  // takes the tensor over
  int (*borrow)(void* object, DlTensor* out);                      // may be null; lives as long as the object
  int (*current_stream)(DlDeviceType type, std::int32_t index, void** out);
};

}  // namespace tamis::python
