#pragma once

// What every operation of the Python module does around its C++ call: arrays become views without a copy, new outputs
// and scratch memory come from the caller's array library, and the call runs on that library's current stream.

#include <nanobind/nanobind.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.hpp"
#include "dlpack_abi.hpp"
#include "tamis/cache.hpp"
#include "tamis/tensor.hpp"

namespace tamis::python {

namespace nb = nanobind;

/// Throws TypeError. @param parts  As for TAMIS_CHECK: operation, argument, what came and what was expected.
template <typename... Parts>
[[noreturn]] [[gnu::cold]] void fail_type(const Parts&... parts) {
  throw nb::type_error(core::concat(parts...).c_str());
}

/// "float", "numpy.ndarray".
std::string name_of_type(nb::handle object);

inline constexpr std::array kCacheLayouts = {
    std::pair{std::string_view("fp32"), CacheLayout::kFloat32},
    std::pair{std::string_view("bf16"), CacheLayout::kBFloat16},
    std::pair{std::string_view("fp8_tensor"), CacheLayout::kFp8PerTensor},
    std::pair{std::string_view("fp8_mla584"), CacheLayout::kFp8Mla584},
    std::pair{std::string_view("fp8_mla656"), CacheLayout::kFp8Mla656},
    std::pair{std::string_view("indexer_fp8"), CacheLayout::kIndexerFp8},
    std::pair{std::string_view("indexer_mxfp4"), CacheLayout::kIndexerMxfp4},
};

/// An array that the operation writes: the caller's own, or a new one.
struct Output {
  nb::object array;
  TensorView view;
  bool is_new = false;
};

class Call {
 public:
  /// @param op  Name of the operation as errors call it.
  explicit Call(const char* op) : op_(op) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// A view of an array that is read. The first array of a call says whose library allocates, and on which device.
  /// @throws TypeError if it is no array or has none of these dtypes; ValueError for a rank outside 1 to 4.
  ConstTensorView input(nb::handle array, const char* name, std::initializer_list<DType> dtypes);

  /// The same, but None is absent.
  ConstTensorView optional_input(nb::handle array, const char* name, std::initializer_list<DType> dtypes);

  /// A view of an array that is written.
  /// @throws ValueError, in addition, if it is read-only.
  TensorView output(nb::handle array, const char* name, std::initializer_list<DType> dtypes);

  /// An array of this shape that is written: the caller's own, of this dtype or one that will do as well; or a new one
  /// of the caller's library and device if `array` is None.
  /// @throws ValueError, in addition, for another shape or device, or rows that lie on each other.
  Output output_or_new(nb::handle array, const char* name, DType dtype, std::initializer_list<std::int64_t> shape,
                       std::initializer_list<DType> or_dtypes = {});

  /// The same for an array that a caller may do without: absent if it is False or None, new if it is True.
  Output optional_output(nb::handle array, const char* name, DType dtype, std::initializer_list<std::int64_t> shape);

  /// A cache: the tuple (data, layout, head_dim, page_size, scale) that tamis.PagedCache is.
  ConstPagedCache input_cache(nb::handle cache, const char* name);
  PagedCache output_cache(nb::handle cache, const char* name);

  /// Scratch memory: the caller's array where one is given, else new memory that lives as long as the call.
  void* workspace(nb::handle array, std::size_t bytes, std::size_t* available);

  /// The stream on which the caller's library works now. To be asked for once all arrays are known.
  Stream stream();

  /// Throws ValueError if an array that is written shares memory with any other.
  void check_overlaps() const;

  /// Runs the operation: without the interpreter's lock on the CPU, where it takes its time. Tells PyTorch what of its
  /// was written, so that autograd notices where it has kept what was there before.
  template <typename F>
  void run(F operation) {
    if (device_.kind == Device::Kind::kCuda) {
      operation();
    } else {
      const nb::gil_scoped_release unlocked;
      operation();
    }
    if (num_torch_outputs_ != 0) bump_versions();
  }

  /// What the caller gets for an output: a new array as its library's own type.
  nb::object result(const Output& output) const;

  /// The device of the first array.
  Device device() const { return device_; }

  /// Values of arguments that are no arrays. @throws TypeError, or ValueError out of range, that name the argument.
  std::int64_t integer(nb::handle value, const char* name) const;
  std::int64_t integer(nb::handle value, const char* name, std::int64_t least, std::int64_t most) const;
  std::uint64_t unsigned_integer(nb::handle value, const char* name) const;
  bool boolean(nb::handle value, const char* name) const;
  double number(nb::handle value, const char* name) const;
  int threads(nb::handle num_threads) const;
  /// Of any sequence, or an array on the CPU. For std::int32_t and std::int64_t.
  template <std::signed_integral Integer>
  std::vector<Integer> integers(nb::handle value, const char* name) const;
  /// "cpu", "cuda", "cuda:N" or a torch.device.
  Device parse_device(nb::handle value, const char* name) const;

  /// Throws ValueError if an argument is there that means nothing without another.
  void absent(nb::handle value, const char* name, const char* partner) const;

  /// The value that a name stands for. @throws ValueError listing all names.
  template <typename T, std::size_t n>
  T choice(nb::handle value, const char* name, const std::array<std::pair<std::string_view, T>, n>& choices) const {
    const std::string_view text = string(value, name);
    for (const auto& [known, meaning] : choices) {
      if (known == text) return meaning;
    }
    std::string all;
    for (const auto& [known, meaning] : choices) all += core::concat(all.empty() ? "'" : ", '", known, "'");
    core::fail(Status::kInvalidArgument, op_, ": ", name, " is '", text, "', must be one of ", all);
  }
  std::string_view string(nb::handle value, const char* name) const;
  const char* op() const { return op_; }

 private:
  // Bytes that an array may touch: `count` pieces of `bytes`, `step` apart, which is positive if there are several.
  struct Extent {
    const char* name;
    std::uintptr_t begin;
    std::int64_t count, step, bytes;
    bool written;
  };
  struct Imported {
    DlTensor tensor;  // its shape and strides hold until the next import
    bool read_only;
    bool torch;
  };
  static constexpr std::size_t kMostArrays = 16;

  Imported import(nb::handle array, const char* name);
  Imported import_table(nb::handle array, const DlExchangeApi& api);
  Imported import_numpy(nb::handle array, const char* name);
  Imported import_capsule(nb::handle array, const char* name);
  template <typename Pointer>
  BasicTensorView<Pointer> view(nb::handle array, const char* name, std::span<const DType> dtypes, bool written);
  template <typename Pointer>
  BasicPagedCache<Pointer> cache(nb::handle cache, const char* name, bool written);
  Output make(const char* name, DType dtype, std::initializer_list<std::int64_t> shape);
  DlManagedTensorVersioned* allocate(DType dtype, const std::int64_t* shape, std::size_t rank) const;
  void note(const char* name, const void* data, const DlTensor& tensor, std::int64_t element_bytes, bool written);

  void bump_versions() const;
  nb::object index_of(nb::handle value, const char* name) const;

  const char* op_;
  Device device_{};
  nb::handle like_;  // the first array
  const char* like_name_ = nullptr;
  const DlExchangeApi* api_ = nullptr;
  bool numpy_ = false;
  std::array<Extent, kMostArrays> extents_{};
  std::size_t num_extents_ = 0;
  std::array<nb::handle, kMostArrays> torch_outputs_{};
  std::size_t num_torch_outputs_ = 0;
  std::vector<nb::object> kept_;  // capsules, buffers: what exported arrays live in
  std::vector<std::unique_ptr<Py_buffer>> buffers_;
  std::array<std::int64_t, kMaxRank> element_strides_{};  // of the buffer imported last
  std::unique_ptr<void, void (*)(void*)> host_scratch_{nullptr, nullptr};
  DlManagedTensorVersioned* device_scratch_ = nullptr;
};

}  // namespace tamis::python
