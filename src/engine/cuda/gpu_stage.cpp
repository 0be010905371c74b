#include "engine/cuda/gpu_stage.hpp"

#include "core/cuda/gpu.hpp"

namespace tamis::engine {

GpuStage::GpuStage(int device) : device_(device) {
  static_cast<void>(core::gpu(device));  // says what is wrong with the number
  const core::DeviceGuard guard(device_);
  TAMIS_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

// Errors here have nowhere to go; a device that failed has said so before.
GpuStage::~GpuStage() {
  int before = 0;
  const bool known = cudaGetDevice(&before) == cudaSuccess;
  static_cast<void>(cudaSetDevice(device_));
  static_cast<void>(cudaStreamSynchronize(stream_));
  static_cast<void>(cudaFreeHost(pinned_));
  static_cast<void>(cudaFree(memory_));
  static_cast<void>(cudaStreamDestroy(stream_));
  if (known) static_cast<void>(cudaSetDevice(before));
}

std::string GpuStage::where() const { return core::concat("cuda:", device_, " (", core::gpu(device_).name, ")"); }

std::byte* GpuStage::new_host_block(std::size_t bytes) {
  const core::DeviceGuard guard(device_);
  TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream_));
  TAMIS_CUDA_CHECK(cudaFreeHost(pinned_));  // before the new block, so that the peak is one block
  pinned_ = nullptr;
  void* block = nullptr;
  TAMIS_CUDA_CHECK(cudaHostAlloc(&block, bytes, cudaHostAllocDefault));
  return pinned_ = static_cast<std::byte*>(block);
}

std::byte* GpuStage::new_device_block(std::size_t bytes) {
  const core::DeviceGuard guard(device_);
  TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream_));
  TAMIS_CUDA_CHECK(cudaFree(memory_));
  memory_ = nullptr;
  void* block = nullptr;
  TAMIS_CUDA_CHECK(cudaMalloc(&block, bytes));
  return memory_ = static_cast<std::byte*>(block);
}

void GpuStage::upload(std::size_t bytes) {
  const core::DeviceGuard guard(device_);
  TAMIS_CUDA_CHECK(cudaMemcpyAsync(memory_, pinned_, bytes, cudaMemcpyHostToDevice, stream_));
}

void GpuStage::download(std::size_t offset, std::size_t bytes) {
  const core::DeviceGuard guard(device_);
  TAMIS_CUDA_CHECK(cudaMemcpyAsync(pinned_ + offset, memory_ + offset, bytes, cudaMemcpyDeviceToHost, stream_));
  TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

}  // namespace tamis::engine
