#include "bench/cuda/gpu_timing.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace tamis::bench {
namespace {

constexpr double kRotationInL2s = 2.5;
constexpr double kMostRotationBytes = 400e6;
constexpr int kProbeReplays = 4;  // in a row, so that the launch of all but the first is hidden

// A graph that can be replayed.
struct Replay {
  GpuGraphExec graph;
  std::size_t launches;
};

GpuGraph capture(const GpuWork& work, const std::vector<std::int64_t>& copies, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  TAMIS_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    for (const std::int64_t copy : copies) work(copy, stream);
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));  // the stream must not stay in capture
    const GpuGraph unfinished(graph);
    throw;
  }
  TAMIS_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  return GpuGraph(graph);
}

Replay make_replay(const GpuWork& work, const std::vector<std::int64_t>& copies, cudaStream_t stream) {
  const GpuGraph graph = capture(work, copies, stream);
  cudaGraphExec_t executable = nullptr;
  TAMIS_CUDA_CHECK(cudaGraphInstantiate(&executable, graph.get(), 0));
  return {GpuGraphExec(executable), copies.size()};
}

GpuEvent make_event() {
  cudaEvent_t event = nullptr;
  TAMIS_CUDA_CHECK(cudaEventCreate(&event));
  return GpuEvent(event);
}

// Replays one graph after the other, without a wait between them. Microseconds a launch in each.
std::vector<double> replay_us(const std::vector<const Replay*>& replays, cudaStream_t stream) {
  std::vector<GpuEvent> marks;
  for (std::size_t i = 0; i <= replays.size(); ++i) marks.push_back(make_event());
  TAMIS_CUDA_CHECK(cudaEventRecord(marks[0].get(), stream));
  for (std::size_t i = 0; i < replays.size(); ++i) {
    TAMIS_CUDA_CHECK(cudaGraphLaunch(replays[i]->graph.get(), stream));
    TAMIS_CUDA_CHECK(cudaEventRecord(marks[i + 1].get(), stream));
  }
  TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<double> us;
  for (std::size_t i = 0; i < replays.size(); ++i) {
    float milliseconds = 0;
    TAMIS_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, marks[i].get(), marks[i + 1].get()));
    us.push_back(1e3 * static_cast<double>(milliseconds) / static_cast<double>(replays[i]->launches));
  }
  return us;
}

// Launches that fill a sample, from a small graph that is replayed until the GPU is warm.
std::int64_t launches_a_replay(const GpuWork& work, std::int64_t copies, cudaStream_t stream) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < kLeastLaunches; ++i) order.push_back(i % copies);
  const Replay probe = make_replay(work, order, stream);
  double us = 0;
  for (double spent_us = 0; spent_us < kGpuWarmUpUs;) {
    const std::vector<double> each = replay_us(std::vector<const Replay*>(kProbeReplays, &probe), stream);
    us = *std::min_element(each.begin(), each.end());
    for (const double launch_us : each) spent_us += launch_us * kLeastLaunches;
  }
  return std::llround(std::clamp<double>(std::ceil(kReplayUs / us), kLeastLaunches, kMostLaunches));
}

}  // namespace

std::int64_t rotation_copies(std::int64_t input_bytes, std::int64_t l2_bytes) {
  const double wanted = std::min(kRotationInL2s * static_cast<double>(l2_bytes), kMostRotationBytes);
  const double copies = std::ceil(wanted / static_cast<double>(input_bytes));
  return std::llround(std::clamp<double>(copies, 1, kMostCopies));
}

std::vector<std::vector<std::int64_t>> replay_cycle(std::int64_t copies, std::int64_t launches) {
  std::vector<std::vector<std::int64_t>> cycle;
  if (copies <= launches) {
    // Whole rounds, so that the next replay goes on where this one ends.
    const std::int64_t rounds = std::max(launches / copies, (kLeastLaunches + copies - 1) / copies);
    cycle.emplace_back();
    for (std::int64_t i = 0; i < rounds * copies; ++i) cycle.back().push_back(i % copies);
    return cycle;
  }
  const std::int64_t graphs = std::min((copies + launches - 1) / launches, copies / kLeastLaunches);
  for (std::int64_t g = 0; g < graphs; ++g) {
    cycle.emplace_back();
    for (std::int64_t i = g * copies / graphs; i < (g + 1) * copies / graphs; ++i) cycle.back().push_back(i);
  }
  return cycle;
}

GpuTimer::GpuTimer(int repeats) : repeats_(repeats) {
  cudaStream_t stream = nullptr;
  TAMIS_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  stream_.reset(stream);
}

Timing GpuTimer::time(const GpuWork& work, std::int64_t copies) const {
  work(0, stream());  // loads its kernels, which nobody should do within a capture
  std::vector<Replay> cycle;
  for (const std::vector<std::int64_t>& order : replay_cycle(copies, launches_a_replay(work, copies, stream()))) {
    cycle.push_back(make_replay(work, order, stream()));
  }
  // One round of the cycle is not counted: it uploads the graphs and leaves the L2 as every later round finds it.
  std::vector<const Replay*> replays;
  const std::size_t count = cycle.size() + static_cast<std::size_t>(repeats_);
  for (std::size_t i = 0; i < count; ++i) replays.push_back(&cycle[i % cycle.size()]);
  std::vector<double> us = replay_us(replays, stream());
  us.erase(us.begin(), us.begin() + static_cast<std::ptrdiff_t>(cycle.size()));
  return summarise(std::move(us));
}

Timing GpuTimer::time_eager(const GpuWork& work, std::int64_t copies) const {
  constexpr int kRuns = 200;
  const GpuEvent begin = make_event(), end = make_event();
  std::vector<double> us;
  std::int64_t copy = 0;
  for (int sample = 0; sample <= repeats_; ++sample) {
    TAMIS_CUDA_CHECK(cudaEventRecord(begin.get(), stream()));
    for (int i = 0; i < kRuns; ++i) {
      work(copy, stream());
      copy = (copy + 1) % copies;
    }
    TAMIS_CUDA_CHECK(cudaEventRecord(end.get(), stream()));
    TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream()));
    float milliseconds = 0;
    TAMIS_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (sample > 0) us.push_back(1e3 * static_cast<double>(milliseconds) / kRuns);  // the first warms up
  }
  return summarise(std::move(us));
}

}  // namespace tamis::bench
