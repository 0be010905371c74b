#include "engine/cuda/gpu_compressor.hpp"

#include "core/cuda/gpu.hpp"

namespace tamis::engine {

// Errors here have nowhere to go; a device that failed has said so before.
GpuCompressor::~GpuCompressor() {
  static_cast<void>(cudaStreamSynchronize(stage_.stream()));
  for (const auto& [host, device] : kept_) static_cast<void>(cudaFree(device));
}

const void* GpuCompressor::keep(const void* data, std::size_t bytes) {
  if (const auto known = kept_.find({data, bytes}); known != kept_.end()) return known->second;
  const core::DeviceGuard guard(device_);
  void* copy = nullptr;
  TAMIS_CUDA_CHECK(cudaMalloc(&copy, bytes));
  const cudaError_t error = cudaMemcpy(copy, data, bytes, cudaMemcpyHostToDevice);
  if (error != cudaSuccess) static_cast<void>(cudaFree(copy));
  TAMIS_CUDA_CHECK(error);
  kept_.emplace(std::pair{data, bytes}, copy);
  return copy;
}

}  // namespace tamis::engine
