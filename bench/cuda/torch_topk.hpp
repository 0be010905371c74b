#pragma once

// torch.topk on the same GPU in the same run, where a python3 with torch is there.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.hpp"
#include "tamis/tensor.hpp"

namespace tamis::bench {

struct TorchCase {
  std::int64_t rows, width, k;
  DType dtype;
  std::int64_t copies;  // of the input, to rotate through
};

struct TorchTiming {
  Timing cold, hot;
  std::string version;  // of torch
};

/// Times torch.topk(x, k, dim=-1, sorted=False) of standard normals as GpuTimer times ours, after checking the values
/// it selects. Hands on each case's result as it comes.
/// @returns Why there are no more results; empty if there are all.
std::string time_torch_topk(const std::vector<TorchCase>& cases, int repeats,
                            const std::function<void(std::size_t index, const TorchTiming& timing)>& result);

}  // namespace tamis::bench
