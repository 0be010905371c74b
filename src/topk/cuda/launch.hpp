#pragma once

// The launchers, one an algorithm family and a .cu file each. They take checked params, enqueue and return.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "topk/params.hpp"

namespace tamis::topk_cuda {

/// Arrays of a workspace begin at such multiples, like allocations.
constexpr std::size_t round_up_256(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Null, or what the runtime says of running these kernels on the current device.
const char* why_no_image();

void launch_identity(const TopkParams& p, cudaStream_t stream);
/// @param many_rows  More than there are multiprocessors.
void launch_registers(const TopkParams& p, bool many_rows, int device, cudaStream_t stream);
/// @param threads  A block's: 512 or 1024.
void launch_stream(const TopkParams& p, std::uint32_t capacity, int threads, int device, cudaStream_t stream);
std::size_t grid_workspace_bytes(std::int64_t rows, int slices, std::uint32_t capacity);
void launch_grid(const TopkParams& p, std::uint32_t capacity, int slices, int threads, void* workspace, int device,
                 cudaStream_t stream);
std::size_t select_workspace_bytes(std::int64_t rows, std::int64_t k);
std::size_t cub_workspace_bytes(std::int64_t rows, std::int64_t k);
/// `select`, or with by_value `cub`.
void launch_select(const TopkParams& p, bool by_value, void* workspace, cudaStream_t stream);

}  // namespace tamis::topk_cuda
