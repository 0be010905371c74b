#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace tamis::model {

/// Scratch memory, 64-byte aligned, that grows and is reused from step to step; contents are lost when it grows.
template <typename T>
class Buffer {
 public:
  T* get(std::int64_t count) {
    if (count > capacity_) {
      data_.reset();  // before the new block, so that the peak is one block
      data_.reset(static_cast<T*>(operator new(static_cast<std::size_t>(count) * sizeof(T), kAlignment)));
      capacity_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(T* data) const { operator delete(data, kAlignment); }
  };
  std::unique_ptr<T, Delete> data_;
  std::int64_t capacity_ = 0;
};

}  // namespace tamis::model
