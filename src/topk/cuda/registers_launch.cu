#include <algorithm>
#include <atomic>
#include <bit>

#include "core/cuda/gpu.hpp"
#include "core/cuda/launch.hpp"
#include "topk/cuda/dispatch.cuh"
#include "topk/cuda/identity.cuh"
#include "topk/cuda/launch.hpp"
#include "topk/cuda/registers.cuh"

namespace tamis::topk_cuda {
namespace {

// The smallest instance that holds the row. Few rows: many threads with few scores each, since a row's latency is that
// of one thread's instructions. More rows than multiprocessors: half as many threads, so that two rows share one.
template <typename T, typename F>
void dispatch_width(std::int64_t width, bool many_rows, F f) {
  constexpr int kVectors = 8 / ScoreFormat<T>::kPerVector;  // 8 scores a thread
  if (width > 8192) return f(std::integral_constant<int, 1024>{}, std::integral_constant<int, 2 * kVectors>{});
  if (many_rows) return f(std::integral_constant<int, 512>{}, std::integral_constant<int, 2 * kVectors>{});
  f(std::integral_constant<int, 1024>{}, std::integral_constant<int, kVectors>{});
}

}  // namespace

void launch_identity(const TopkParams& p, cudaStream_t stream) {
  dispatch_dtype(p.dtype, [&](auto score) {
    core::launch({"identity_kernel", p.rows, kIdentityThreads, 0, stream}, identity_kernel<decltype(score)>, p);
  });
}

void launch_registers(const TopkParams& p, bool many_rows, int device, cudaStream_t stream) {
  const bool by_value = p.order == TopkOrder::kByValue;
  const auto winners = static_cast<std::uint32_t>(std::min(p.k, p.width));
  const std::uint32_t room = by_value ? std::bit_ceil(std::max(2U, winners)) : winners;
  const std::size_t shared = room * (by_value ? sizeof(Composite) : sizeof(std::uint16_t));
  dispatch_dtype(p.dtype, [&](auto score) {
    using T = decltype(score);
    dispatch_width<T>(p.width, many_rows, [&](auto threads, auto vectors) {
      // By value 32 KiB may be asked for beside the bins: more than every kernel gets unasked.
      static std::atomic<std::uint64_t> prepared{0};
      core::once_per_device(prepared, device, [&] {
        TAMIS_CUDA_CHECK(cudaFuncSetAttribute(registers_kernel<T, threads.value, vectors.value>,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(kMostSorted * sizeof(Composite))));
      });
      core::launch({"registers_kernel", p.rows, threads.value, shared, stream},
                   registers_kernel<T, threads.value, vectors.value>, p, room);
    });
  });
}

}  // namespace tamis::topk_cuda
