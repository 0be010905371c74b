#pragma once

// How long something takes, measured so that a busy machine hits all candidates alike.

#include <functional>
#include <vector>

namespace tamis::bench {

/// Something to time. With `prepare`, each timed run is a single one with an untimed preparation before it.
struct Work {
  std::function<void()> run;
  std::function<void()> prepare = {};
};

struct Timing {
  double us = 0;      ///< median time of one run
  double spread = 0;  ///< distance between the quartiles over the median
  int repeats = 0;    ///< samples
};

/// What a time is.
enum class TimingClock {
  kWall,
  kThread,  ///< of the calling thread on a core: what other programs take in between does not count. One thread only.
};

/// The clock for so many threads: the thread's own for one, wall time for more.
inline TimingClock clock_for(int num_threads) { return num_threads == 1 ? TimingClock::kThread : TimingClock::kWall; }
const char* clock_name(TimingClock clock);

/// Median and spread of samples in microseconds. An even count takes the mean of the middle two.
Timing summarise(std::vector<double> samples_us);

/// Times every work in turn, `repeats` rounds: sample i of all works is taken within one round, so that a change of
/// clock or a busy neighbour meets all of them. A sample is as many runs as fill 200 us, after one untimed run that
/// brings the work's own data back into the cache (left out where a run takes longer than 2 ms and evicts it anyway).
std::vector<Timing> measure(const std::vector<Work>& works, int repeats, TimingClock clock);

}  // namespace tamis::bench
