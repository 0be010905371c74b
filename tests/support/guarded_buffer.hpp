#pragma once

// Memory for the outputs of a test: poisoned before the call, fenced by guard bytes on both sides, and at a chosen
// misalignment. A write outside [0, size) or a missing write inside shows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tamis::test {

template <typename T>
class GuardedBuffer {
 public:
  static constexpr std::size_t kGuardBytes = 256;
  static constexpr std::uint8_t kGuard = 0xA5;

  /// @param count       Elements.
  /// @param poison      Byte that fills the payload: 0xFF makes NaN of floats and -1 of integers.
  /// @param misaligned  Bytes past a 64-byte boundary at which the payload begins; a multiple of alignof(T) unless the
  ///                    test is about that.
  explicit GuardedBuffer(std::size_t count, std::uint8_t poison = 0xFF, std::size_t misaligned = 0)
      : count_(count), memory_(2 * kGuardBytes + count * sizeof(T) + 64 + misaligned, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuardBytes;
    offset_ = kGuardBytes + (64 - address % 64) % 64 + misaligned;
    fill(poison);
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  GuardedBuffer(GuardedBuffer&&) noexcept = default;
  GuardedBuffer& operator=(GuardedBuffer&&) noexcept = default;

  T* data() { return reinterpret_cast<T*>(memory_.data() + offset_); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data() + offset_); }
  std::size_t size() const { return count_; }
  std::size_t size_bytes() const { return count_ * sizeof(T); }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + count_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + count_; }
  std::vector<T> copy() const { return std::vector<T>(begin(), end()); }

  void fill(std::uint8_t byte) {
    std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(offset_), static_cast<std::ptrdiff_t>(size_bytes()),
                byte);
  }

  /// Use as EXPECT_TRUE(buffer.guards_intact()).
  ::testing::AssertionResult guards_intact() const {
    const auto first = static_cast<std::ptrdiff_t>(offset_);
    const auto last = first + static_cast<std::ptrdiff_t>(size_bytes());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      if ((at < first || at >= last) && memory_[i] != kGuard) {
        return ::testing::AssertionFailure() << "guard byte at " << (at < first ? at - first : at - last)
                                             << (at < first ? " before the start" : " past the end") << " was changed";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  std::size_t count_;
  std::size_t offset_ = 0;
  std::vector<std::uint8_t> memory_;
};

}  // namespace tamis::test
