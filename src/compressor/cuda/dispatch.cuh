#pragma once

#include <cuda_bf16.h>

#include "tamis/tensor.hpp"

namespace tamis::compressor_cuda {

/// Calls f with values of the types of inputs and state: float or __nv_bfloat16 each.
template <typename F>
void dispatch_dtypes(DType input, DType state, F f) {
  const auto with_state = [&](auto input_value) {
    if (state == DType::kBFloat16) return f(input_value, __nv_bfloat16{});
    return f(input_value, float{});
  };
  if (input == DType::kBFloat16) return with_state(__nv_bfloat16{});
  return with_state(float{});
}

}  // namespace tamis::compressor_cuda
