#pragma once

#include <sstream>
#include <string>

#include "tamis/status.hpp"

namespace tamis::core {

/// Joins its parts as operator<< prints them.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] void fail(Status status, const Parts&... parts) {
  throw Error(status, concat(parts...));
}

}  // namespace tamis::core

/// TAMIS_CHECK(condition, status, parts...): throws tamis::Error whose text is the parts, streamed one after another.
#define TAMIS_CHECK(condition, status, ...)     \
  do {                                          \
    if (!(condition)) [[unlikely]]              \
      ::tamis::core::fail(status, __VA_ARGS__); \
  } while (false)
