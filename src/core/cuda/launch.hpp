#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/check.hpp"

namespace tamis::core {

/// How a kernel is launched.
struct Launch {
  const char* kernel;  // named when the launch fails
  std::int64_t blocks;
  int threads;  // a block
  std::size_t shared_bytes;
  cudaStream_t stream;
  // Set by name, so that none is taken for the other.
  int cluster = 1;         // blocks; more than one from sm_90 on
  bool dependent = false;  // a programmatic dependent launch: may start early, and waits itself for what came before
};

/// Enqueues a kernel and returns. The error is the launch's own: one that the caller left behind is neither reported
/// nor taken away, as cudaGetLastError() after <<<>>> would.
template <typename... Params, typename... Args>
void launch(const Launch& how, void (*kernel)(Params...), const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (how.dependent) {
    cudaLaunchAttribute& early = attributes[num_attributes++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(how.cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(how.blocks));  // x, because y and z end at 65,535
  config.blockDim = dim3(static_cast<unsigned>(how.threads));
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = how.stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
  TAMIS_CHECK(error == cudaSuccess, Status::kDeviceError, "launching ", how.kernel,
              " failed: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error), " (", how.blocks, " blocks of ",
              how.threads, " threads, ", how.shared_bytes, " bytes of shared memory)");
}

}  // namespace tamis::core
