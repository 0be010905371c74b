#pragma once

// What a launch of the compressor costs on an H200, for `tamis replay`. The rows are those of
// docs/measurements/compressor_h200.jsonl, rounded to 10 ns; a test compares them.

#include <cstdint>

namespace tamis::bench {

/// A compressor of DeepSeek-V4.
enum class CompressorKind : std::uint8_t { kC128, kC4, kIndexer };

/// How a step is launched.
enum class StepForm : std::uint8_t {
  kThreeLaunches,      ///< Pool, finish, save.
  kThreeLaunchesSkip,  ///< The same where no entry completes: save alone.
  kFused,              ///< One launch, whatever completes.
  kFusedSkip,          ///< One launch that only saves.
};

/// Microseconds of one step of one compressor.
struct CompressorCost {
  CompressorKind kind;
  const char* step;  ///< save_only: no entry completes; boundary: every request completes one; prefill
  std::int64_t tokens;
  StepForm form;
  double eager_us, graph_us;
};

// clang-format off
inline constexpr CompressorCost kCompressorCosts[] = {
#include "bench/compressor_costs.inc"
};
// clang-format on

}  // namespace tamis::bench
