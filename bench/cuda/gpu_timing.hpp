#pragma once

// How long something takes on the GPU: graphs of many launches, replayed back to back. One launch by itself costs the
// host more than many kernels take (3.1 us on an H200's host, a graph node 0.6 us).

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/cuda/gpu_memory.hpp"
#include "bench/timing.hpp"

namespace tamis::bench {

/// Enqueues one run that reads copy `copy` of its input. Captured, so it must neither allocate nor wait.
using GpuWork = std::function<void(std::int64_t copy, cudaStream_t stream)>;

inline constexpr double kReplayUs = 1000;          // a microsecond or two between graphs: at most 0.2% of a sample
inline constexpr double kGpuWarmUpUs = 10'000;     // brings the clock of an idle GPU up
inline constexpr int kLeastLaunches = 8;           // also of what takes long, so that a sample is a mean
inline constexpr int kMostLaunches = 400;          // of a kernel of 0.6 us, the least there is, 240 us
inline constexpr std::int64_t kMostCopies = 4800;  // inputs of 32 KiB and more exceed 2.5 times an L2 of 60 MiB

/// Copies of an input that together exceed the L2 by far (2.5 times, at most 400 MB), so that none is found in it when
/// its turn comes again. An input larger than that needs no second copy.
std::int64_t rotation_copies(std::int64_t input_bytes, std::int64_t l2_bytes);

/// Which copies the launches of each graph read, for graphs of about `launches`. Going through the graphs over and over
/// reads all copies in turn.
std::vector<std::vector<std::int64_t>> replay_cycle(std::int64_t copies, std::int64_t launches);

/// Times work on a stream of its own.
class GpuTimer {
 public:
  /// @param repeats  Samples that the median is taken of; each is one replay.
  explicit GpuTimer(int repeats);

  cudaStream_t stream() const { return stream_.get(); }
  int repeats() const { return repeats_; }
  /// Time of one run. With one copy of a small input it is found in the L2 ("hot").
  Timing time(const GpuWork& work, std::int64_t copies) const;
  /// Time of one run that the host enqueues by itself, many back to back: the larger of what host and device take.
  Timing time_eager(const GpuWork& work, std::int64_t copies) const;

 private:
  int repeats_;
  GpuStream stream_;
};

}  // namespace tamis::bench
