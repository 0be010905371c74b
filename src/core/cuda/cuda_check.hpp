#pragma once

#include <cuda_runtime_api.h>

#include "core/check.hpp"

namespace tamis::core {

/// kDeviceError: which call, what CUDA says, where.
[[noreturn]] inline void fail_cuda(cudaError_t error, const char* call, const char* file, int line) {
  fail(Status::kDeviceError, call, " failed: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error), " (", file,
       ":", line, ")");
}

}  // namespace tamis::core

/// TAMIS_CUDA_CHECK(call): throws unless the call returns cudaSuccess.
#define TAMIS_CUDA_CHECK(call)                                                           \
  do {                                                                                   \
    if (const cudaError_t tamis_error = (call); tamis_error != cudaSuccess) [[unlikely]] \
      ::tamis::core::fail_cuda(tamis_error, #call, __FILE__, __LINE__);                  \
  } while (false)
