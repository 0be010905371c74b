#include "bench/timing.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace tamis::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSampleUs = 200;    // the clock's resolution and cost are below 0.1 us: 0.05% of a sample
constexpr double kLongRunUs = 2000;  // such a run reads more than any L2 holds
constexpr int kMaxRuns = 1 << 20;

double time_us(const Work& work, int runs) {
  const auto start = Clock::now();
  for (int i = 0; i < runs; ++i) work.run();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Runs that fill a sample. The first call of a work is never timed: it may touch new pages.
int runs_a_sample(const Work& work) {
  if (work.prepare) return 1;
  work.run();
  int runs = 1;
  for (double us = time_us(work, 1); us < kSampleUs && runs < kMaxRuns; us = time_us(work, runs)) {
    const double wanted = us > 0 ? kSampleUs / us * runs : kMaxRuns;
    runs = static_cast<int>(std::clamp(wanted * 1.1, runs * 1.5 + 1, static_cast<double>(kMaxRuns)));
  }
  return runs;
}

}  // namespace

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

std::vector<Timing> measure(const std::vector<Work>& works, int repeats) {
  std::vector<int> runs;
  for (const Work& work : works) runs.push_back(runs_a_sample(work));
  std::vector<std::vector<double>> samples(works.size());
  for (int round = 0; round < repeats; ++round) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      const bool is_long = !samples[i].empty() && samples[i].back() > kLongRunUs;
      if (works[i].prepare) works[i].prepare();
      else if (!is_long) works[i].run();
      samples[i].push_back(time_us(works[i], runs[i]) / runs[i]);
    }
  }
  std::vector<Timing> timings;
  for (std::vector<double>& s : samples) timings.push_back(summarise(std::move(s)));
  return timings;
}

}  // namespace tamis::bench
