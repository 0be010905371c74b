#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

}  // namespace tamis::topk_cuda
