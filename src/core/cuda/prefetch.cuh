#pragma once

namespace tamis::core {

/// Starts to fetch the line at an address of global memory into the caches. Any address will do.
__device__ inline void prefetch(const void* at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }

}  // namespace tamis::core
