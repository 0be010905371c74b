#include "tamis/tensor.hpp"

#include "core/check.hpp"

namespace tamis {

const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32: return "fp32";
    case DType::kBFloat16: return "bf16";
    case DType::kFloat16: return "fp16";
    case DType::kFloat8E4M3: return "fp8_e4m3";
    case DType::kUInt8: return "uint8";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
  }
  return "unknown dtype";
}

void throw_bad_view(std::size_t rank, std::size_t strides) {
  core::fail(Status::kInvalidArgument, "tensor view: ", rank, " extents and ", strides,
             " strides, must be as many of both and at most ", kMaxRank);
}

}  // namespace tamis
