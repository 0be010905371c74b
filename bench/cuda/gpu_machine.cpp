#include "bench/cuda/gpu_machine.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <cctype>
#include <fstream>
#include <string>

#include "core/cuda/gpu.hpp"

namespace tamis::bench {
namespace {

// From NVML, which comes with the driver and not with the toolkit, so it is looked for when the program runs. Empty
// where it is missing.
std::string driver_of_nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto version = reinterpret_cast<int (*)(char*, unsigned)>(dlsym(library, "nvmlSystemGetDriverVersion"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  std::array<char, 96> text{};  // NVML asks for 80 at least
  if (init != nullptr && version != nullptr && shutdown != nullptr && init() == 0) {
    if (version(text.data(), static_cast<unsigned>(text.size())) != 0) text.fill(0);
    shutdown();
  }
  dlclose(library);
  return text.data();
}

// From the kernel module: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...": its first number with a
// dot.
std::string driver_of_module() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0 && word.find('.') != std::string::npos) return word;
  }
  return {};
}

}  // namespace

GpuMachine gpu_machine(int index) {
  std::string driver = driver_of_nvml();
  if (driver.empty()) driver = driver_of_module();
  if (driver.empty()) driver = "unknown";
  constexpr int kMajor = CUDART_VERSION / 1000, kMinor = CUDART_VERSION % 1000 / 10;
  return {core::gpu(index).name, driver, fmt::format("{}.{}", kMajor, kMinor)};
}

}  // namespace tamis::bench
