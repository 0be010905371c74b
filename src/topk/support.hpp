#pragma once

// What this binary and this machine can run, for `tamis explain`, `tamis info` and the engine. Compiles without CUDA.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "topk/rules.hpp"

namespace tamis {

/// An H200 as topk_cuda::topk_gpu() reads one: what is explained where no GPU is.
inline constexpr TopkGpu kTopkH200{132, 232448};

/// What the rules need to know of a GPU that this binary has kernels for; else nothing, and `why` says the reason.
std::optional<TopkGpu> find_topk_gpu(int device, std::string& why);

/// How a call on CUDA is laid out, from shapes alone.
struct TopkCudaLayout {
  int blocks_per_row = 1;
  std::uint32_t capacity = 0;                  // candidates a block holds; 0: the algorithm keeps none
  std::optional<std::size_t> workspace_bytes;  // absent where it takes CUDA, or a GPU, to say
};
TopkCudaLayout topk_cuda_layout(const TopkCase& c, TopkAlgorithm algorithm, const TopkGpu& gpu);

}  // namespace tamis
