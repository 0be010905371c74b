#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string_view>

namespace tamis::bench {

/// Bytes at a 64-byte boundary, as workspaces and aligned inputs need them. Contents start as 0xFF: NaN in every number
/// format here, -1 as an integer.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t bytes);

  void* data() { return memory_.get(); }
  const void* data() const { return memory_.get(); }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(memory_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(memory_.get());
  }
  std::size_t size() const { return bytes_; }

 private:
  struct Delete {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Delete> memory_;
};

/// Seed from a case's name, so that its inputs are the same everywhere (FNV-1a).
std::uint64_t seed_of(std::string_view name);

/// SplitMix64, for inputs that are the same on every platform.
class RandomBits {
 public:
  explicit RandomBits(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits();
  /// In [0, bound); bound > 0 and far below 2^64, so the remainder's bias does not show.
  std::int64_t below(std::int64_t bound);
  /// In [lo, hi).
  float uniform(float lo, float hi);
  /// Standard normal.
  float normal();

 private:
  std::uint64_t state_;
};

}  // namespace tamis::bench
