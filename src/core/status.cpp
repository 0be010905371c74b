#include "tamis/status.hpp"

namespace tamis {

const char* status_name(Status status) noexcept {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kInvalidArgument: return "invalid argument";
    case Status::kUnsupported: return "unsupported";
    case Status::kResourceExhausted: return "resource exhausted";
    case Status::kDeviceError: return "device error";
    case Status::kDataError: return "data error";
    case Status::kInternal: return "internal error";
  }
  return "unknown status";
}

}  // namespace tamis
