#pragma once

// How the CPU goes through a step, and what `tamis explain compressor` prints.

#include <cstdint>
#include <span>
#include <string>

#include "core/check.hpp"
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
// cached stores and 5.0 ms with streamed ones, of the indexer 4.1 and 3.0, of C4 13.2 and 12.3; 512 tokens of C4 (4
// MiB) took 0.38 and 0.44 ms.
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

/// What `tamis explain compressor` prints for one step: what each request completes and reads, the plan with its
/// consequence, the rule.
/// @param row_bytes  Bytes of a state row: 2 * coff * d numbers.
inline std::string explain_compressor(std::span<const std::int64_t> starts, std::span<const std::int64_t> query_lens,
                                      std::int64_t ratio, bool overlap, bool ring, std::int64_t row_bytes) {
  const CompressPlan plan = compress_plan(starts, query_lens, ratio);
  std::int64_t tokens = 0;
  std::string text = core::concat("compressor ratio ", ratio, overlap ? " (overlapping), " : ", ",
                                  ring ? "ring" : "paged", " state, ", starts.size(), " requests\n");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    tokens += query_lens[i];
    text += core::concat("  request ", i, ": start ", starts[i], ", ", query_lens[i], " tokens, completes ",
                         (starts[i] + query_lens[i]) / ratio - starts[i] / ratio, ", may read state rows [",
                         compress_state_begin(starts[i], ratio, overlap), ", ", starts[i], ")\n");
  }
  text += core::concat("  plan ", compress_plan_name(plan),
                       plan == CompressPlan::kNone ? ": state is saved, pooling is skipped\n"
                                                   : ": state is saved, entries are pooled and stored\n");
  const CompressorRule& rule = choose_compressor_rule(ring, tokens * row_bytes);
  return text + core::concat("  order ", step_order_name(rule.order), ", state ", state_store_name(rule.store), ": ",
                             rule.why, "\n");
}

}  // namespace tamis::compressor
