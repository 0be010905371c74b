#pragma once

// How the CPU shares the work of a step between threads, and what `tamis explain compressor` prints.

#include <cstdint>
#include <iterator>
#include <span>
#include <string>

#include "core/check.hpp"
#include "tamis/compressor.hpp"

namespace tamis::compressor {

enum class PoolSplit : std::uint8_t {
  kEntries,   // a thread pools whole entries
  kChannels,  // threads share the channels of an entry
};

inline const char* pool_split_name(PoolSplit split) { return split == PoolSplit::kEntries ? "entries" : "channels"; }

inline constexpr std::int64_t kAny = INT64_MAX;
/// Channels of one piece of PoolSplit::kChannels: 512 bytes of an fp32 row, two tiles of AVX-512.
inline constexpr std::int64_t kSplitChannels = 128;

struct CompressorRule {
  std::int64_t max_window;              // applies to windows of at most this many rows,
  std::int64_t max_workers;             // to at most this many workers
  std::int64_t min_entries_per_worker;  // and to at least this many entries for each
  PoolSplit split;
  const char* why;
};

// First row that fits wins, so order matters.
inline constexpr CompressorRule kCompressorRules[] = {
    // max_window  max_workers  min_entries  split  why
    {kAny, 1, 0, PoolSplit::kEntries, "one worker: nothing to share"},
    {32, kAny, 0, PoolSplit::kEntries, "an entry of so few rows takes less than waking a worker"},
    {kAny, kAny, 1, PoolSplit::kEntries, "every worker has an entry of its own"},
    {kAny, kAny, 0, PoolSplit::kChannels, "fewer entries than workers: they share the channels of each"},
};

/// @param window   Rows that an entry pools.
/// @param entries  Entries that the step completes.
/// @param workers  Threads that the call may use.
constexpr const CompressorRule& choose_compressor_rule(std::int64_t window, std::int64_t entries,
                                                       std::int64_t workers) {
  for (const CompressorRule& rule : kCompressorRules) {
    if (window <= rule.max_window && workers <= rule.max_workers && entries >= rule.min_entries_per_worker * workers) {
      return rule;
    }
  }
  return kCompressorRules[std::size(kCompressorRules) - 1];
}
static_assert(choose_compressor_rule(kAny, 0, 1 << 20).split == PoolSplit::kChannels);  // something always fits

inline std::span<const CompressorRule> compressor_rules() { return kCompressorRules; }

inline const char* compress_plan_name(CompressPlan plan) {
  switch (plan) {
    case CompressPlan::kNone: return "none";
    case CompressPlan::kSome: return "some";
    case CompressPlan::kUnknown: return "unknown";
  }
  return "?";
}

/// What `tamis explain compressor` prints for one step: the plan with its consequence, the entries, the rule.
inline std::string explain_compressor(std::span<const std::int64_t> starts, std::span<const std::int64_t> query_lens,
                                      std::int64_t ratio, bool overlap, std::int64_t workers) {
  const CompressPlan plan = compress_plan(starts, query_lens, ratio);
  std::int64_t entries = 0;
  std::string text = core::concat("compressor ratio ", ratio, overlap ? " (overlapping)" : "", ", ", starts.size(),
                                  " requests, ", workers, " workers\n");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t completes = (starts[i] + query_lens[i]) / ratio - starts[i] / ratio;
    entries += completes;
    text +=
        core::concat("  request ", i, ": start ", starts[i], ", ", query_lens[i], " tokens, completes ", completes,
                     ", reads state rows [", compress_state_begin(starts[i], ratio, overlap), ", ", starts[i], ")\n");
  }
  text += core::concat("  plan: ", compress_plan_name(plan),
                       plan == CompressPlan::kNone ? " - pooling is skipped, state is saved\n"
                                                   : " - state is saved, entries are pooled and stored\n");
  if (plan == CompressPlan::kNone) return text;
  const CompressorRule& rule = choose_compressor_rule((overlap ? 2 : 1) * ratio, entries, workers);
  return text + core::concat("  split by ", pool_split_name(rule.split), ": ", rule.why, "\n");
}

}  // namespace tamis::compressor
