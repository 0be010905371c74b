#pragma once

// CUDA devices as host code sees them. Needs the runtime's headers, not its compiler.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "core/cuda/cuda_check.hpp"
#include "tamis/tensor.hpp"

namespace tamis::core {

inline constexpr int kMaxGpus = 64;

/// Facts of a device that choices depend on, read once.
struct Gpu {
  std::string name;
  int compute_capability = 0;  // 90 for 9.0
  int num_sms = 0;
  std::int64_t max_shared_bytes = 0;  // a block may ask for
};

/// @throws Error kDeviceError if there is no such device.
const Gpu& gpu(int index);

/// Devices that the driver offers; 0 where there is none, whatever the reason. `why` then says it.
int num_gpus(std::string* why = nullptr);

/// Makes a device current while it lives, and the one before afterwards.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index) : wanted_(index) {
    TAMIS_CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != wanted_) TAMIS_CUDA_CHECK(cudaSetDevice(wanted_));
  }
  ~DeviceGuard() {
    if (before_ != wanted_) static_cast<void>(cudaSetDevice(before_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0, wanted_;
};

/// Runs a kernel's one-time preparation once a device; `prepared` belongs to the kernel. Two threads may both run it.
template <typename F>
void once_per_device(std::atomic<std::uint64_t>& prepared, int device, F prepare) {
  const std::uint64_t bit = std::uint64_t{1} << device;
  if ((prepared.load(std::memory_order_acquire) & bit) != 0) return;
  prepare();
  prepared.fetch_or(bit, std::memory_order_release);
}

}  // namespace tamis::core
