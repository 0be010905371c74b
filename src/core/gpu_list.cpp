#include "core/gpu_list.hpp"

#include "core/check.hpp"
#ifdef TAMIS_HAS_CUDA
#include "core/cuda/gpu.hpp"
#endif

namespace tamis::core {

#ifdef TAMIS_HAS_CUDA

GpuList list_gpus() {
  GpuList list;
  std::string why;
  const int count = num_gpus(&why);
  if (count == 0) list.why_none = concat("no CUDA device: ", why);
  for (int index = 0; index < count && index < kMaxGpus; ++index) {
    const Gpu& facts = gpu(index);
    list.gpus.push_back({index, facts.name, facts.compute_capability, facts.num_sms});
  }
  return list;
}

std::string_view cuda_archs() noexcept { return TAMIS_CUDA_ARCHS; }

#else

GpuList list_gpus() { return {.gpus = {}, .why_none = kNoCudaInBuild}; }

std::string_view cuda_archs() noexcept { return {}; }

#endif

}  // namespace tamis::core
