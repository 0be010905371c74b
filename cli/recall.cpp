#include <fmt/core.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "commands.hpp"
#include "device.hpp"
#include "engine/recall.hpp"
#include "options.hpp"
#include "output.hpp"

namespace tamis::cli {
namespace {

struct RecallOptions {
  std::string model;
  std::vector<std::int64_t> lengths = {512, 2048}, topk = {8, 16, 64};
  std::string kv_cache = "fp8", device = "cpu";
  std::int64_t trials = 4;
  std::uint64_t seed = 0;
  int threads = 0;
  bool random_selection = false, json = false;
};

void recall(const RecallOptions& options) {
  const std::unique_ptr<model::TopkBackend> topk_backend = open_topk_backend(options.device);
  const std::unique_ptr<model::CompressorBackend> compressor_backend = open_compressor_backend(options.device);
  const model::Tokenizer tokenizer = model::Tokenizer::open(options.model);
  model::Transformer transformer = model::Transformer::open(options.model);
  // Whatever is wrong with a length is said before a line of the table is there.
  for (const std::int64_t length : options.lengths) {
    engine::check_length(length, 0, transformer.config());
    engine::make_recall_text(tokenizer, length, engine::recall_text_seed(options.seed, 0));
  }
  const char* selection = options.random_selection ? "random" : "indexer";
  const bool terminal = isatty(STDERR_FILENO) != 0;
  bool header_due = !options.json;  // with the first row, so that a run that fails before it prints nothing
  for (const std::int64_t length : options.lengths) {
    for (const std::int64_t topk : options.topk) {
      engine::EngineConfig config;
      config.kv_precision = kKvPrecisions.at(options.kv_cache);
      config.selection = {.topk = topk, .random = options.random_selection, .seed = options.seed};
      config.num_threads = options.threads;
      config.topk_backend = topk_backend.get();
      config.compressor_backend = compressor_backend.get();
      const auto progress = [&](std::int64_t done) {
        if (!terminal) return;
        print_err("\rlength {}, topk {}: text {} of {} ", length, topk, done, options.trials);
        if (done == options.trials) print_err("\r{:60}\r", "");
      };
      const engine::RecallResult result =
          engine::measure_recall(transformer, tokenizer, config, length, options.trials, options.seed, progress);
      const double share = static_cast<double>(result.right) / static_cast<double>(result.digits);
      if (header_due) {
        print_out("{:>8} {:>6} {:>8} {:>10} {:>7} {:>7} {:>7}\n", "length", "topk", "kv cache", "selection", "digits",
                  "right", "share");
        header_due = false;
      }
      if (options.json) {
        print_out("{}\n", nlohmann::json({{"length", length},
                                          {"topk", topk},
                                          {"kv_cache", options.kv_cache},
                                          {"selection", selection},
                                          {"digits", result.digits},
                                          {"right", result.right},
                                          {"share", share}})
                              .dump());
      } else {
        print_out("{:8} {:6} {:>8} {:>10} {:7} {:7} {:6.1f}%\n", length, topk, options.kv_cache, selection,
                  result.digits, result.right, 100.0 * share);
      }
      flush_out();
    }
  }
}

}  // namespace

void add_recall(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<RecallOptions>();
  CLI::App* command = app.add_subcommand("recall", "Measure whether a model finds codes in long texts");
  command->footer(
      "Each text tells up to eight codes in prose and asks for them at its end. A digit is right when the model finds "
      "it\n"
      "likeliest with the text before it given. --random-selection replaces the indexer's choice by random entries: "
      "the\n"
      "control that shows how much the selection matters.\n\n"
      "Example: tamis recall --model models/tiny-v4 --lengths 512,2048,8192 --topk 8,16,64");
  add_model(command, options->model);
  command->add_option("--lengths", options->lengths, "Tokens of a text, at least 256")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{256}, std::int64_t{1} << 30))
      ->type_name("N,N,...")
      ->capture_default_str();
  command->add_option("--topk", options->topk, "Compressed entries a token attends to")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("K,K,...")
      ->capture_default_str();
  add_kv_cache(command, options->kv_cache);
  command->add_option("--trials", options->trials, "Texts for each length and topk")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("N")
      ->capture_default_str();
  add_seed(command, options->seed, "Of the texts and of the random selection");
  command->add_flag("--random-selection", options->random_selection, "The control: attend to random entries");
  add_threads(command, options->threads);
  add_device(command, options->device);
  command->add_flag("--json", options->json,
                    "One JSON object a line: length, topk, kv_cache, selection, digits, right, share");
  command->callback([options] { recall(*options); });
}

}  // namespace tamis::cli
