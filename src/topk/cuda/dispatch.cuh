#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "tamis/tensor.hpp"

namespace tamis::topk_cuda {

/// Calls f with a value of the scores' type: float, __nv_bfloat16 or __half.
template <typename F>
void dispatch_dtype(DType dtype, F f) {
  switch (dtype) {
    case DType::kBFloat16: return f(__nv_bfloat16{});
    case DType::kFloat16: return f(__half{});
    default: return f(float{});
  }
}

/// Calls f with the threads of a block that filters, as a compile-time number: 512 or 1024.
template <typename F>
void dispatch_threads(int threads, F f) {
  if (threads == 1024) return f(std::integral_constant<int, 1024>{});
  f(std::integral_constant<int, 512>{});
}

}  // namespace tamis::topk_cuda
