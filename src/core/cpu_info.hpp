#pragma once

#include <string>

namespace tamis::core {

/// The instruction set that run-time dispatch takes on this machine, as Highway names it: SSE4, AVX2, AVX3, NEON.
std::string simd_target();

/// The processor's name as the system gives it, or "unknown".
std::string cpu_name();

}  // namespace tamis::core
