#pragma once

// The border between C++ and C: nothing is thrown across it.

#include "tamis/tamis.h"

namespace tamis::c_api {

/// Turns the exception in flight into a status and keeps its text for tamis_last_error(). Call inside a catch block.
tamis_status record_exception() noexcept;

/// Runs the body of a C entry point: `return guarded([&] { tamis::topk(...); });`.
template <typename Body>
tamis_status guarded(const Body& body) noexcept {
  try {
    body();
    return TAMIS_OK;
  } catch (...) {
    return record_exception();
  }
}

}  // namespace tamis::c_api
