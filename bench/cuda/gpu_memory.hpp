#pragma once

// Memory and handles of the GPU that free themselves.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/cuda/cuda_check.hpp"

namespace tamis::bench {

// Errors while freeing have no use: whatever failed before has been reported.
struct GpuDelete {
  void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
  void operator()(CUstream_st* stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
  void operator()(CUevent_st* event) const { static_cast<void>(cudaEventDestroy(event)); }
  void operator()(CUgraph_st* graph) const { static_cast<void>(cudaGraphDestroy(graph)); }
  void operator()(CUgraphExec_st* graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
};

using GpuStream = std::unique_ptr<CUstream_st, GpuDelete>;
using GpuEvent = std::unique_ptr<CUevent_st, GpuDelete>;
using GpuGraph = std::unique_ptr<CUgraph_st, GpuDelete>;
using GpuGraphExec = std::unique_ptr<CUgraphExec_st, GpuDelete>;

/// Bytes on the current device, at a 256-byte boundary. Contents are undefined.
class GpuBytes {
 public:
  explicit GpuBytes(std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    if (bytes > 0) TAMIS_CUDA_CHECK(cudaMalloc(&memory, bytes));
    memory_.reset(static_cast<std::byte*>(memory));
  }

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }

  /// Sets every byte, in order with the other work of the stream.
  void set(int value, cudaStream_t stream) {
    if (bytes_ > 0) TAMIS_CUDA_CHECK(cudaMemsetAsync(memory_.get(), value, bytes_, stream));
  }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte, GpuDelete> memory_;
};

/// `count` values from the device, after the work enqueued before.
template <typename T>
std::vector<T> copy_from_gpu(const void* from, std::size_t count, cudaStream_t stream) {
  std::vector<T> values(count);
  TAMIS_CUDA_CHECK(cudaMemcpyAsync(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
  TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream));
  return values;
}

}  // namespace tamis::bench
