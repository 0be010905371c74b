#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/replay.hpp"
#include "commands.hpp"
#include "options.hpp"
#include "output.hpp"

namespace tamis::cli {
namespace {

struct Options {
  std::string trace;
  std::int64_t requests = 0;
  bench::ReplayOptions replay;
  bool json = false;
};

double share(std::int64_t part, std::int64_t all) {
  return all == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(all);
}

void print_table(const bench::ReplayResult& result, const Options& options) {
  print_out("{} requests, {} tokens in {} steps of {} ms, {:.1f} requests a step\n", result.requests, result.tokens,
            result.steps, options.replay.step_ms, result.mean_batch);
  print_out("steps that complete no entry: {} of C128 ({:.1f}%), {} of C4 ({:.1f}%)\n\n", result.c128_empty_steps,
            share(result.c128_empty_steps, result.steps), result.c4_empty_steps,
            share(result.c4_empty_steps, result.steps));
  print_out("{:<10} {:<20} {:<5} {:>11} {:>11} {:>11} {:>11} {:>10}\n", "graphs", "form", "ratio", "made", "skipped",
            "wasted", "ms", "us a step");
  for (const bench::ReplayForm& form : result.forms) {
    for (const auto& [ratio, launches] : {std::pair{"128", form.c128}, std::pair{"4", form.c4}}) {
      print_out("{:<10} {:<20} {:<5} {:>11} {:>11} {:>11} {:>11.1f} {:>10.1f}\n", form.mode, form.form, ratio,
                launches.made, launches.skipped, launches.wasted, launches.us / 1000,
                launches.us / static_cast<double>(std::max<std::int64_t>(1, result.steps)));
    }
  }
  print_out(
      "\nLaunches of {} C128 and {} C4 layers (main and indexer). skipped: left out by the host, which knows where "
      "requests stand;\nwasted: made to pool or to finish although nothing completed; the one launch of a fused step "
      "also "
      "saves and is never wasted.\nGraphs: none and piecewise, where the compressor is enqueued by the host at every "
      "step; full, where steps of one token a request\nare one graph and a skip cannot be kept. Times of a launch: "
      "H200, "
      "docs/measurements/compressor_h200.jsonl.\n",
      options.replay.c128_layers, options.replay.c4_layers);
}

void print_json(const bench::ReplayResult& result) {
  for (const bench::ReplayForm& form : result.forms) {
    for (const auto& [ratio, launches] : {std::pair{128, form.c128}, std::pair{4, form.c4}}) {
      const nlohmann::ordered_json line = {
          {"op", "replay"},
          {"requests", result.requests},
          {"tokens", result.tokens},
          {"steps", result.steps},
          {"mean_batch", result.mean_batch},
          {"empty_steps", ratio == 128 ? result.c128_empty_steps : result.c4_empty_steps},
          {"graphs", form.mode},
          {"form", form.form},
          {"ratio", ratio},
          {"made", launches.made},
          {"skipped", launches.skipped},
          {"wasted", launches.wasted},
          {"us", launches.us}};
      print_out("{}\n", line.dump());
    }
  }
}

}  // namespace

void add_replay(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("replay", "A request trace through the compressors' plan: launches and cost");
  command->footer(
      "Simulates continuous batching step by step: running requests first, a token each, then prompts in chunks. For "
      "every\n"
      "graph mode it says how many compressor launches are made, skipped by the host's plan, and made for nothing, and "
      "what\n"
      "they cost with launch times measured on an H200. The plan is the library's, the batching its own. Runs "
      "anywhere.\n\n"
      "The CSV names its columns in the first line: TIMESTAMP, ContextTokens, GeneratedTokens, as the public Azure "
      "LLM\n"
      "inference traces do (https://github.com/Azure/AzurePublicDataset); fields are not quoted.\n\n"
      "Examples:\n"
      "  tamis replay --trace bench/traces/synthetic.csv\n"
      "  tamis replay --trace AzureLLMInferenceTrace_code.csv --requests 2000 --max-requests 64");
  command->add_option("--trace", options->trace, "CSV of request arrivals with prompt and output token counts")
      ->required()
      ->check(CLI::Validator(check_path, ""))
      ->type_name("FILE");
  command->add_option("--requests", options->requests, "Only the first N lines of the trace; 0 takes all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--max-requests", options->replay.max_requests, "Requests that run at once")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--max-tokens", options->replay.max_tokens, "Most tokens of a step; at least as many as requests")
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--step-ms", options->replay.step_ms, "Milliseconds that a step of the whole model takes")
      ->check(CLI::Range(0.001, 1e6))
      ->type_name("MS")
      ->capture_default_str();
  command->add_option("--c128-layers", options->replay.c128_layers, "C128 layers; default: DeepSeek-V4-Flash")
      ->check(CLI::Range(0, 1000))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--c4-layers", options->replay.c4_layers, "C4 layers; default: DeepSeek-V4-Flash")
      ->check(CLI::Range(0, 1000))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object a line instead of the table");
  command->callback([options] {
    const bench::ReplayResult result =
        bench::replay(bench::read_trace(options->trace, options->requests), options->replay);
    if (options->json) print_json(result);
    else print_table(result, *options);
  });
}

}  // namespace tamis::cli
