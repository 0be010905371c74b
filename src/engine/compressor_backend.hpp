#pragma once

#include <memory>

#include "model/compressor_backend.hpp"
#include "tamis/tensor.hpp"

namespace tamis::engine {

/// Who compresses for a device: null for the CPU, where the model calls compress() itself, else that GPU's compressor.
/// @throws Error kUnsupported in a build without CUDA, kDeviceError if there is no such device.
std::unique_ptr<model::CompressorBackend> make_compressor_backend(Device device);

}  // namespace tamis::engine
