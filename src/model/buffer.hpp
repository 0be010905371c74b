#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace tamis::model {

/// Scratch memory that grows and is reused from step to step; contents are lost when it grows.
template <typename T>
class Buffer {
 public:
  T* get(std::int64_t count) {
    const auto needed = static_cast<std::size_t>(count);
    if (needed > capacity_) {
      data_.reset();  // before the new block, so that the peak is one block
      data_ = std::make_unique_for_overwrite<T[]>(needed);
      capacity_ = needed;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<T[]> data_;
  std::size_t capacity_ = 0;
};

}  // namespace tamis::model
