#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <utility>

namespace tamis::python {

/// Adds a function of positional arguments, each of which may be None.
template <typename Return, typename... Args>
void define(nanobind::module_& m, const char* name, Return (*function)(Args...)) {
  const auto add = [&]<std::size_t... i>(std::index_sequence<i...>) {
    m.def(name, function, (static_cast<void>(i), nanobind::arg().none())...);
  };
  add(std::index_sequence_for<Args...>());
}

// What module.cpp puts together: each adds the functions of one header to the module. The Python functions around them
// (tamis/_topk.py and the like) hold the defaults and the documentation.
void bind_topk(nanobind::module_& m);
void bind_compressor(nanobind::module_& m);
void bind_cache(nanobind::module_& m);
void bind_indexer(nanobind::module_& m);
void bind_sparse_mla(nanobind::module_& m);
void bind_engine(nanobind::module_& m);

}  // namespace tamis::python
