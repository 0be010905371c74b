#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

// The thread sanitizer cannot see inside a oneTBB that was not built for it, and takes the begin and end of every loop
// for races. Under it the same loops run on plain threads, which it understands.
#if defined(__SANITIZE_THREAD__)
#define TAMIS_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TAMIS_THREAD_SANITIZER 1
#endif
#endif
#ifdef TAMIS_THREAD_SANITIZER
#include <thread>
#include <vector>
#endif

namespace tamis::core {

/// Workers that a call with this `num_threads` may use: 0 means as many as the calling thread's TBB arena has.
inline int num_workers(int num_threads) {
  return num_threads > 0 ? num_threads : std::max(1, tbb::this_task_arena::max_concurrency());
}

/// Calls body(begin, end, worker) over [0, count) in pieces of at most `grain`, on up to num_workers(num_threads)
/// workers that take the next piece when they are done with one. `worker` is in [0, num_workers) and never used by two
/// threads at once, so it can index scratch memory. With one worker nothing is allocated and no other thread is
/// touched. Which worker takes which piece varies from run to run: results must not depend on it.
template <typename Body>
void parallel_for(std::int64_t count, std::int64_t grain, int num_threads, const Body& body) {
  if (count <= 0) return;
  const std::int64_t pieces = (count + grain - 1) / grain;
  const auto workers = static_cast<int>(std::min<std::int64_t>(pieces, num_workers(num_threads)));
  if (workers <= 1) {
    for (std::int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(count, begin + grain), 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int worker) {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      body(begin, std::min(count, begin + grain), worker);
    }
  };
#ifdef TAMIS_THREAD_SANITIZER
  std::vector<std::thread> threads;
  for (int worker = 1; worker < workers; ++worker) threads.emplace_back(work, worker);
  work(0);
  for (std::thread& thread : threads) thread.join();
#else
  tbb::parallel_for(0, workers, work, tbb::simple_partitioner{});
#endif
}

}  // namespace tamis::core
