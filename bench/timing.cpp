#include "bench/timing.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace tamis::bench {
namespace {

constexpr double kSampleUs = 200;  // reading a clock costs 0.03 us (wall) or 0.3 us (thread): at most 0.3% of a sample
constexpr double kLongRunUs = 2000;  // such a run reads more than any L2 holds
constexpr int kMaxRuns = 1 << 20;

double now_us(TimingClock clock) {
  if (clock == TimingClock::kThread) {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
  }
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double time_us(const Work& work, int runs, TimingClock clock) {
  const double start = now_us(clock);
  for (int i = 0; i < runs; ++i) work.run();
  return now_us(clock) - start;
}

// Runs that fill a sample. The first call of a work is never timed: it may touch new pages.
int runs_a_sample(const Work& work, TimingClock clock) {
  if (work.prepare) return 1;
  work.run();
  int runs = 1;
  for (double us = time_us(work, 1, clock); us < kSampleUs && runs < kMaxRuns; us = time_us(work, runs, clock)) {
    const double wanted = us > 0 ? kSampleUs / us * runs : kMaxRuns;
    runs = static_cast<int>(std::clamp(wanted * 1.1, runs * 1.5 + 1, static_cast<double>(kMaxRuns)));
  }
  return runs;
}

}  // namespace

const char* clock_name(TimingClock clock) { return clock == TimingClock::kThread ? "thread" : "wall"; }

Timing summarise(std::vector<double> samples_us) {
  Timing timing;
  timing.repeats = static_cast<int>(samples_us.size());
  if (samples_us.empty()) return timing;
  std::sort(samples_us.begin(), samples_us.end());
  // Quantile q lies between two samples; both ends of the list are included.
  const auto quantile = [&](double q) {
    const double at = q * static_cast<double>(samples_us.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    const std::size_t high = std::min(low + 1, samples_us.size() - 1);
    return samples_us[low] + (at - static_cast<double>(low)) * (samples_us[high] - samples_us[low]);
  };
  timing.us = quantile(0.5);
  if (timing.us > 0) timing.spread = (quantile(0.75) - quantile(0.25)) / timing.us;
  return timing;
}

std::vector<Timing> measure(const std::vector<Work>& works, int repeats, TimingClock clock) {
  std::vector<int> runs;
  for (const Work& work : works) runs.push_back(runs_a_sample(work, clock));
  std::vector<std::vector<double>> samples(works.size());
  for (int round = 0; round < repeats; ++round) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      const bool is_long = !samples[i].empty() && samples[i].back() > kLongRunUs;
      if (works[i].prepare) works[i].prepare();
      else if (!is_long) works[i].run();
      samples[i].push_back(time_us(works[i], runs[i], clock) / runs[i]);
    }
  }
  std::vector<Timing> timings;
  for (std::vector<double>& s : samples) timings.push_back(summarise(std::move(s)));
  return timings;
}

}  // namespace tamis::bench
