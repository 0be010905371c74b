#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "core/cuda/cuda_check.hpp"

namespace tamis::test {

/// An array on the GPU.
template <typename T>
class GpuBuffer {
 public:
  explicit GpuBuffer(std::size_t count, int fill = 0) : count_(count) {
    void* memory = nullptr;
    TAMIS_CUDA_CHECK(cudaMalloc(&memory, count * sizeof(T) + 1));
    data_ = static_cast<T*>(memory);
    TAMIS_CUDA_CHECK(cudaMemset(memory, fill, count * sizeof(T)));
  }
  explicit GpuBuffer(const std::vector<T>& from) : GpuBuffer(from.size()) { put(from); }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;
  ~GpuBuffer() { static_cast<void>(cudaFree(data_)); }

  T* data() const { return data_; }
  void put(const std::vector<T>& from) const {
    if (!from.empty())
      TAMIS_CUDA_CHECK(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> fetch() const {
    std::vector<T> out(count_);
    if (count_ > 0) TAMIS_CUDA_CHECK(cudaMemcpy(out.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  std::size_t count_;
  T* data_;
};

}  // namespace tamis::test
