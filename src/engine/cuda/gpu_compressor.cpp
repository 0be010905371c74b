#include "engine/cuda/gpu_compressor.hpp"

#include "core/cuda/gpu.hpp"

namespace tamis::engine {

// Errors here have nowhere to go; a device that failed has said so before.
GpuCompressor::~GpuCompressor() {
  static_cast<void>(cudaStreamSynchronize(stage_.stream()));
  for (const auto& [host, device] : kept_) static_cast<void>(cudaFree(device));
}

const void* GpuCompressor::keep(const void* data, std::size_t bytes) {
  const auto [known, is_new] = kept_.try_emplace({data, bytes}, nullptr);
  if (!is_new) return known->second;
  const core::DeviceGuard guard(device_);
  TAMIS_CUDA_CHECK(cudaMalloc(&known->second, bytes));
  TAMIS_CUDA_CHECK(cudaMemcpy(known->second, data, bytes, cudaMemcpyHostToDevice));
  return known->second;
}

}  // namespace tamis::engine
