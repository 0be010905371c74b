#pragma once

// How the CPU goes through a step, and what `tamis explain compressor` prints.

#include <cstdint>
#include <span>

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

inline const char* compress_plan_name(CompressPlan plan) {
  switch (plan) {
    case CompressPlan::kNone: return "none";
    case CompressPlan::kSome: return "some";
    case CompressPlan::kUnknown: return "unknown";
  }
  return "?";
}

}  // namespace tamis::compressor
