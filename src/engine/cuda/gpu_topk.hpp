#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "engine/staged_topk.hpp"

namespace tamis::engine {

/// Selections on a GPU: pinned memory on the host, a stream of its own, one wait a chunk.
class GpuTopk final : public StagedTopk {
 public:
  /// @throws Error kDeviceError if there is no such device.
  explicit GpuTopk(int device);
  ~GpuTopk() override;

  std::string where() const override;

 private:
  std::byte* new_host_block(std::size_t bytes) override;
  std::byte* new_device_block(std::size_t bytes) override;
  void upload(std::size_t bytes) override;
  void download(std::size_t offset, std::size_t bytes) override;
  Stream stream() const override { return {stream_}; }

  int device_;
  cudaStream_t stream_ = nullptr;
  std::byte *pinned_ = nullptr, *memory_ = nullptr;
};

}  // namespace tamis::engine
