#pragma once

#include <cstdint>

namespace tamis::core {

/// Begins to copy 16 bytes from global to shared memory, past L1; both aligned to 16.
__device__ inline void copy_async_16(void* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}

/// Makes a group of the copies that this thread has begun since the last one.
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kLeft of this thread's groups are still under way. Others see the copies after a barrier.
template <int kLeft>
__device__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace tamis::core
