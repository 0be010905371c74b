#pragma once

// GPUs as a reader of this machine sees them. Compiles with and without CUDA; without, there are none.

#include <string>
#include <string_view>
#include <vector>

namespace tamis::core {

struct GpuFacts {
  int index = 0;
  std::string name;
  int compute_capability = 0;  // 90 for 9.0
  int num_sms = 0;
};

struct GpuList {
  std::vector<GpuFacts> gpus;
  std::string why_none;  // where there is none
};

/// Never throws for want of a GPU or driver.
GpuList list_gpus();

/// Architectures that kernels were built for, e.g. "80 90a 100f 120f"; empty in a build without CUDA.
std::string_view cuda_archs() noexcept;

/// Why a build without CUDA has no GPU.
inline constexpr const char* kNoCudaInBuild = "this build has no CUDA kernels";

}  // namespace tamis::core
