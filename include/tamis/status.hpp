#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace tamis {

/// What went wrong. The C ABI's tamis_status has the same values.
enum class Status {
  kOk = 0,
  kInvalidArgument = 1,    ///< The caller's mistake: a shape, dtype, device or value outside the contract.
  kUnsupported = 2,        ///< Our gap: a combination this build or machine has no code for.
  kResourceExhausted = 3,  ///< A pool is too small for the request; the text names need and size.
  kDeviceError = 4,        ///< A driver or runtime call failed.
  kDataError = 5,          ///< A file or byte stream is not what its format promises.
  kInternal = 6,           ///< A broken invariant of this library.
};

/// Lower-case name of a status, e.g. "invalid argument".
const char* status_name(Status status) noexcept;

/// Thrown by every C++ entry point; the text names the operation, the argument, what was expected and what came.
class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  Status status() const noexcept { return status_; }

 private:
  Status status_;
};

}  // namespace tamis
