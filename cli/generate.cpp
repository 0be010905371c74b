#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "commands.hpp"
#include "core/check.hpp"
#include "engine/engine.hpp"
#include "model/tokenizer.hpp"
#include "options.hpp"

namespace tamis::cli {
namespace {

struct GenerateOptions {
  std::string model, prompt, prompt_file, kv_cache = "fp8";
  std::int64_t max_new_tokens = 64, index_topk = 0, prefill_chunk = 512, companions = 0;
  double temperature = 0.0, top_p = 1.0;
  std::uint64_t seed = 0;
  int threads = 0;
  bool stats = false, ignore_eos = false;
};

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // An empty file sets failbit on the copy; only a file that cannot be opened or read is an error here.
  if (file) text << file.rdbuf();
  TAMIS_CHECK(file && !file.bad(), Status::kDataError, "--prompt-file ", path, ": cannot be read");
  return text.str();
}

// One line on stderr that follows a long prompt; rewritten in place on a terminal, silent otherwise.
class PromptProgress {
 public:
  explicit PromptProgress(std::int64_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}
  void update(std::int64_t done) {
    if (!shown_ || total_ < 512 || finished_) return;
    fmt::print(stderr, "\rreading the prompt: {} of {} tokens", done, total_);
    drawn_ = true;
    std::fflush(stderr);
  }
  void finish() {
    if (drawn_ && !finished_) fmt::print(stderr, "\r{:60}\r", "");
    finished_ = true;
  }

 private:
  std::int64_t total_;
  bool shown_, drawn_ = false, finished_ = false;
};

// Other requests for the same steps: unequal lengths, arbitrary tokens, nothing of them is shown.
void add_companions(engine::Engine& engine, const GenerateOptions& options, std::int32_t vocab_size) {
  for (std::int64_t i = 0; i < options.companions; ++i) {
    engine::RequestSpec spec;
    const std::int64_t length = 1 + (i * 37) % 200;
    for (std::int64_t t = 0; t < length; ++t) {
      spec.prompt.push_back(static_cast<std::int32_t>((i * 7919 + t * 104729 + 5) % vocab_size));
    }
    spec.max_new_tokens = options.max_new_tokens + i % 5;
    engine.add(std::move(spec));
  }
}

void print_stats(const engine::Engine& engine, double load_seconds) {
  const engine::EngineStats& s = engine.stats();
  fmt::print(stderr, "\nloaded the model in {:.2f} s, caches {:.1f} MB\n", load_seconds,
             static_cast<double>(engine.caches().bytes()) / 1e6);
  fmt::print(stderr, "prompt  {:6} tokens in {:8.1f} ms, {:8.1f} tokens/s\n", s.prompt_tokens, s.prefill_seconds * 1e3,
             static_cast<double>(s.prompt_tokens) / std::max(s.prefill_seconds, 1e-9));
  // The first new token comes out of the last prompt step.
  const std::int64_t decoded = std::max<std::int64_t>(s.decode_tokens, 0);
  fmt::print(stderr, "decode  {:6} tokens in {:8.1f} ms, {:8.1f} tokens/s\n", decoded, s.decode_seconds * 1e3,
             static_cast<double>(decoded) / std::max(s.decode_seconds, 1e-9));
  fmt::print(stderr, "{} steps; no entry to compress in {} (C4) and {} (C128) of them: only state was saved there\n",
             s.steps, s.c4_skipped, s.c128_skipped);
  double total = 0;
  for (double seconds : s.stages.seconds) total += seconds;
  for (std::size_t i = 0; i < model::kStageNames.size(); ++i) {
    fmt::print(stderr, "  {:18} {:9.2f} ms {:5.1f}%\n", model::kStageNames[i], s.stages.seconds[i] * 1e3,
               100.0 * s.stages.seconds[i] / std::max(total, 1e-9));
  }
}

void generate(const GenerateOptions& options) {
  const std::string text = options.prompt_file.empty() ? options.prompt : read_text(options.prompt_file);
  const auto start = std::chrono::steady_clock::now();
  const model::Tokenizer tokenizer = model::Tokenizer::open(options.model);
  const std::vector<std::int32_t> prompt = tokenizer.encode(text);
  model::Transformer transformer = model::Transformer::open(options.model);
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  engine::EngineConfig config;
  config.kv_precision = kKvPrecisions.at(options.kv_cache);
  config.prefill_chunk = options.prefill_chunk;
  config.step_tokens = options.companions > 0 ? std::max<std::int64_t>(2048, options.prefill_chunk)
                                              : std::max<std::int64_t>(1, options.prefill_chunk);
  config.max_requests = 1 + options.companions;
  config.cache_tokens = (prompt_tokens + options.max_new_tokens + 205) * config.max_requests;
  config.selection.topk = options.index_topk;
  config.num_threads = options.threads;
  engine::Engine engine(transformer, config);

  engine::RequestSpec spec;
  spec.prompt = prompt;
  spec.max_new_tokens = options.max_new_tokens;
  spec.sampling = {options.temperature, options.top_p, options.seed};
  if (!options.ignore_eos) {
    const auto& eos = transformer.config().eos_token_ids;
    spec.stop_tokens.assign(eos.begin(), eos.end());
  }
  PromptProgress progress(prompt_tokens);
  model::StreamDecoder decoder(tokenizer);
  const auto write = [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  spec.on_token = [&](std::int32_t token) {
    progress.finish();
    write(decoder.push(token));
  };
  const engine::RequestId id = engine.add(std::move(spec));
  add_companions(engine, options, transformer.config().vocab_size);
  while (const auto processed = engine.num_processed(id)) {
    progress.update(*processed);
    engine.step();
  }
  progress.finish();
  write(decoder.finish());
  engine.run();
  if (options.stats) print_stats(engine, load_seconds);
}

}  // namespace

void add_generate(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Write text with a model");
  command->footer(
      "The text goes to stdout as it comes; everything else goes to stderr.\n"
      "The same prompt gives the same tokens whatever --prefill-chunk, --threads and --companions say.\n\n"
      "Examples:\n"
      "  tamis generate --model models/tiny-v4 --prompt-file models/tiny-v4/golden.txt --max-new-tokens 7 --kv-cache "
      "fp32\n"
      "  tamis generate --model models/tiny-v4 --prompt 'A cache keeps ' --temperature 0.8 --top-p 0.95 --seed 7 "
      "--stats");
  add_model(command, options->model);
  auto* prompt = command->add_option_group("prompt", "The text to continue; one of");
  prompt->add_option("--prompt", options->prompt, "Text")->type_name("TEXT");
  prompt->add_option("--prompt-file", options->prompt_file, "File with the text, taken byte for byte")->type_name("F");
  prompt->require_option(1);
  command->add_option("--max-new-tokens", options->max_new_tokens, "Tokens to write at most")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--temperature", options->temperature,
                   "0 always takes the likeliest token; 1 samples as the model says")
      ->check(CLI::NonNegativeNumber)
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--top-p", options->top_p, "Sample among the likeliest tokens that have this share together")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the sampling")->type_name("S")->capture_default_str();
  command
      ->add_option("--index-topk", options->index_topk, "Compressed entries a token attends to; 0: what the model says")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
      ->type_name("K")
      ->capture_default_str();
  add_kv_cache(command, options->kv_cache);
  command->add_option("--prefill-chunk", options->prefill_chunk, "Prompt tokens a step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--companions", options->companions,
                   "Run N made-up requests in the same steps; shows that they change nothing")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1024}))
      ->type_name("N")
      ->capture_default_str();
  add_threads(command, options->threads);
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on after the model's end token");
  command->add_flag("--stats", options->stats, "Print times per stage and skipped compressions to stderr");
  command->callback([options] { generate(*options); });
}

}  // namespace tamis::cli
