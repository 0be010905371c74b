#include "engine/compressor_backend.hpp"

#include "core/check.hpp"
#include "core/gpu_list.hpp"
#ifdef TAMIS_HAS_CUDA
#include "engine/cuda/gpu_compressor.hpp"
#endif

namespace tamis::engine {

std::unique_ptr<model::CompressorBackend> make_compressor_backend(Device device) {
  if (device.kind == Device::Kind::kCpu) return nullptr;
#ifdef TAMIS_HAS_CUDA
  return std::make_unique<GpuCompressor>(device.index);
#else
  core::fail(Status::kUnsupported, core::kNoCudaInBuild);
#endif
}

}  // namespace tamis::engine
