#pragma once

// A trace of requests through continuous batching, step by step, to see what a host's plan saves: how many launches of
// the compressors are made, skipped and wasted in each graph mode, and what they cost with measured times.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/compressor_costs.hpp"

namespace tamis::bench {

struct TraceRequest {
  double arrival_s = 0;  ///< after the first request of the trace
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;
};

/// Reads a CSV with a header that names the columns TIMESTAMP, ContextTokens and GeneratedTokens, as the public Azure
/// LLM inference traces have them, in any order and among others. Timestamps are "2023-11-16 18:17:03.9799600" (also
/// with T between date and time, a trailing Z or an offset) or seconds as a number.
/// @param most  Requests to keep; 0 keeps all.
/// @throws Error kInvalidArgument naming file, line and column of what cannot be read.
std::vector<TraceRequest> read_trace(const std::filesystem::path& file, std::int64_t most = 0);

struct ReplayOptions {
  std::int64_t max_requests = 256;  ///< running at once
  std::int64_t max_tokens = 2048;   ///< of a step, decode and prefill chunks together
  double step_ms = 30;              ///< of one step of the whole model
  std::int64_t c128_layers = 20;    ///< DeepSeek-V4-Flash
  std::int64_t c4_layers = 21;      ///< each with a main compressor and an indexer's
};

/// Launches of all layers over a whole replay.
struct ReplayLaunches {
  std::int64_t made = 0;
  std::int64_t skipped = 0;  ///< left out by the host, because no entry could complete
  std::int64_t wasted = 0;   ///< made to pool or to finish where no entry completed
  double us = 0;             ///< device and host together, as measured
};

struct ReplayForm {
  std::string mode;  ///< none, piecewise, full
  std::string form;  ///< three_launches, three_launches_skip, fused, fused_skip
  ReplayLaunches c128, c4;
};

struct ReplayResult {
  std::int64_t requests = 0, tokens = 0, steps = 0;
  double mean_batch = 0;              ///< requests a step
  std::int64_t c128_empty_steps = 0;  ///< steps that complete no entry
  std::int64_t c4_empty_steps = 0;
  std::vector<ReplayForm> forms;
};

/// Every request runs as in a serving engine: its prompt in chunks, then a token a step; running requests first, then
/// waiting ones in the order in which they came. The plan of each step is that of compress_plan().
ReplayResult replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options);

}  // namespace tamis::bench
