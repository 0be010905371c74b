#pragma once

// How the CPU goes through a step, which kernel CUDA takes, and what `tamis explain compressor` prints.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "tamis/compressor.hpp"

namespace tamis::compressor {

enum class StepOrder : std::uint8_t {
  kPoolThenSave,  // all entries, then all state rows
  kTogether,      // piece by piece of tokens, entries and state rows
};
enum class StateStore : std::uint8_t {
  kCached,
  kStreamed,  // past the caches, where a row is aligned to a cache line
};

inline const char* step_order_name(StepOrder order) {
  return order == StepOrder::kTogether ? "together" : "pool_then_save";
}
inline const char* state_store_name(StateStore store) { return store == StateStore::kCached ? "cached" : "streamed"; }

inline constexpr std::int64_t kAnyBytes = INT64_MAX;

struct CompressorRule {
  bool ring;                     // state form that the rule is for
  std::int64_t max_saved_bytes;  // and most bytes of state that the step saves
  StepOrder order;
  StateStore store;
  const char* why;
};

// First row that fits wins, so order matters. AMD EPYC (Zen 4), one thread, fp32: 8,192 tokens of C128 took 7.1 ms with
// cached stores and 5.0 ms with streamed ones, of the indexer 4.1 and 3.0, of C4 about the same (13 ms) with either;
// 512 tokens of C4 (4 MiB) took 0.38 and 0.44 ms. 8 MiB lies between what was measured.
inline constexpr CompressorRule kCompressorRules[] = {
    // ring  max_saved_bytes     order                     store                  why
    {true, kAnyBytes, StepOrder::kPoolThenSave, StateStore::kCached,
     "a row saved to a ring may replace one that another thread still pools"},
    {false, (std::int64_t{8} << 20) - 1, StepOrder::kTogether, StateStore::kCached,
     "inputs are pooled and saved while they are in L2"},
    {false, kAnyBytes, StepOrder::kTogether, StateStore::kStreamed,
     "the next step reads a window of this much state: fetching lines to overwrite them is not worth it"},
};

constexpr const CompressorRule& choose_compressor_rule(bool ring, std::int64_t saved_bytes) {
  for (const CompressorRule& rule : kCompressorRules) {
    if (ring == rule.ring && saved_bytes <= rule.max_saved_bytes) return rule;
  }
  return kCompressorRules[0];  // not reached: both forms have a row for any size
}
static_assert(&choose_compressor_rule(true, kAnyBytes) == &kCompressorRules[0]);
static_assert(&choose_compressor_rule(false, kAnyBytes) == &kCompressorRules[2]);  // something always fits

inline std::span<const CompressorRule> compressor_rules() { return kCompressorRules; }

/// What the choice on CUDA depends on.
struct CompressorCase {
  std::int64_t window = 0;    // rows that an entry pools
  std::int64_t head_dim = 0;  // channels
  bool aligned = false;       // base pointers and strides of inputs, ape and state are multiples of 16 bytes
};

inline constexpr std::int64_t kAnyNumber = INT64_MAX;
inline constexpr int kShortRows = 8;
inline constexpr int kTallRows = 128;

struct CompressorCudaRule {
  CompressAlgorithm algorithm;
  const char* name;
  std::int64_t max_window, head_dim_multiple, max_head_dim;
  bool aligned_only;
  const char* why;

  constexpr bool can(const CompressorCase& c) const {
    return c.window <= max_window && c.head_dim % head_dim_multiple == 0 && c.head_dim <= max_head_dim &&
           (c.aligned || !aligned_only);
  }
};

// First row that fits wins, so order matters.
inline constexpr CompressorCudaRule kCompressorCudaRules[] = {
    // algorithm                       name            rows        multiple max_dim  aligned why
    {CompressAlgorithm::kShortWindow, "short_window", kShortRows, 128, 128, true,
     "the window fits in registers; a warp an entry"},
    {CompressAlgorithm::kShortWindow, "short_window", kShortRows, 512, 512, true,
     "the window fits in registers; four warps an entry"},
    {CompressAlgorithm::kTallWindow, "tall_window", kTallRows, 64, 512, true,
     "128 rows fit in the registers of 16 blocks, a slice of 32 channels each"},
    {CompressAlgorithm::kAnyWindow, "any_window", kAnyNumber, 1, kAnyNumber, false, "any shape, stride and alignment"},
};

constexpr const CompressorCudaRule& choose_compressor_cuda_rule(const CompressorCase& c) {
  for (const CompressorCudaRule& rule : kCompressorCudaRules) {
    if (rule.can(c)) return rule;
  }
  return kCompressorCudaRules[0];  // not reached: the last row fits anything
}
static_assert(choose_compressor_cuda_rule({2048, 75, false}).algorithm == CompressAlgorithm::kAnyWindow);

inline std::span<const CompressorCudaRule> compressor_cuda_rules() { return kCompressorCudaRules; }

/// Teams that look for entries among a step's tokens, team g at tokens g, g + groups, ..: at most `most`, about as many
/// as there can be entries. The entries of a long chunk are `ratio` tokens apart, so the number of teams shares no
/// factor with it, else few teams would get all of them. As many teams as tokens need no such care.
constexpr std::int64_t spread_groups(std::int64_t tokens, std::int64_t entries, std::int64_t most, std::int64_t ratio) {
  const std::int64_t wanted = std::min(entries, most);
  if (wanted == tokens) return wanted;
  for (std::int64_t groups = std::max<std::int64_t>(1, wanted); groups <= most; ++groups) {
    if (std::gcd(groups, ratio) == 1) return groups;
  }
  std::int64_t groups = wanted;
  while (std::gcd(groups, ratio) != 1) --groups;  // ends at 1
  return groups;
}

/// What keeps a rule from serving a call, in words; empty if it can.
std::string compressor_unmet(const CompressorCudaRule& rule, const CompressorCase& c);

/// The rule of a call, or of the algorithm that it forces.
/// @throws Error kUnsupported naming what speaks against a forced algorithm.
const CompressorCudaRule& compressor_cuda_rule(const CompressorCase& c, CompressAlgorithm forced);

inline const char* compress_plan_name(CompressPlan plan) {
  switch (plan) {
    case CompressPlan::kNone: return "none";
    case CompressPlan::kSome: return "some";
    case CompressPlan::kUnknown: return "unknown";
  }
  return "?";
}

}  // namespace tamis::compressor
