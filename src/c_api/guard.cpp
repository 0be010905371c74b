#include "c_api/guard.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "tamis/status.hpp"

namespace tamis::c_api {
namespace {

// A fixed buffer: keeping the text of a failed allocation must not allocate, and nothing is left to free at thread end.
constexpr std::size_t kTextBytes = 1024;
thread_local char last_error_text[kTextBytes] = "";

void keep(std::string_view text) noexcept {
  constexpr std::string_view kCut = "...";
  const std::size_t room = kTextBytes - 1;
  const std::size_t length = std::min(text.size(), room);
  std::memcpy(last_error_text, text.data(), length);
  if (text.size() > room) std::memcpy(last_error_text + room - kCut.size(), kCut.data(), kCut.size());
  last_error_text[length] = '\0';
}

}  // namespace

tamis_status record_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    keep(error.what());
    return static_cast<tamis_status>(error.status());
  } catch (const std::bad_alloc&) {
    keep("out of memory");
    return TAMIS_RESOURCE_EXHAUSTED;
  } catch (const std::exception& error) {
    keep(error.what());
    return TAMIS_INTERNAL;
  } catch (...) {
    keep("an exception of unknown type");
    return TAMIS_INTERNAL;
  }
}

}  // namespace tamis::c_api

extern "C" const char* tamis_last_error(void) noexcept { return tamis::c_api::last_error_text; }
