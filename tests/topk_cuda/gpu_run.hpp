#pragma once

// A TopkCall's memory on the GPU, and the call with views of it.

#include <string>
#include <vector>

#include "gpu_arena.hpp"
#include "topk/rules.hpp"
#include "topk_run.hpp"

namespace tamis::test {

inline constexpr Device kGpu{Device::Kind::kCuda, 0};

/// Algorithms that can serve a call on this GPU, each once.
std::vector<TopkAlgorithm> gpu_algorithms(const TopkArgs& args);

/// How often run_topk_on_gpu() ran each algorithm, for the count at the end of a test program.
std::string gpu_run_counts();

class GpuTopkCall {
 public:
  GpuTopkCall(GpuArena& arena, const TopkCall& host);

  /// Fills the outputs with a byte; a launch must then write every element.
  void poison(int byte);
  /// A workspace of exactly the size that args ask for, filled with 0xFF.
  void take_workspace(GpuArena& arena);
  /// Copies the outputs into the host call's memory.
  void fetch_into(TopkCall& host) const;
  /// All output bytes, one output after the other.
  std::vector<std::uint8_t> outputs() const;
  bool scores_unchanged(const TopkCall& host) const;

  TopkArgs args;

 private:
  struct Buffer {
    std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
  };
  Buffer scores_, indices_, values_, certificate_;
};

}  // namespace tamis::test
