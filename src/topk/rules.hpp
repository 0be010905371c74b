#pragma once

// Which algorithm when. The first rule that fits is taken; `tamis explain topk` prints the table.

#include <cstdint>
#include <limits>
#include <span>

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
  for (const TopkRule& rule : kTopkCpuRules) {
    if (rule.fits(width, k)) return rule;
  }
  return kTopkCpuRules[std::size(kTopkCpuRules) - 1];
}
static_assert(kTopkCpuRules[std::size(kTopkCpuRules) - 1].fits(kTopkAnyK, kTopkAnyK), "something always fits");
static_assert(choose_topk_rule(2048, 2048).algorithm == TopkAlgorithm::kIdentity);
static_assert(choose_topk_rule(2049, 2048).algorithm == TopkAlgorithm::kSimdFilter);
static_assert(choose_topk_rule(kTopkFilterMaxK + 2, kTopkFilterMaxK + 1).algorithm == TopkAlgorithm::kSelect);

}  // namespace tamis
