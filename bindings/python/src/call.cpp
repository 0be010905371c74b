#include "call.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/tensor_check.hpp"

namespace tamis::python {
namespace {

// How arrays of a Python type are read. Types live as long as the interpreter here: one reference each is kept.
struct ArrayType {
  PyTypeObject* type;
  const DlExchangeApi* api;
  bool numpy, masked, torch;
};

const DlExchangeApi* exchange_api(PyTypeObject* type) {
  const nb::object capsule =
      nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  auto* api = static_cast<const DlExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  // A library may offer older versions behind its newest one; structs of one major version only grow at their end.
  while (api != nullptr && api->version.major > 1) api = static_cast<const DlExchangeApi*>(api->previous);
  return api;
}

// Whether the array is one of a class, whose module is not loaded for the question: without it there are none.
bool is_instance(nb::handle array, const char* module, const char* name) {
  PyObject* loaded = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  if (loaded == nullptr) return false;
  const nb::object type = nb::getattr(nb::handle(loaded), name, nb::none());
  if (PyType_Check(type.ptr()) == 0) return false;
  const int found = PyObject_IsInstance(array.ptr(), type.ptr());
  if (found < 0) nb::raise_python_error();
  return found == 1;
}

// By value: whatever runs Python code may let another thread add a type meanwhile.
ArrayType array_type(nb::handle array) {
  static std::vector<ArrayType> known;  // guarded by the interpreter's lock
  auto* type = reinterpret_cast<PyTypeObject*>(array.type().ptr());
  for (const ArrayType& entry : known) {
    if (entry.type == type) return entry;
  }
  const ArrayType found{type, exchange_api(type), is_instance(array, "numpy", "ndarray"),
                        is_instance(array, "numpy.ma", "MaskedArray"), is_instance(array, "torch", "Tensor")};
  // Programs that make array types as they go get no slower than without this list, which does not grow for ever.
  constexpr std::size_t kMostTypes = 64;
  if (known.size() < kMostTypes && (found.api != nullptr || found.numpy || nb::hasattr(array, "__dlpack__"))) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known.push_back(found);
  }
  return found;
}

// Whether a tensor of PyTorch stands for the negative of what its memory holds.
bool is_negated(nb::handle tensor) {
  static PyObject* const method = PyUnicode_InternFromString("is_neg");
  PyObject* arguments[] = {nullptr, tensor.ptr()};
  const nb::object answer =
      nb::steal(PyObject_VectorcallMethod(method, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!answer.is_valid()) nb::raise_python_error();
  return answer.ptr() == Py_True;
}

// Whether autograd would take a tensor of PyTorch that is written to for what it was computed from before.
bool wants_gradient(nb::handle tensor) {
  static PyObject* const attribute = PyUnicode_InternFromString("requires_grad");
  const nb::object answer = nb::steal(PyObject_GetAttr(tensor.ptr(), attribute));
  if (!answer.is_valid()) nb::raise_python_error();
  return answer.ptr() == Py_True && nb::cast<bool>(nb::module_::import_("torch").attr("is_grad_enabled")());
}

std::string shape_text(std::initializer_list<std::int64_t> shape) {
  std::string text;
  for (std::int64_t extent : shape) text += (text.empty() ? "[" : ", ") + std::to_string(extent);
  return text + "]";
}

struct DTypeRow {
  DType dtype;
  DlDataType dl;
  const char* numpy_name;
};
constexpr DTypeRow kDTypes[] = {
    {DType::kFloat32, {kDlFloat, 32, 1}, "float32"}, {DType::kBFloat16, {kDlBfloat, 16, 1}, "bfloat16"},
    {DType::kFloat16, {kDlFloat, 16, 1}, "float16"}, {DType::kFloat8E4M3, {kDlFloat8E4M3Fn, 8, 1}, "float8_e4m3fn"},
    {DType::kUInt8, {kDlUInt, 8, 1}, "uint8"},       {DType::kInt32, {kDlInt, 32, 1}, "int32"},
    {DType::kInt64, {kDlInt, 64, 1}, "int64"},
};

const DTypeRow& row_of(DType dtype) {
  return *std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeRow& row) { return row.dtype == dtype; });
}

const DTypeRow* find_row(const DlDataType& dl) {
  const auto* row = std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeRow& r) { return r.dl == dl; });
  return row == std::end(kDTypes) ? nullptr : row;
}

// "float64", for errors about a dtype that tamis has no name for.
std::string dtype_text(const DlDataType& dl) {
  constexpr const char* kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const std::string code = dl.code < std::size(kCodes) ? kCodes[dl.code] : core::concat("type", int{dl.code}, "_");
  return core::concat(code, int{dl.bits}, dl.lanes == 1 ? "" : core::concat("x", dl.lanes));
}

std::string names_of(std::span<const DType> dtypes) {
  std::string text;
  for (DType dtype : dtypes) text += core::concat(text.empty() ? "" : " or ", dtype_name(dtype));
  return text;
}

template <typename Pointer>
BasicTensorView<Pointer> make_view(Pointer data, DType dtype, int rank, const std::int64_t* n, const std::int64_t* step,
                                   Device device) {
  switch (rank) {
    case 1: return {data, dtype, {n[0]}, {step[0]}, device};
    case 2: return {data, dtype, {n[0], n[1]}, {step[0], step[1]}, device};
    case 3: return {data, dtype, {n[0], n[1], n[2]}, {step[0], step[1], step[2]}, device};
    default: return {data, dtype, {n[0], n[1], n[2], n[3]}, {step[0], step[1], step[2], step[3]}, device};
  }
}

nb::object arrays_helper(const char* name) { return nb::module_::import_("tamis._arrays").attr(name); }

// Whether pieces of two arrays meet.
template <typename Extent>
bool overlap(const Extent& a, const Extent& b) {
  if (a.count > b.count) return overlap(b, a);  // the loop below is over a's
  const auto begin_of = [](const Extent& e, std::int64_t i) { return static_cast<std::int64_t>(e.begin) + i * e.step; };
  const auto end_of = [&](const Extent& e) { return begin_of(e, e.count - 1) + e.bytes; };
  if (a.count == 0 || b.count == 0 || a.bytes == 0 || b.bytes == 0) return false;
  if (begin_of(a, 0) >= end_of(b) || begin_of(b, 0) >= end_of(a)) return false;
  if (b.count == 1) return true;
  for (std::int64_t i = 0; i < a.count; ++i) {
    const std::int64_t begin = begin_of(a, i), end = begin + a.bytes;
    // The last piece of b that begins before this one ends.
    const std::int64_t last = std::min(b.count - 1, (end - 1 - static_cast<std::int64_t>(b.begin)) / b.step);
    if (end > static_cast<std::int64_t>(b.begin) && begin_of(b, last) + b.bytes > begin) return true;
  }
  return false;
}

}  // namespace

std::string name_of_type(nb::handle object) {
  const nb::handle type = object.type();
  const std::string module = nb::cast<std::string>(type.attr("__module__"));
  const std::string name = nb::cast<std::string>(type.attr("__qualname__"));
  return module == "builtins" ? name : core::concat(module, ".", name);
}

Call::~Call() {
  for (const auto& buffer : buffers_) PyBuffer_Release(buffer.get());
  if (device_scratch_ != nullptr && device_scratch_->deleter != nullptr) device_scratch_->deleter(device_scratch_);
}

Call::Imported Call::import(nb::handle array, const char* name) {
  const ArrayType type = array_type(array);
  if (like_.ptr() == nullptr) {
    like_ = array;
    like_name_ = name;
    api_ = type.api;
    numpy_ = type.numpy;
  }
  if (type.masked) {
    fail_type(op_, ": ", name, " is ", name_of_type(array),
              ", must be an array without a mask: nothing here heeds one");
  }
  try {
    Imported imported = type.api != nullptr ? import_table(array, *type.api)
                        : type.numpy        ? import_numpy(array, name)
                                            : import_capsule(array, name);
    imported.torch = type.torch;
    return imported;
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
    // PyTorch's errors go on with the stack of its C++ code.
    std::string why = nb::cast<std::string>(nb::str(error.value()));
    why.resize(std::min(why.size(), why.find('\n')));
    fail_type(op_, ": ", name, " is a ", name_of_type(array), " whose memory cannot be had (", why,
              "), must be a dense array on the CPU or CUDA");
  }
}

// By the library's table of C functions.
Call::Imported Call::import_table(nb::handle array, const DlExchangeApi& api) {
  if (api.borrow != nullptr) {
    Imported imported{};
    if (api.borrow(array.ptr(), &imported.tensor) != 0) nb::raise_python_error();
    return imported;
  }
  DlManagedTensorVersioned* managed = nullptr;
  if (api.from_object(array.ptr(), &managed) != 0) nb::raise_python_error();
  const auto release = [](void* held) noexcept {
    auto* tensor = static_cast<DlManagedTensorVersioned*>(held);
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  };
  kept_.push_back(nb::capsule(managed, release));
  return {managed->tensor, (managed->flags & kDlReadOnly) != 0};
}

// By the buffer protocol, which also tells what is read-only. Extension dtypes (ml_dtypes' bfloat16) do not have it, so
// these are read as integers of their size.
Call::Imported Call::import_numpy(nb::handle array, const char* name) {
  const nb::object numpy_dtype = array.attr("dtype");
  const std::string dtype = nb::cast<std::string>(numpy_dtype.attr("str"));  // such as "<f4"
  // numpy's letters at the places of DLPack's codes; extension dtypes have the letter V and are known by name.
  const std::size_t code = std::string_view("iuf?_cb").find(dtype[1]);
  DlDataType dl{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * std::atoi(dtype.c_str() + 2)), 1};
  nb::object owner = nb::borrow(array);
  if (code == std::string_view::npos || dtype[0] == '>') {
    const std::string known = nb::cast<std::string>(numpy_dtype.attr("name"));
    const auto* row =
        std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeRow& r) { return known == r.numpy_name; });
    if (dtype[0] == '>' || row == std::end(kDTypes)) {
      fail_type(op_, ": ", name, " has dtype ", dtype, " (", known, "), which is none that tamis knows");
    }
    dl = row->dl;
    owner = array.attr("view")(dl.bits == 16 ? "uint16" : "uint8");
  }
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(owner.ptr(), buffer.get(), PyBUF_STRIDED_RO) != 0) nb::raise_python_error();
  Py_buffer& view = *buffers_.emplace_back(std::move(buffer));
  // The buffer's own strides belong to the exporter: numpy lends the same ones to everybody.
  for (int d = 0; d < std::min(view.ndim, kMaxRank); ++d) {
    TAMIS_CHECK(view.strides[d] % view.itemsize == 0, Status::kInvalidArgument, op_, ": ", name, " has a stride of ",
                view.strides[d], " bytes, must be a multiple of its ", view.itemsize, "-byte elements");
    element_strides_[static_cast<std::size_t>(d)] = view.strides[d] / view.itemsize;
  }
  return {{view.buf, {kDlCpu, 0}, view.ndim, dl, view.shape, element_strides_.data(), 0}, view.readonly != 0};
}

Call::Imported Call::import_capsule(nb::handle array, const char* name) {
  if (!nb::hasattr(array, "__dlpack__")) {
    fail_type(op_, ": ", name, " is ", name_of_type(array),
              ", must be an array (numpy, torch, cupy, jax or whatever has "
              "__dlpack__)");
  }
  // jax's arrays never change, which its capsules say in some versions only.
  const bool immutable = name_of_type(array).starts_with("jax");
  // An unused capsule frees what it holds when it dies, so keeping it is keeping the array.
  const nb::object capsule = kept_.emplace_back(arrays_helper("export")(array));
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* managed =
        static_cast<DlManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    TAMIS_CHECK(managed->version.major == 1, Status::kUnsupported, op_, ": ", name, " comes by DLPack ",
                managed->version.major, ".", managed->version.minor, ", must be 1");
    return {managed->tensor, immutable || (managed->flags & kDlReadOnly) != 0};
  }
  const auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) nb::raise_python_error();
  return {managed->tensor, immutable};
}

template <typename Pointer>
BasicTensorView<Pointer> Call::view(nb::handle array, const char* name, std::span<const DType> dtypes, bool written) {
  if (array.is_none()) fail_type(op_, ": ", name, " is None, must be an array of ", names_of(dtypes));
  const Imported imported = import(array, name);
  const DlTensor& t = imported.tensor;
  TAMIS_CHECK(t.ndim >= 1 && t.ndim <= kMaxRank, Status::kInvalidArgument, op_, ": ", name, " has ", t.ndim,
              " dimensions, must have 1 to ", kMaxRank);
  const DTypeRow* row = find_row(t.dtype);
  if (row == nullptr || std::find(dtypes.begin(), dtypes.end(), row->dtype) == dtypes.end()) {
    fail_type(op_, ": ", name, " is ", row == nullptr ? dtype_text(t.dtype) : std::string(dtype_name(row->dtype)),
              ", must be ", names_of(dtypes));
  }
  TAMIS_CHECK(!written || !imported.read_only, Status::kInvalidArgument, op_, ": ", name,
              " is read-only, must be writable");
  TAMIS_CHECK(!imported.torch || t.dtype.code != kDlFloat || !is_negated(array), Status::kInvalidArgument, op_, ": ",
              name, " is a negated view (is_neg), must hold its own numbers: resolve_neg() copies it");
  const bool on_gpu = t.device.type == kDlCuda || t.device.type == kDlCudaManaged;
  TAMIS_CHECK(on_gpu || t.device.type == kDlCpu || t.device.type == kDlCudaHost, Status::kUnsupported, op_, ": ", name,
              " is on a device of DLPack type ", static_cast<int>(t.device.type), ", must be on the CPU or CUDA");
  const Device device{on_gpu ? Device::Kind::kCuda : Device::Kind::kCpu, on_gpu ? t.device.index : 0};
  if (num_extents_ == 0) device_ = device;

  std::array<std::int64_t, kMaxRank> dense{};
  const std::int64_t* strides = t.strides;
  if (strides == nullptr) {
    std::int64_t step = 1;
    for (int d = t.ndim - 1; d >= 0; --d) {
      dense[static_cast<std::size_t>(d)] = step;
      step *= t.shape[d];
    }
    strides = dense.data();
  }
  const bool empty = std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim;
  if (t.data == nullptr && !empty) {
    fail_type(op_, ": ", name, " is a ", name_of_type(array),
              " without memory, must be a dense array on the CPU or CUDA");
  }
  void* data = t.data == nullptr ? nullptr : static_cast<char*>(t.data) + t.byte_offset;
  DlTensor with_strides = t;
  with_strides.strides = const_cast<std::int64_t*>(strides);
  note(name, data, with_strides, dtype_bytes(row->dtype), written);
  if (written && imported.torch) {
    TAMIS_CHECK(
        !wants_gradient(array), Status::kInvalidArgument, op_, ": ", name,
        " requires grad, must not: no gradient is known of what is written (detach() it, or use torch.no_grad())");
    torch_outputs_[num_torch_outputs_++] = array;
  }
  return make_view<Pointer>(data, row->dtype, t.ndim, t.shape, strides, device);
}

void Call::note(const char* name, const void* data, const DlTensor& t, std::int64_t element_bytes, bool written) {
  TAMIS_CHECK(num_extents_ < kMostArrays, Status::kInternal, op_, ": more than ", kMostArrays, " arrays");
  Extent extent{name, reinterpret_cast<std::uintptr_t>(data), 1, 0, element_bytes, written};
  // Dimensions by growing step, steps counted upwards from the lowest byte.
  std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> dims{};  // bytes, size
  std::size_t num_dims = 0;
  for (int d = t.ndim - 1; d >= 0; --d) {
    const std::int64_t size = t.shape[d], step = t.strides[d] * element_bytes;
    if (size == 0) extent.count = 0;
    if (size <= 1 || step == 0) continue;
    if (step < 0) extent.begin -= static_cast<std::uintptr_t>(-step * (size - 1));
    std::size_t at = num_dims++;
    for (; at > 0 && dims[at - 1].first > std::abs(step); --at) dims[at] = dims[at - 1];
    dims[at] = {std::abs(step), size};
  }
  // Pieces that lie side by side are one; so are steps that go on where others end. Of what is left the longest steps
  // count, and the pieces are all between the first and the last byte of the others.
  for (std::size_t i = 0; i < num_dims && extent.count != 0; ++i) {
    const auto [step, size] = dims[i];
    if (extent.count > 1 && step == extent.step * extent.count) {
      extent.count *= size;
      continue;
    }
    extent.bytes += std::exchange(extent.step, step) * (extent.count - 1);
    extent.count = size;
    if (extent.step == extent.bytes) extent.bytes *= std::exchange(extent.count, 1);
  }
  extents_[num_extents_++] = extent;
}

void Call::bump_versions() const {
  // What the public function ends in, at a third of its time.
  static PyObject* const increment = [] {
    const nb::object quick = nb::getattr(nb::module_::import_("torch._C"), "_increment_version", nb::none());
    if (!quick.is_none()) return nb::object(quick).release().ptr();
    return nb::getattr(nb::module_::import_("torch.autograd.graph"), "increment_version").release().ptr();
  }();
  const nb::object tensors = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(num_torch_outputs_)));
  if (!tensors.is_valid()) nb::raise_python_error();
  for (std::size_t i = 0; i < num_torch_outputs_; ++i) {
    PyTuple_SetItem(tensors.ptr(), static_cast<Py_ssize_t>(i), nb::borrow(torch_outputs_[i]).release().ptr());
  }
  const nb::object done = nb::steal(PyObject_CallFunctionObjArgs(increment, tensors.ptr(), nullptr));
  if (!done.is_valid()) PyErr_Clear();  // tensors of inference mode have no version
}

void Call::check_overlaps() const {
  for (std::size_t i = 0; i < num_extents_; ++i) {
    if (!extents_[i].written) continue;
    for (std::size_t j = 0; j < num_extents_; ++j) {
      if (i == j || (extents_[j].written && j < i)) continue;
      TAMIS_CHECK(!overlap(extents_[i], extents_[j]), Status::kInvalidArgument, op_, ": ", extents_[i].name,
                  " shares memory with ", extents_[j].name, ", must not overlap any other array of the call");
    }
  }
}

ConstTensorView Call::input(nb::handle array, const char* name, std::initializer_list<DType> dtypes) {
  return view<const void*>(array, name, std::span(dtypes.begin(), dtypes.size()), false);
}

ConstTensorView Call::optional_input(nb::handle array, const char* name, std::initializer_list<DType> dtypes) {
  if (array.is_none()) return {};
  return input(array, name, dtypes);
}

TensorView Call::output(nb::handle array, const char* name, std::initializer_list<DType> dtypes) {
  return view<void*>(array, name, std::span(dtypes.begin(), dtypes.size()), true);
}

Output Call::output_or_new(nb::handle array, const char* name, DType dtype, std::initializer_list<std::int64_t> shape,
                           std::initializer_list<DType> or_dtypes) {
  if (array.is_none()) return make(name, dtype, shape);
  std::array<DType, std::size(kDTypes)> dtypes{dtype};
  std::size_t num_dtypes = 1;
  for (DType other : or_dtypes) {
    if (other != dtype) dtypes[num_dtypes++] = other;
  }
  const auto given = view<void*>(array, name, std::span(dtypes.data(), num_dtypes), true);
  TAMIS_CHECK(given.device() == device_, Status::kInvalidArgument, op_, ": ", name, " is on ",
              core::describe(given.device()), ", must be on ", core::describe(device_), " like ", like_name_);
  core::check_view(given, {op_, name, {given.dtype()}, shape}, device_);
  core::check_row_stride(given, op_, name);
  return {nb::borrow(array), given};
}

Output Call::optional_output(nb::handle array, const char* name, DType dtype,
                             std::initializer_list<std::int64_t> shape) {
  if (array.is_none() || array.ptr() == Py_False) return {nb::none(), {}};
  return output_or_new(array.ptr() == Py_True ? nb::none() : nb::borrow(array), name, dtype, shape);
}

Output Call::make(const char* name, DType dtype, std::initializer_list<std::int64_t> shape) {
  std::int64_t room = (std::int64_t{1} << 48) / dtype_bytes(dtype);
  for (std::int64_t extent : shape) {
    TAMIS_CHECK(extent >= 0, Status::kInvalidArgument, op_, ": ", name, " would have an extent of ", extent,
                ", must be at least 0");
    TAMIS_CHECK(extent <= room, Status::kInvalidArgument, op_, ": ", name, " would have shape ", shape_text(shape),
                ", must have at most 2^48 bytes");
    if (extent > 0) room /= extent;
  }
  if (api_ == nullptr) {
    nb::list extents;
    for (std::int64_t extent : shape) extents.append(extent);
    const nb::object array = arrays_helper("empty")(op_, like_, nb::tuple(extents), row_of(dtype).numpy_name);
    const bool outer_numpy = numpy_;
    Output made{array, output(array, name, {dtype}), true};
    numpy_ = outer_numpy;
    return made;
  }
  DlManagedTensorVersioned* managed = allocate(dtype, shape.begin(), shape.size());
  const DlTensor t = managed->tensor;
  std::array<std::int64_t, kMaxRank> strides{};
  std::copy_n(t.strides, shape.size(), strides.begin());
  void* object = nullptr;
  if (api_->to_object(managed, &object) != 0) nb::raise_python_error();
  char* data = static_cast<char*>(t.data) + (t.data == nullptr ? 0 : t.byte_offset);
  return {nb::steal(static_cast<PyObject*>(object)),
          make_view<void*>(data, dtype, static_cast<int>(shape.size()), shape.begin(), strides.data(), device_), true};
}

DlManagedTensorVersioned* Call::allocate(DType dtype, const std::int64_t* shape, std::size_t rank) const {
  std::array<std::int64_t, kMaxRank> extents{};
  std::copy_n(shape, rank, extents.begin());
  const bool gpu = device_.kind == Device::Kind::kCuda;
  DlTensor prototype{nullptr,
                     {gpu ? kDlCuda : kDlCpu, device_.index},
                     static_cast<std::int32_t>(rank),
                     row_of(dtype).dl,
                     extents.data(),
                     nullptr,
                     0};
  DlManagedTensorVersioned* managed = nullptr;
  const auto set_error = [](void*, const char* kind, const char* message) {
    const std::string first_line(message, std::strcspn(message, "\n"));  // PyTorch's stack trace follows
    PyErr_SetString(std::strcmp(kind, "MemoryError") == 0 ? PyExc_MemoryError : PyExc_RuntimeError, first_line.c_str());
  };
  if (api_->allocate(&prototype, &managed, nullptr, set_error) != 0) nb::raise_python_error();
  return managed;
}

nb::object Call::result(const Output& output) const {
  if (!output.is_new || api_ != nullptr || numpy_) return output.array;
  return arrays_helper("finish")(like_, output.array);
}

template <typename Pointer>
BasicPagedCache<Pointer> Call::cache(nb::handle cache, const char* name, bool written) {
  if (PyTuple_Check(cache.ptr()) == 0 || PyTuple_Size(cache.ptr()) != 5) {
    fail_type(op_, ": ", name, " is ", name_of_type(cache), ", must be a tamis.PagedCache");
  }
  BasicPagedCache<Pointer> paged;
  paged.layout = choice(cache[1], "layout", kCacheLayouts);
  // Bytes, for any layout; or elements, where the layout is nothing else.
  static constexpr DType kFloat32[] = {DType::kUInt8, DType::kFloat32};
  static constexpr DType kBFloat16[] = {DType::kUInt8, DType::kBFloat16};
  static constexpr DType kFp8[] = {DType::kUInt8, DType::kFloat8E4M3};
  std::span<const DType> stored = std::span(kFp8).first(1);
  if (paged.layout == CacheLayout::kFloat32) stored = kFloat32;
  if (paged.layout == CacheLayout::kBFloat16) stored = kBFloat16;
  if (paged.layout == CacheLayout::kFp8PerTensor) stored = kFp8;
  const auto data = view<Pointer>(cache[0], name, stored, written);
  paged.head_dim = integer(cache[2], "head_dim");
  paged.page_size = integer(cache[3], "page_size");
  paged.scale = static_cast<float>(number(cache[4], "scale"));
  paged.data = data.data();
  paged.num_pages = data.size(0);
  paged.device = data.device();
  // Bytes of a page, which must be in one piece.
  std::int64_t bytes = dtype_bytes(data.dtype());
  for (int d = data.rank() - 1; d >= 1; --d) {
    TAMIS_CHECK(data.size(d) <= 1 || data.stride(d) * dtype_bytes(data.dtype()) == bytes, Status::kInvalidArgument, op_,
                ": ", name, " has stride ", data.stride(d), " in dimension ", d, ", must be contiguous within a page");
    bytes *= data.size(d);
  }
  paged.page_stride_bytes = paged.num_pages <= 1 ? bytes : data.stride(0) * dtype_bytes(data.dtype());
  const std::int64_t needed = paged.page_size * cache_entry_bytes(paged.layout, paged.head_dim);
  TAMIS_CHECK(paged.page_size >= 1, Status::kInvalidArgument, op_, ": ", name, " has a page_size of ", paged.page_size,
              ", must be at least 1");
  TAMIS_CHECK(paged.num_pages == 0 || bytes >= needed, Status::kInvalidArgument, op_, ": ", name, " has pages of ",
              bytes, " bytes, must have at least ", needed, " for ", paged.page_size, " entries of ",
              cache_layout_name(paged.layout));
  return paged;
}

ConstPagedCache Call::input_cache(nb::handle handle, const char* name) {
  return cache<const void*>(handle, name, false);
}

PagedCache Call::output_cache(nb::handle handle, const char* name) { return cache<void*>(handle, name, true); }

void* Call::workspace(nb::handle array, std::size_t bytes, std::size_t* available) {
  if (!array.is_none()) {
    const TensorView given = output(array, "workspace", {DType::kUInt8});
    TAMIS_CHECK(given.rank() == 1 && (given.size(0) <= 1 || given.stride(0) == 1), Status::kInvalidArgument, op_,
                ": workspace must be contiguous uint8 of one dimension");
    *available = static_cast<std::size_t>(given.size(0));
    return given.data();
  }
  *available = bytes;
  if (bytes == 0) return nullptr;
  constexpr std::size_t kAlignment = 64;
  if (device_.kind == Device::Kind::kCpu) {
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    host_scratch_ = {std::aligned_alloc(kAlignment, rounded), std::free};
    if (host_scratch_ == nullptr) throw std::bad_alloc();
    return host_scratch_.get();
  }
  // Freed when the call returns: allocators of GPU memory hand it out again in the order of the stream.
  const auto wanted = static_cast<std::int64_t>(bytes + kAlignment - 1);
  std::uintptr_t data = 0;
  if (api_ != nullptr) {
    device_scratch_ = allocate(DType::kUInt8, &wanted, 1);
    data = reinterpret_cast<std::uintptr_t>(device_scratch_->tensor.data) + device_scratch_->tensor.byte_offset;
  } else {
    const Output made = make("workspace", DType::kUInt8, {wanted});
    kept_.push_back(made.array);
    data = reinterpret_cast<std::uintptr_t>(made.view.data());
  }
  return reinterpret_cast<void*>((data + kAlignment - 1) / kAlignment * kAlignment);
}

Stream Call::stream() {
  if (device_.kind == Device::Kind::kCpu) return {};
  if (api_ != nullptr) {
    void* handle = nullptr;
    if (api_->current_stream(kDlCuda, device_.index, &handle) != 0) nb::raise_python_error();
    return {handle};
  }
  return {reinterpret_cast<void*>(nb::cast<std::uintptr_t>(arrays_helper("stream")(op_, like_, device_.index)))};
}

nb::object Call::index_of(nb::handle value, const char* name) const {
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    fail_type(op_, ": ", name, " is ", name_of_type(value), ", must be an integer");
  }
  return index;
}

std::int64_t Call::integer(nb::handle value, const char* name) const {
  const nb::object index = index_of(value, name);
  const long long number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    core::fail(Status::kInvalidArgument, op_, ": ", name, " is ", nb::cast<std::string>(nb::str(index)),
               ", must fit 64 bits");
  }
  return number;
}

std::int64_t Call::integer(nb::handle value, const char* name, std::int64_t least, std::int64_t most) const {
  const std::int64_t number = integer(value, name);
  TAMIS_CHECK(number >= least, Status::kInvalidArgument, op_, ": ", name, " is ", number, ", must be at least ", least);
  TAMIS_CHECK(number <= most, Status::kInvalidArgument, op_, ": ", name, " is ", number, ", must be at most ", most);
  return number;
}

std::uint64_t Call::unsigned_integer(nb::handle value, const char* name) const {
  const nb::object index = index_of(value, name);
  const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    core::fail(Status::kInvalidArgument, op_, ": ", name, " is ", nb::cast<std::string>(nb::str(index)),
               ", must be at least 0 and fit 64 bits");
  }
  return number;
}

int Call::threads(nb::handle value) const {
  return static_cast<int>(integer(value, "num_threads", 0, std::numeric_limits<int>::max()));
}

bool Call::boolean(nb::handle value, const char* name) const {
  if (PyBool_Check(value.ptr()) == 0 && !name_of_type(value).starts_with("numpy.bool")) {
    fail_type(op_, ": ", name, " is ", name_of_type(value), ", must be a bool");
  }
  return PyObject_IsTrue(value.ptr()) == 1;
}

double Call::number(nb::handle value, const char* name) const {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail_type(op_, ": ", name, " is ", name_of_type(value), ", must be a number");
  }
  return number;
}

void Call::absent(nb::handle value, const char* name, const char* partner) const {
  TAMIS_CHECK(value.is_none(), Status::kInvalidArgument, op_, ": ", name, " is given without ", partner,
              ", must be None");
}

template <std::signed_integral Integer>
std::vector<Integer> Call::integers(nb::handle value, const char* name) const {
  const bool text = PyUnicode_Check(value.ptr()) != 0 || PyBytes_Check(value.ptr()) != 0;
  const nb::object whole = !text && nb::hasattr(value, "tolist") ? value.attr("tolist")() : nb::borrow(value);
  const nb::object list = nb::steal(text ? nullptr : PySequence_List(whole.ptr()));
  if (!list.is_valid()) {
    PyErr_Clear();
    fail_type(op_, ": ", name, " is ", name_of_type(value), ", must be a sequence of integers");
  }
  std::vector<Integer> numbers;
  for (const nb::handle item : nb::borrow<nb::list>(list)) {
    const std::string place = core::concat(name, "[", numbers.size(), "]");
    numbers.push_back(static_cast<Integer>(
        integer(item, place.c_str(), std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max())));
  }
  return numbers;
}
template std::vector<std::int32_t> Call::integers(nb::handle, const char*) const;
template std::vector<std::int64_t> Call::integers(nb::handle, const char*) const;

std::string_view Call::string(nb::handle value, const char* name) const {
  if (PyUnicode_Check(value.ptr()) == 0) fail_type(op_, ": ", name, " is ", name_of_type(value), ", must be a str");
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    core::fail(Status::kInvalidArgument, op_, ": ", name, " has a lone surrogate, must be text that UTF-8 can write");
  }
  return {text, static_cast<std::size_t>(size)};
}

Device Call::parse_device(nb::handle value, const char* name) const {
  const bool of_torch = name_of_type(value) == "torch.device";
  const nb::object named = of_torch ? nb::object(nb::str(value)) : nb::borrow(value);
  const std::string_view text = string(named, name);
  if (text == "cpu") return {};
  if (text == "cuda") return {Device::Kind::kCuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  Device device{Device::Kind::kCuda, -1};
  if (text.starts_with(kPrefix)) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, device.index);
    if (error != std::errc() || stop != end) device.index = -1;
  }
  TAMIS_CHECK(device.index >= 0, Status::kInvalidArgument, op_, ": ", name, " is '", text,
              "', must be 'cpu', 'cuda' or 'cuda:N'");
  return device;
}

}  // namespace tamis::python
