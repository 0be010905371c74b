#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace tamis::test {

/// A huge zeroed address range of which only the touched pages take memory: for offsets beyond 2^31.
/// Check valid() and GTEST_SKIP() where the system refuses.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (valid()) munmap(memory_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool valid() const { return memory_ != MAP_FAILED; }
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(memory_); }
  std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* memory_;
};

}  // namespace tamis::test
