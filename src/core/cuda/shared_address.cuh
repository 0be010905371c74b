#pragma once

#include <cstdint>

namespace tamis::core {

/// Address of something in shared memory, as PTX takes it: 32 bits.
__device__ inline std::uint32_t shared_address(const void* in_shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(in_shared));
}

}  // namespace tamis::core
