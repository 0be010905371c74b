#pragma once

// Device memory for tests: one allocation, pieces handed out one after another, each fenced by guard bytes. With
// TAMIS_TEST_FRESH_MEMORY=1 in the environment every piece is an allocation of its own that nothing has written, so
// that compute-sanitizer's initcheck sees a read of what no kernel wrote.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/cuda/cuda_check.hpp"

namespace tamis::test {

class GpuArena {
 public:
  static constexpr std::size_t kGuardBytes = 256;
  static constexpr int kGuard = 0xA5;

  explicit GpuArena(std::size_t bytes) : bytes_(bytes), fresh_(std::getenv("TAMIS_TEST_FRESH_MEMORY") != nullptr) {
    if (fresh_) return;
    void* memory = nullptr;
    TAMIS_CUDA_CHECK(cudaMalloc(&memory, bytes));
    memory_ = static_cast<std::uint8_t*>(memory);
  }
  GpuArena(const GpuArena&) = delete;
  GpuArena& operator=(const GpuArena&) = delete;
  ~GpuArena() {
    static_cast<void>(cudaFree(memory_));
    free_fresh();
  }

  /// Everything handed out so far is free again.
  void reset() {
    used_ = 0;
    pieces_.clear();
    free_fresh();
  }

  /// A piece at a 256-byte boundary plus `misaligned`, filled with a byte.
  std::uint8_t* take(std::size_t bytes, int fill, std::size_t misaligned = 0) {
    if (fresh_) {
      void* memory = nullptr;
      TAMIS_CUDA_CHECK(cudaMalloc(&memory, bytes + misaligned + 1));
      fresh_pieces_.push_back(memory);
      return static_cast<std::uint8_t*>(memory) + misaligned;
    }
    const std::size_t begin = (used_ + kGuardBytes + 255) / 256 * 256 + misaligned, end = begin + bytes + kGuardBytes;
    TAMIS_CHECK(end <= bytes_, Status::kResourceExhausted, "the test's arena has ", bytes_, " bytes, ", end,
                " are needed");
    TAMIS_CUDA_CHECK(cudaMemset(memory_ + begin - kGuardBytes, kGuard, kGuardBytes));
    if (bytes > 0) TAMIS_CUDA_CHECK(cudaMemset(memory_ + begin, fill, bytes));
    TAMIS_CUDA_CHECK(cudaMemset(memory_ + begin + bytes, kGuard, kGuardBytes));
    pieces_.push_back({begin, bytes});
    used_ = end;
    return memory_ + begin;
  }
  std::uint8_t* take_copy(const void* from, std::size_t bytes, std::size_t misaligned = 0) {
    std::uint8_t* to = take(bytes, 0, misaligned);
    if (bytes > 0) TAMIS_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return to;
  }

  /// Whether all guard bytes are as they were.
  ::testing::AssertionResult guards_intact() const {
    std::vector<std::uint8_t> guard(kGuardBytes);
    for (const Piece& piece : pieces_) {
      for (const std::size_t at : {piece.begin - kGuardBytes, piece.begin + piece.bytes}) {
        TAMIS_CUDA_CHECK(cudaMemcpy(guard.data(), memory_ + at, kGuardBytes, cudaMemcpyDeviceToHost));
        for (const std::uint8_t byte : guard) {
          if (byte != kGuard) {
            return ::testing::AssertionFailure() << "a guard byte " << (at < piece.begin ? "before" : "after")
                                                 << " a piece of " << piece.bytes << " bytes was changed";
          }
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  struct Piece {
    std::size_t begin, bytes;
  };
  std::uint8_t* memory_ = nullptr;
  std::size_t bytes_, used_ = 0;
  std::vector<Piece> pieces_;
  bool fresh_;
  std::vector<void*> fresh_pieces_;

  void free_fresh() {
    for (void* memory : fresh_pieces_) static_cast<void>(cudaFree(memory));
    fresh_pieces_.clear();
  }
};

}  // namespace tamis::test
