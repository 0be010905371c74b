// A whole model: one request reads a prompt and writes tokens, step by step.

#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "bench/ops.hpp"
#include "engine/engine.hpp"
#include "model/checkpoint.hpp"
#include "model/transformer.hpp"

namespace tamis::bench {
namespace {

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
#endif
}

// Bytes of the weights as the engine holds them: in fp32, whatever the files have.
std::int64_t weight_bytes(const std::filesystem::path& directory) {
  const model::Checkpoint checkpoint = model::Checkpoint::open(directory);
  std::int64_t count = 0;
  for (const std::string& name : checkpoint.names()) {
    count += model::element_count(checkpoint.info(name).shape);
  }
  return 4 * count;
}

struct RunResult {
  double prefill_us = 0;          // all prompt steps
  std::vector<double> decode_us;  // one a decode step
  std::vector<std::int32_t> tokens;
  std::int64_t cache_bytes = 0;
};

RunResult run_once(model::Transformer& transformer, const EngineOptions& options,
                   const std::vector<std::int32_t>& prompt, int num_threads) {
  engine::EngineConfig config;
  config.kv_precision = options.kv_precision;
  config.prefill_chunk = config.step_tokens = options.prefill_chunk;
  config.max_requests = 1;
  config.cache_tokens = options.context + options.new_tokens + 205;
  config.num_threads = num_threads;
  engine::Engine engine(transformer, config);
  RunResult result;
  engine::RequestSpec spec;
  spec.prompt = prompt;
  spec.max_new_tokens = options.new_tokens;
  spec.on_token = [&](std::int32_t token) { result.tokens.push_back(token); };
  engine.add(std::move(spec));
  for (bool more = true; more;) {
    const bool prefill = result.tokens.empty();
    const auto start = std::chrono::steady_clock::now();
    more = engine.step();
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    if (!more) break;
    if (prefill) result.prefill_us += us;
    else result.decode_us.push_back(us);
  }
  result.cache_bytes = engine.caches().bytes();
  return result;
}

}  // namespace

std::vector<std::int32_t> engine_prompt(std::int64_t tokens, std::int64_t vocab_size) {
  std::vector<std::int32_t> prompt;
  std::int64_t x = 12345;
  for (std::int64_t i = 0; i < tokens; ++i) {
    x = (1103515245 * x + 12345) % (std::int64_t{1} << 31);
    prompt.push_back(static_cast<std::int32_t>((x >> 16) % vocab_size));
  }
  return prompt;
}

void bench_engine(Session& session, const EngineOptions& options) {
  model::Transformer transformer = model::Transformer::open(options.model);
  engine::check_length(options.context, options.new_tokens, transformer.config());  // before memory is taken
  const std::vector<std::int32_t> prompt = engine_prompt(options.context, transformer.config().vocab_size);
  std::vector<double> prefill_us, decode_us;
  RunResult last;
  for (int run = 0; run < options.runs; ++run) {
    session.begin("engine run " + std::to_string(run + 1) + " of " + std::to_string(options.runs));
    last = run_once(transformer, options, prompt, session.num_threads());
    prefill_us.push_back(last.prefill_us / static_cast<double>(options.context));
    decode_us.insert(decode_us.end(), last.decode_us.begin(), last.decode_us.end());
  }
  // Read before the checkpoint is opened again to count its weights.
  const std::int64_t peak = peak_rss_bytes();
  const std::int64_t weights = weight_bytes(options.model);
  constexpr std::int64_t kAllowance =
      200'000'000;  // programs and libraries, activations, the checkpoint's mapped pages

  Row row;
  row.dtype = "fp32";
  row.shape = {{"context", options.context}, {"new_tokens", options.new_tokens}, {"chunk", options.prefill_chunk}};
  row.distribution = "uniform";
  row.algorithm = "engine";
  row.more = {{"kv_cache", options.kv_name},      {"model", options.model.filename().string()},
              {"peak_rss_bytes", peak},           {"peak_rss_goal_bytes", last.cache_bytes + weights + kAllowance},
              {"caches_bytes", last.cache_bytes}, {"weights_bytes", weights}};
  row.op = "engine_prefill";
  row.timing = summarise(prefill_us);
  session.row(row);
  if (!decode_us.empty()) {
    row.op = "engine_decode";
    row.timing = summarise(decode_us);
    row.more["tokens"] = last.tokens;
    session.row(row);
  }
  const auto mb = [](std::int64_t bytes) { return std::to_string(bytes / 1'000'000) + " MB"; };
  session.finish({"us per token of one request; prefill: median over runs, decode: over the steps of all runs",
                  "caches " + mb(last.cache_bytes) + " (" + options.kv_name + "), weights in fp32 " + mb(weights) +
                      ", peak memory " + mb(peak) +
                      ", goal: below caches + weights + 200 MB = " + mb(last.cache_bytes + weights + kAllowance) +
                      (peak < last.cache_bytes + weights + kAllowance ? ", met" : ", NOT met")});
}

}  // namespace tamis::bench
