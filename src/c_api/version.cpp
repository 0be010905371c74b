#include "tamis/status.hpp"
#include "tamis/tamis.h"

// A number spelled out by the preprocessor, for the text of the version.
#define TAMIS_TEXT_OF(number) #number
#define TAMIS_TEXT(number) TAMIS_TEXT_OF(number)

namespace {
using tamis::Status;
static_assert(TAMIS_OK == static_cast<int>(Status::kOk) &&
              TAMIS_INVALID_ARGUMENT == static_cast<int>(Status::kInvalidArgument) &&
              TAMIS_UNSUPPORTED == static_cast<int>(Status::kUnsupported) &&
              TAMIS_RESOURCE_EXHAUSTED == static_cast<int>(Status::kResourceExhausted) &&
              TAMIS_DEVICE_ERROR == static_cast<int>(Status::kDeviceError) &&
              TAMIS_DATA_ERROR == static_cast<int>(Status::kDataError) &&
              TAMIS_INTERNAL == static_cast<int>(Status::kInternal));
}  // namespace

extern "C" {

const char* tamis_status_name(tamis_status status) noexcept {
  return tamis::status_name(static_cast<tamis::Status>(status));
}

const char* tamis_version(void) noexcept {
  return TAMIS_TEXT(TAMIS_VERSION_MAJOR) "." TAMIS_TEXT(TAMIS_VERSION_MINOR) "." TAMIS_TEXT(TAMIS_VERSION_PATCH);
}

int32_t tamis_version_number(void) noexcept {
  return 10000 * TAMIS_VERSION_MAJOR + 100 * TAMIS_VERSION_MINOR + TAMIS_VERSION_PATCH;
}

}  // extern "C"
