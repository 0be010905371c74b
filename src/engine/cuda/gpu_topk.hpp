#pragma once

#include <string>

#include "engine/cuda/gpu_stage.hpp"
#include "engine/staged_topk.hpp"

namespace tamis::engine {

/// Selections on a GPU: one wait a chunk.
class GpuTopk final : public StagedTopk {
 public:
  /// @throws Error kDeviceError if there is no such device.
  explicit GpuTopk(int device) : StagedTopk(Device{Device::Kind::kCuda, device}), stage_(device) {}

  std::string where() const override { return stage_.where(); }

 private:
  std::byte* new_host_block(std::size_t bytes) override { return stage_.new_host_block(bytes); }
  std::byte* new_device_block(std::size_t bytes) override { return stage_.new_device_block(bytes); }
  void upload(std::size_t bytes) override { stage_.upload(bytes); }
  void download(std::size_t offset, std::size_t bytes) override { stage_.download(offset, bytes); }
  Stream stream() const override { return {stage_.stream()}; }

  GpuStage stage_;
};

}  // namespace tamis::engine
