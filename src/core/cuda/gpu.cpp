#include "core/cuda/gpu.hpp"

#include <array>
#include <mutex>

namespace tamis::core {

int num_gpus(std::string* why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  static_cast<void>(cudaGetLastError());  // not the caller's error
  if (why == nullptr) return 0;
  int driver = 0;
  if (error == cudaSuccess) *why = "the driver offers no device";
  else if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) *why = "no NVIDIA driver on this machine";
  else *why = cudaGetErrorString(error);
  return 0;
}

const Gpu& gpu(int index) {
  static std::array<Gpu, kMaxGpus> known;
  static std::array<std::once_flag, kMaxGpus> read;
  std::string why;
  const int count = num_gpus(&why);
  TAMIS_CHECK(count > 0, Status::kDeviceError, "cuda:", index, " was asked for, but there is no CUDA device: ", why);
  TAMIS_CHECK(index >= 0 && index < count && index < kMaxGpus, Status::kDeviceError, "cuda:", index,
              " was asked for, there are ", count, " CUDA devices");
  const auto at = static_cast<std::size_t>(index);
  std::call_once(read[at], [&] {
    cudaDeviceProp properties{};
    TAMIS_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    known[at] = {properties.name, properties.major * 10 + properties.minor, properties.multiProcessorCount,
                 static_cast<std::int64_t>(properties.sharedMemPerBlockOptin)};
  });
  return known[at];
}

}  // namespace tamis::core
