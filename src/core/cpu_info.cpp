#include "core/cpu_info.hpp"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <fstream>

namespace tamis::core {

std::string simd_target() {
  // Better targets have lower bits. Only those this library is built for count.
  const auto targets = static_cast<std::uint64_t>(hwy::SupportedTargets() & HWY_TARGETS);
  return hwy::TargetName(static_cast<std::int64_t>(targets & (~targets + 1)));
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace tamis::core
