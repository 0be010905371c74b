#pragma once

#include <memory>

#include "model/topk_backend.hpp"
#include "tamis/tensor.hpp"

namespace tamis::engine {

/// Who selects for a device: null for the CPU, where the model calls index_topk() itself, else that GPU's top-k.
/// @throws Error kUnsupported naming the reason if the top-k cannot run there: no CUDA in this build, no device, no
///         kernels for it.
std::unique_ptr<model::TopkBackend> make_topk_backend(Device device);

}  // namespace tamis::engine
