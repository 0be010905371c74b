#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "commands.hpp"
#include "core/check.hpp"
#include "device.hpp"
#include "engine/engine.hpp"
#include "model/tokenizer.hpp"
#include "options.hpp"
#include "output.hpp"

namespace tamis::cli {
namespace {

struct GenerateOptions {
  std::string model, prompt, prompt_file, kv_cache = "fp8", device = "cpu";
  bool from_file = false;
  std::int64_t max_new_tokens = 64, index_topk = 0, prefill_chunk = 512, companions = 0;
  double temperature = 0.0, top_p = 1.0;
  std::uint64_t seed = 0;
  int threads = 0;
  bool stats = false, ignore_eos = false;
};

// Far above what any model's limit lets through, far below what fills a memory.
constexpr std::size_t kMaxPromptBytes = 64U << 20;

// A pipe or device is as good as a file, so the limit is kept while reading.
std::string read_text(const std::string& path) {
  const auto check = [&](bool good) {
    const int error = errno;
    TAMIS_CHECK(good, Status::kDataError, "--prompt-file ", path,
                ": cannot be read: ", std::generic_category().message(error));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  check(file != nullptr);
  std::string text;
  std::array<char, 1 << 16> block;
  while (const std::size_t got = std::fread(block.data(), 1, block.size(), file.get())) {
    text.append(block.data(), got);
    TAMIS_CHECK(text.size() <= kMaxPromptBytes, Status::kDataError, "--prompt-file ", path, ": holds more than ",
                kMaxPromptBytes, " bytes");
  }
  check(std::ferror(file.get()) == 0);
  return text;
}

// Companions that find no room within this wait for each other.
constexpr std::int64_t kMaxSharedTokens = std::int64_t{1} << 20;

// One line on stderr that follows a long prompt; rewritten in place on a terminal, silent otherwise.
class PromptProgress {
 public:
  explicit PromptProgress(std::int64_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}
  void update(std::int64_t done) {
    if (!shown_ || total_ < 512 || finished_) return;
    print_err("\rreading the prompt: {} of {} tokens", done, total_);
    drawn_ = true;
  }
  void finish() {
    if (drawn_ && !finished_) print_err("\r{:60}\r", "");
    finished_ = true;
  }

 private:
  std::int64_t total_;
  bool shown_, drawn_ = false, finished_ = false;
};

// Other requests for the same steps: unequal lengths, arbitrary tokens, nothing of them is shown.
// They end at the model's limit, so that they never decide whether the request that is shown may run.
void add_companions(engine::Engine& engine, const GenerateOptions& options, const model::ModelConfig& model) {
  for (std::int64_t i = 0; i < options.companions; ++i) {
    engine::RequestSpec spec;
    const std::int64_t length = std::min<std::int64_t>(1 + (i * 37) % 200, model.max_position_embeddings);
    for (std::int64_t t = 0; t < length; ++t) {
      spec.prompt.push_back(static_cast<std::int32_t>((i * 7919 + t * 104729 + 5) % model.vocab_size));
    }
    spec.max_new_tokens = std::min(options.max_new_tokens + i % 5, model.max_position_embeddings - length);
    engine.add(std::move(spec));
  }
}

void print_stats(const engine::Engine& engine, double load_seconds, const model::TopkBackend* topk) {
  const engine::EngineStats& s = engine.stats();
  print_err("\nloaded the model in {:.2f} s, caches {:.1f} MB\n", load_seconds,
            static_cast<double>(engine.caches().bytes()) / 1e6);
  print_err("prompt  {:6} tokens in {:8.1f} ms, {:8.1f} tokens/s\n", s.prompt_tokens, s.prefill_seconds * 1e3,
            static_cast<double>(s.prompt_tokens) / std::max(s.prefill_seconds, 1e-9));
  // The first new token comes out of the last prompt step.
  print_err("decode  {:6} tokens in {:8.1f} ms, {:8.1f} tokens/s\n", s.decode_tokens, s.decode_seconds * 1e3,
            static_cast<double>(s.decode_tokens) / std::max(s.decode_seconds, 1e-9));
  print_err("{} steps; no entry to compress in {} (C4) and {} (C128) of them: only state was saved there\n", s.steps,
            s.c4_skipped, s.c128_skipped);
  print_err("indexer's top-k and compressors on {}\n", topk == nullptr ? "cpu" : topk->where());
  double total = 0;
  for (double seconds : s.stages.seconds) total += seconds;
  for (std::size_t i = 0; i < model::kStageNames.size(); ++i) {
    print_err("  {:18} {:9.2f} ms {:5.1f}%\n", model::kStageNames[i], s.stages.seconds[i] * 1e3,
              100.0 * s.stages.seconds[i] / std::max(total, 1e-9));
  }
}

void generate(const GenerateOptions& options) {
  const std::string text = options.from_file ? read_text(options.prompt_file) : options.prompt;
  const std::unique_ptr<model::TopkBackend> topk = open_topk_backend(options.device);
  const std::unique_ptr<model::CompressorBackend> compressor = open_compressor_backend(options.device);
  const auto start = std::chrono::steady_clock::now();
  const model::Tokenizer tokenizer = model::Tokenizer::open(options.model);
  const std::vector<std::int32_t> prompt = tokenizer.encode(text);
  model::Transformer transformer = model::Transformer::open(options.model);
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  engine::check_length(prompt_tokens, options.max_new_tokens, transformer.config());  // before memory is taken
  engine::EngineConfig config;
  config.kv_precision = kKvPrecisions.at(options.kv_cache);
  config.prefill_chunk = options.prefill_chunk;
  config.step_tokens = options.companions > 0 ? std::max<std::int64_t>(2048, options.prefill_chunk)
                                              : std::max<std::int64_t>(1, options.prefill_chunk);
  config.max_requests = 1 + options.companions;
  const std::int64_t own_tokens = prompt_tokens + options.max_new_tokens + 205;
  config.cache_tokens =
      std::clamp(own_tokens * config.max_requests, own_tokens, std::max(own_tokens, kMaxSharedTokens));
  config.selection.topk = options.index_topk;
  config.num_threads = options.threads;
  config.topk_backend = topk.get();
  config.compressor_backend = compressor.get();
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
  char last = '\n';  // of what was written: a text that does not end its line is followed by a newline
  const auto write = [&last](const std::string& piece) {
    if (!piece.empty()) last = piece.back();
    write_out(piece);
    flush_out();
  };
  spec.on_token = [&](std::int32_t token) {
    progress.finish();
    write(decoder.push(token));
  };
  const engine::RequestId id = engine.add(std::move(spec));
  add_companions(engine, options, transformer.config());
  while (const auto processed = engine.num_processed(id)) {
    progress.update(*processed);
    engine.step();
  }
  progress.finish();
  write(decoder.finish());
  if (last != '\n') write("\n");
  engine.run();
  if (options.stats) print_stats(engine, load_seconds, topk.get());
}

}  // namespace

void add_generate(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Write text with a model");
  command->footer(
      "The text goes to stdout as it comes, with a newline after it if it does not end in one; everything else goes "
      "to\n"
      "stderr.\n"
      "The same prompt gives the same tokens whatever --prefill-chunk, --threads, --companions and --device say.\n\n"
      "Examples:\n"
      "  tamis generate --model models/tiny-v4 --prompt-file models/tiny-v4/golden.txt --max-new-tokens 7 --kv-cache "
      "fp32\n"
      "  tamis generate --model models/tiny-v4 --prompt 'A cache keeps ' --temperature 0.8 --top-p 0.95 --seed 7 "
      "--stats");
  add_model(command, options->model);
  auto* prompt = command->add_option_group("prompt", "The text to continue; one of");
  prompt->add_option("--prompt", options->prompt, "Text")->type_name("TEXT");
  auto* prompt_file = prompt->add_option("--prompt-file", options->prompt_file, "File with the text, byte for byte")
                          ->check(CLI::Validator(check_path, ""))
                          ->type_name("F");
  prompt->require_option(1);
  command->add_option("--max-new-tokens", options->max_new_tokens, "Tokens to write at most")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--temperature", options->temperature,
                   "0 always takes the likeliest token; 1 samples as the model says")
      ->check(CLI::Validator(check_temperature, ""))
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--top-p", options->top_p, "Sample among the likeliest tokens that have this share together")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P")
      ->capture_default_str();
  add_seed(command, options->seed, "Of the sampling");
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
  add_device(command, options->device);
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on after the model's end token");
  command->add_flag("--stats", options->stats,
                    "Print times per stage, skipped compressions and where the top-k ran to stderr");
  command->callback([options, prompt_file] {
    options->from_file = prompt_file->count() > 0;
    generate(*options);
  });
}

}  // namespace tamis::cli
