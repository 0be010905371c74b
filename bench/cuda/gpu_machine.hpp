#pragma once

#include "bench/session.hpp"

namespace tamis::bench {

/// What measurements on a GPU name: the device, its driver, and the CUDA that this binary was built with.
/// @throws Error kDeviceError if there is no such device.
GpuMachine gpu_machine(int index);

}  // namespace tamis::bench
