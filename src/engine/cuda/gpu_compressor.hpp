#pragma once

#include <map>
#include <string>
#include <utility>

#include "engine/cuda/gpu_stage.hpp"
#include "engine/staged_compressor.hpp"

namespace tamis::engine {

/// Compressors on a GPU: one wait a step and compressor.
class GpuCompressor final : public StagedCompressor {
 public:
  /// @throws Error kDeviceError if there is no such device.
  explicit GpuCompressor(int device)
      : StagedCompressor(Device{Device::Kind::kCuda, device}), device_(device), stage_(device) {}
  ~GpuCompressor() override;

  std::string where() const override { return stage_.where(); }

 private:
  std::byte* new_host_block(std::size_t bytes) override { return stage_.new_host_block(bytes); }
  std::byte* new_device_block(std::size_t bytes) override { return stage_.new_device_block(bytes); }
  void upload(std::size_t bytes) override { stage_.upload(bytes); }
  void download(std::size_t offset, std::size_t bytes) override { stage_.download(offset, bytes); }
  const void* keep(const void* data, std::size_t bytes) override;
  Stream stream() const override { return {stage_.stream()}; }

  int device_;
  GpuStage stage_;
  std::map<std::pair<const void*, std::size_t>, void*> kept_;  // by where it lies on the host
};

}  // namespace tamis::engine
