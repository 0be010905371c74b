#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace tamis::engine {

/// Memory through which the engine's staged operations reach a GPU: a pinned block of the host, a block of the device,
/// and a stream of their own.
class GpuStage {
 public:
  /// @throws Error kDeviceError if there is no such device.
  explicit GpuStage(int device);
  ~GpuStage();
  GpuStage(const GpuStage&) = delete;
  GpuStage& operator=(const GpuStage&) = delete;

  /// Blocks of so many bytes; the ones before are given up.
  std::byte* new_host_block(std::size_t bytes);
  std::byte* new_device_block(std::size_t bytes);
  /// Copies the first bytes of the host's block to those of the device's.
  void upload(std::size_t bytes);
  /// Copies bytes of the device's block back to the same place of the host's, and waits.
  void download(std::size_t offset, std::size_t bytes);

  cudaStream_t stream() const { return stream_; }
  /// E.g. "cuda:0 (NVIDIA H200)".
  std::string where() const;

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
  std::byte *pinned_ = nullptr, *memory_ = nullptr;
};

}  // namespace tamis::engine
