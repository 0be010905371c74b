#include "engine/topk_backend.hpp"

#include <algorithm>
#include <vector>

#include "core/check.hpp"
#include "tamis/topk.hpp"
#ifdef TAMIS_HAS_CUDA
#include "engine/cuda/gpu_topk.hpp"
#endif

namespace tamis::engine {

std::unique_ptr<model::TopkBackend> make_topk_backend(Device device) {
  if (device.kind == Device::Kind::kCpu) return nullptr;
  const std::vector<TopkSupport> support = topk_support(device);
  const auto available = [](const TopkSupport& entry) { return entry.available; };
  TAMIS_CHECK(std::any_of(support.begin(), support.end(), available), Status::kUnsupported, support.front().why);
#ifdef TAMIS_HAS_CUDA
  return std::make_unique<GpuTopk>(device.index);
#else
  core::fail(Status::kInternal, "topk_support() names a GPU in a build without CUDA");
#endif
}

}  // namespace tamis::engine
