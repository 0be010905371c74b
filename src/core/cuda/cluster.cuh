#pragma once

// Blocks of a cluster that send each other numbers (sm_90 on): a number is stored into another block's shared memory
// and counted by a barrier there, so that only the receiver waits, and without a fence over global memory, which
// cooperative_groups' cluster.sync() has. Terms as in the PTX manual: mbarrier, st.async, barrier.cluster.

#include <cstdint>

#include "core/cuda/shared_address.cuh"

namespace tamis::core {

#if __CUDA_ARCH__ >= 900

/// The same place in the shared memory of another block of the cluster.
__device__ inline std::uint32_t address_in_block(const void* in_shared, int rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(in_shared)), "r"(rank));
  return address;
}

/// By one thread; other blocks of the cluster may use the barrier after a barrier of the cluster.
__device__ inline void init_barrier(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// By one thread: the present phase of the barrier ends when so many bytes have been stored.
__device__ inline void expect_bytes(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// Waits for the end of a phase; phases have parities 0, 1, 0, ..
__device__ inline void wait_for_phase(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t ended = 0;
  while (ended == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

/// Stores a number into a block of the cluster and counts its bytes there; both addresses of address_in_block().
__device__ inline void store_and_count(std::uint32_t to, float value, std::uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(value),
               "r"(barrier)
               : "memory");
}

/// The two halves of a barrier of the cluster, by all of its threads. kRelease: what a thread did before is seen by
/// others after they have waited; else it is only known to have come so far.
template <bool kRelease>
__device__ void arrive_in_cluster() {
  if constexpr (kRelease) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  else asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

#endif

}  // namespace tamis::core
