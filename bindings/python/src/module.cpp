// The extension module tamis._core: arrays in, the public C++ API out. No arithmetic here, and no defaults: both sides
// of the contract are elsewhere, in include/tamis/*.hpp and in tamis/*.py.

#include <nanobind/nanobind.h>

#include "operations.hpp"
#include "tamis/status.hpp"
#include "tamis/tamis.h"

namespace nb = nanobind;

namespace {

PyObject* exception_of(tamis::Status status) {
  switch (status) {
    case tamis::Status::kInvalidArgument:
    case tamis::Status::kDataError: return PyExc_ValueError;
    case tamis::Status::kUnsupported: return PyExc_NotImplementedError;
    case tamis::Status::kResourceExhausted: return PyExc_MemoryError;
    default: return PyExc_RuntimeError;
  }
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The C++ side of tamis. Use the functions of the package, which document these.";
  // An engine that lives until the interpreter's end, say in a callback of its own, is no news for stderr.
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const tamis::Error& error) {
      PyErr_SetString(exception_of(error.status()), error.what());
    }
  });
  m.attr("__version__") = tamis_version();
  tamis::python::bind_topk(m);
  tamis::python::bind_compressor(m);
  tamis::python::bind_cache(m);
  tamis::python::bind_indexer(m);
  tamis::python::bind_sparse_mla(m);
  tamis::python::bind_engine(m);
}
