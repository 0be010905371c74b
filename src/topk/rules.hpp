#pragma once

// Which algorithm when, on the CPU and on CUDA. The first rule that fits is taken; `tamis explain topk` prints the
// tables.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "tamis/topk.hpp"

namespace tamis {

struct TopkRule {
  TopkAlgorithm algorithm;
  bool whole_rows_only;  // needs width <= k
  std::int64_t max_k;
  const char* name;
  const char* limits;  // the two fields above, in words
  const char* why;

  constexpr bool fits(std::int64_t width, std::int64_t k) const {
    return (!whole_rows_only || width <= k) && k <= max_k;
  }
};

inline constexpr std::int64_t kTopkAnyK = std::numeric_limits<std::int64_t>::max();
/// Up to here the filter's candidates (16 bytes * 2k) stay within a few MiB of cache; see README.md for the numbers.
inline constexpr std::int64_t kTopkFilterMaxK = 65536;

inline constexpr TopkRule kTopkCpuRules[] = {
    {TopkAlgorithm::kIdentity, true, kTopkAnyK, "identity", "width <= k",
     "every position wins, so no score is compared"},
    {TopkAlgorithm::kSimdFilter, false, kTopkFilterMaxK, "simd_filter", "k <= 65536",
     "one SIMD pass against a rising threshold; few scores survive it, and those are cut exactly"},
    {TopkAlgorithm::kSelect, false, kTopkAnyK, "select", "any",
     "keys of the whole row and nth_element; assumes nothing and needs 12 bytes of workspace a position"},
};

/// The rules of the CPU, in the order in which they are tried.
inline std::span<const TopkRule> topk_rules() { return kTopkCpuRules; }

constexpr const TopkRule& choose_topk_rule(std::int64_t width, std::int64_t k) {
  if (k == 0) return kTopkCpuRules[0];  // nothing to select: the first rule's way of writing nothing
  for (const TopkRule& rule : kTopkCpuRules) {
    if (rule.fits(width, k)) return rule;
  }
  return kTopkCpuRules[std::size(kTopkCpuRules) - 1];
}
static_assert(kTopkCpuRules[std::size(kTopkCpuRules) - 1].fits(kTopkAnyK, kTopkAnyK), "something always fits");
static_assert(choose_topk_rule(2048, 2048).algorithm == TopkAlgorithm::kIdentity);
static_assert(choose_topk_rule(2048, 0).algorithm == TopkAlgorithm::kIdentity);
static_assert(choose_topk_rule(2049, 2048).algorithm == TopkAlgorithm::kSimdFilter);
static_assert(choose_topk_rule(kTopkFilterMaxK + 2, kTopkFilterMaxK + 1).algorithm == TopkAlgorithm::kSelect);

// --- CUDA ------------------------------------------------------------------------------------------------------------

/// What the rules need to know of a GPU. The defaults are an H200's.
struct TopkGpu {
  int num_sms = 132;
  std::int64_t max_shared_bytes = 232448;
  int compute_capability = 90;  // times ten
};

/// What they need to know of a call.
struct TopkCase {
  std::int64_t rows, width, k;
  TopkOrder order = TopkOrder::kPosition;
};

/// Shared memory of the kernels that filter beside their candidates, rounded up: tiles on their way, 128 bytes a
/// thread, and what a selection needs. The launcher holds it against the kernels.
constexpr std::int64_t topk_filter_shared_bytes(int threads) { return 128 * threads + 5 * 1024; }

/// Candidates that a block of stream and grid holds: several times k, so that those that a sampled bar lets
/// through fit. 0: too large a k for the GPU's shared memory.
constexpr std::uint32_t topk_capacity(std::int64_t k, const TopkGpu& gpu) {
  struct Choice {
    std::int64_t max_k, candidates;
  };
  // 5,632: two blocks fit a multiprocessor of Hopper. 3,584: one fits 99 KiB. 16,384: one fits 227 KiB.
  for (const Choice& choice : {Choice{2048, 5632}, Choice{1024, 3584}, Choice{4096, 16384}}) {
    if (k <= choice.max_k && 8 * choice.candidates + topk_filter_shared_bytes(512) <= gpu.max_shared_bytes) {
      return static_cast<std::uint32_t>(choice.candidates);
    }
  }
  return 0;
}

/// Largest k of these kernels.
constexpr std::int64_t topk_filter_max_k(const TopkGpu& gpu) {
  for (const std::int64_t k : {4096, 2048, 1024}) {
    if (topk_capacity(k, gpu) > 0) return k;
  }
  return 0;
}

/// Slices of a row for grid: as many as there are multiprocessors for, while each has a few thousand scores.
constexpr int topk_grid_slices(std::int64_t rows, std::int64_t width, const TopkGpu& gpu) {
  constexpr std::int64_t kMostSlices = 512;  // the block that gathers them has a thread for each
  const std::int64_t share = std::min(kMostSlices, gpu.num_sms / std::max<std::int64_t>(1, rows));
  return static_cast<int>(std::clamp<std::int64_t>(share, 1, std::max<std::int64_t>(1, width / 8192)));
}

/// Architecture that blocks of 1,024 threads are built for: it is the one they were measured on, and each form of these
/// kernels takes a minute to compile for the others.
inline constexpr int kTopkWideBlocksOn = 90;

/// Threads of a block that filters: all that a multiprocessor has where no two blocks share one and such blocks are
/// built, else half.
constexpr int topk_filter_threads(std::int64_t blocks, std::uint32_t capacity, const TopkGpu& gpu) {
  if (gpu.compute_capability != kTopkWideBlocksOn) return 512;
  const bool fits = std::int64_t{8} * capacity + topk_filter_shared_bytes(1024) <= gpu.max_shared_bytes;
  return blocks <= gpu.num_sms && fits ? 1024 : 512;
}
static_assert(topk_filter_threads(132, 5632, {}) == 1024 && topk_filter_threads(133, 5632, {}) == 512);
static_assert(topk_filter_threads(132, 5632, {132, 232448, 100}) == 512, "not built there");

struct TopkCudaRule {
  TopkAlgorithm algorithm;
  const char* name;
  // What the kernel can serve at all.
  bool whole_rows_only;         // width <= k
  std::int64_t max_width;       // kTopkAnyK: any
  std::int64_t max_k;           // likewise; kTopkFilterK: topk_filter_max_k(); 0: only by value
  std::int64_t max_k_by_value;  // likewise; 0: not by value
  // When it is the best choice, beyond that.
  bool (*best)(const TopkCase& c, const TopkGpu& gpu);
  const char* limits;  // all of the above, in words
  const char* why;
  const char* measured;  // on an H200, graph replay: docs/measurements/topk_h200.jsonl, topk_algorithms_h200.jsonl

  constexpr std::int64_t k_limit(const TopkCase& c, const TopkGpu& gpu) const;
  constexpr bool can(const TopkCase& c, const TopkGpu& gpu) const {
    return (!whole_rows_only || c.width <= c.k) && c.width <= max_width && k_limit(c, gpu) > 0 &&
           std::min(c.k, c.width) <= k_limit(c, gpu);
  }
  constexpr bool fits(const TopkCase& c, const TopkGpu& gpu) const { return can(c, gpu) && best(c, gpu); }
};

inline constexpr std::int64_t kTopkFilterK = -1;
constexpr std::int64_t TopkCudaRule::k_limit(const TopkCase& c, const TopkGpu& gpu) const {
  const std::int64_t limit = c.order == TopkOrder::kByValue ? max_k_by_value : max_k;
  return limit == kTopkFilterK ? topk_filter_max_k(gpu) : limit;
}

constexpr bool topk_always(const TopkCase&, const TopkGpu&) { return true; }

inline constexpr TopkCudaRule kTopkCudaRules[] = {
    {TopkAlgorithm::kIdentity, "identity", true, kTopkAnyK, kTopkAnyK, 0, topk_always, "width <= k, not by value",
     "every position wins, so no score is compared", "not apart: it reads no score"},
    {TopkAlgorithm::kRegisters, "registers", false, 16384, kTopkAnyK, 4096,
     [](const TopkCase& c, const TopkGpu& gpu) {
       return c.rows <= gpu.num_sms || c.width < 8192 || c.width < 16 * c.k || c.k > topk_filter_max_k(gpu);
     },
     "width <= 16384; by value k <= 4096; rows <= SMs, or width < 8192, or width < 16 k",
     "one block holds the row in registers and counts it exactly, without a sample",
     "1 x 8,192, k 2,048: 7.2 us (stream 11.5, select 12.1, grid 14.6); but 256 x 8,192, k 512: 12.5 (stream 10.9)"},
    {TopkAlgorithm::kGrid, "grid", false, kTopkAnyK, kTopkFilterK, kTopkFilterK,
     [](const TopkCase& c, const TopkGpu& gpu) {
       return 4 * c.rows <= gpu.num_sms || (2 * c.rows <= gpu.num_sms && c.k > 1024 && c.width >= 262144);
     },
     "k <= 4096; rows <= SMs / 4, or rows <= SMs / 2 with k > 1024 and width >= 262144",
     "rows too few to fill the GPU: blocks share them and meet in the workspace, which costs a second launch",
     "1 x 1,048,576, k 512: 17.3 us (stream 63.8, select 1,180); 64 x 262,144: k 2,048 35.3 (stream 37.1), k 512 31.9 "
     "(stream 28.7)"},
    {TopkAlgorithm::kStream, "stream", false, kTopkAnyK, kTopkFilterK, kTopkFilterK, topk_always, "k <= 4096",
     "rows enough for one block each: one pass against a sampled bar, at the speed of reading",
     "256 x 1,048,576, k 512: 253 us (grid 266); 64 x 262,144, k 512: 28.7 (grid 31.9, select 481)"},
    {TopkAlgorithm::kSelect, "select", false, kTopkAnyK, kTopkAnyK, 0, topk_always, "not by value",
     "any k: the exact k-th by several passes over the row, winners leave in order",
     "64 x 262,144, k 512: 481 us (stream 28.7, which ends at k 4096)"},
    {TopkAlgorithm::kCub, "cub", false, kTopkAnyK, 0, kTopkAnyK, topk_always, "by value",
     "any k by value: winners as select finds them, which CUB then sorts in the workspace",
     "not apart: it is select and a sort"},
};

/// The rules of CUDA, in the order in which they are tried.
inline std::span<const TopkCudaRule> topk_cuda_rules() { return kTopkCudaRules; }

constexpr const TopkCudaRule& choose_topk_cuda_rule(const TopkCase& c, const TopkGpu& gpu) {
  if (c.k == 0) return kTopkCudaRules[0];  // as on the CPU
  for (const TopkCudaRule& rule : kTopkCudaRules) {
    if (rule.fits(c, gpu)) return rule;
  }
  return kTopkCudaRules[std::size(kTopkCudaRules) - 1];
}
static_assert(choose_topk_cuda_rule({1, 2048, 2048}, {}).algorithm == TopkAlgorithm::kIdentity);
static_assert(choose_topk_cuda_rule({1, 2048, 2048, TopkOrder::kByValue}, {}).algorithm == TopkAlgorithm::kRegisters);
static_assert(choose_topk_cuda_rule({1, 131072, 2048}, {}).algorithm == TopkAlgorithm::kGrid);
static_assert(choose_topk_cuda_rule({256, 131072, 2048}, {}).algorithm == TopkAlgorithm::kStream);
static_assert(choose_topk_cuda_rule({256, 8192, 512}, {}).algorithm == TopkAlgorithm::kStream);
static_assert(choose_topk_cuda_rule({256, 8192, 2048}, {}).algorithm == TopkAlgorithm::kRegisters);
static_assert(choose_topk_cuda_rule({64, 262144, 2048}, {}).algorithm == TopkAlgorithm::kGrid);
static_assert(choose_topk_cuda_rule({64, 262144, 512}, {}).algorithm == TopkAlgorithm::kStream);
static_assert(choose_topk_cuda_rule({1, kTopkAnyK, kTopkAnyK, TopkOrder::kByValue}, {}).algorithm ==
              TopkAlgorithm::kCub);

/// What speaks against a forced rule, joined by "; ". Empty if it can serve.
std::string topk_unmet(const TopkCudaRule& rule, const TopkCase& c, const TopkGpu& gpu);

/// The rule of an unforced call (kAuto), or the forced one.
/// @throws Error kUnsupported if that cannot serve, listing what is unmet; kInvalidArgument if CUDA has no such one.
const TopkCudaRule& topk_cuda_rule(const TopkCase& c, TopkAlgorithm forced, const TopkGpu& gpu);

}  // namespace tamis
