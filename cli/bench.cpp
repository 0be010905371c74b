#include <fmt/core.h>

#include <functional>
#include <map>
#include <memory>

#include "bench/ops.hpp"
#include "commands.hpp"
#include "options.hpp"
#include "output.hpp"

namespace tamis::cli {
namespace {

void print_line(const std::string& line) {
  print_out("{}\n", line);
  flush_out();  // a row is seen, and survives an interruption, as soon as it is measured
}

// Options of every benchmark; the session is made when the command runs.
struct BenchOptions {
  bench::Options session;
  bool cpu = false;
};

void add_common(CLI::App* command, const std::shared_ptr<BenchOptions>& options) {
  command->add_flag("--cpu", options->cpu, "Measure on the CPU: the default");
  add_threads(command, options->session.num_threads);
  command->add_flag("--json", options->session.json, "One JSON object a line instead of the table");
}

// Options of every operation, beyond those.
void add_cases(CLI::App* command, const std::shared_ptr<BenchOptions>& options) {
  command->add_option("--suite", options->session.suite, "Cases: targets (those with goals, minutes), smoke (a second)")
      ->check(CLI::IsMember({"targets", "smoke"}))
      ->type_name("SUITE")
      ->capture_default_str();
  command->add_option("--filter", options->session.filter, "Only cases whose name contains this, e.g. 'k 512'")
      ->type_name("SUBSTRING");
  command->add_option("--repeats", options->session.repeats, "Samples that the median is taken of")
      ->check(CLI::Range(15, 100000))
      ->type_name("N")
      ->capture_default_str();
}

void add_op(CLI::App* bench, int& exit_code, const char* name, const char* what, void (*run)(bench::Session&)) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = bench->add_subcommand(name, what);
  command->footer(std::string("Examples:\n  tamis bench ") + name + " --suite smoke\n  tamis bench " + name +
                  " --json > docs/measurements/" + name + "_cpu.jsonl");
  add_common(command, options);
  add_cases(command, options);
  command->callback([options, run, &exit_code] {
    bench::Session session(options->session, print_line);
    run(session);
    if (session.num_wrong() > 0) exit_code = 1;
  });
}

// What may be forced on the GPU.
const std::map<std::string, TopkAlgorithm> kGpuAlgorithms = {
    {"auto", TopkAlgorithm::kAuto}, {"registers", TopkAlgorithm::kRegisters}, {"stream", TopkAlgorithm::kStream},
    {"grid", TopkAlgorithm::kGrid}, {"select", TopkAlgorithm::kSelect},       {"cub", TopkAlgorithm::kCub}};

void add_topk(CLI::App* bench, int& exit_code) {
  struct Both {
    BenchOptions common;
    bool gpu = false, no_torch = false;
    std::string algorithm = "auto";
  };
  auto options = std::make_shared<Both>();
  CLI::App* command = bench->add_subcommand("topk", "Top-k selection");
  command->footer(
      "With --gpu, a time is that of one launch in a replayed CUDA graph; inputs are rotated past the L2.\n"
      "The floor is a kernel that only reads them. Distributions other than the normal one aim at 1.1 times its time.\n"
      "--json also has hot_us, the time without rotation. Rows of torch.topk follow where python3 has torch.\n\n"
      "Examples:\n"
      "  tamis bench topk --filter 'width 262144'\n"
      "  tamis bench topk --gpu --filter 'rows 64, width 131072'\n"
      "  tamis bench topk --gpu --algorithm grid --no-torch\n"
      "  tamis bench topk --gpu --json >> docs/measurements/topk_h200.jsonl");
  const auto common = std::shared_ptr<BenchOptions>(options, &options->common);
  add_common(command, common);
  auto* gpu = command->add_flag("--gpu", options->gpu, "Measure on the first GPU")->excludes("--cpu");
  command->add_option("--algorithm", options->algorithm, "Force one; cases that it cannot serve are left out")
      ->check(CLI::IsMember(kGpuAlgorithms))
      ->needs(gpu)
      ->type_name("NAME")
      ->capture_default_str();
  command->add_flag("--no-torch", options->no_torch, "Leave out torch.topk")->needs(gpu);
  add_cases(command, common);
  command->callback([options, &exit_code] {
    bench::Session session(options->common.session, print_line);
    if (options->gpu) bench::bench_topk_gpu(session, {kGpuAlgorithms.at(options->algorithm), !options->no_torch});
    else bench::bench_topk(session);
    if (session.num_wrong() > 0) exit_code = 1;
  });
}

void add_compressor(CLI::App* bench, int& exit_code) {
  struct Both {
    BenchOptions common;
    bool gpu = false;
  };
  auto options = std::make_shared<Both>();
  CLI::App* command =
      bench->add_subcommand("compressor", "One step of one compressor: save, pool, norm, rotate, quantise, store");
  command->footer(
      "With --gpu, every step is timed as three launches and as one, with and without the host's skip of steps that\n"
      "complete no entry and with the device's list, enqueued by the host (eager) and in a replayed CUDA graph.\n\n"
      "Examples:\n"
      "  tamis bench compressor --filter boundary\n"
      "  tamis bench compressor --gpu --suite targets --json > docs/measurements/compressor_h200.jsonl");
  const auto common = std::shared_ptr<BenchOptions>(options, &options->common);
  add_common(command, common);
  command->add_flag("--gpu", options->gpu, "Measure on the first GPU")->excludes("--cpu");
  add_cases(command, common);
  command->callback([options, &exit_code] {
    bench::Session session(options->common.session, print_line);
    if (options->gpu) bench::bench_compressor_gpu(session);
    else bench::bench_compressor(session);
    if (session.num_wrong() > 0) exit_code = 1;
  });
}

void add_engine(CLI::App* bench) {
  struct Both {
    BenchOptions common;
    bench::EngineOptions engine;
    std::string model, kv_cache = "fp32";
  };
  auto options = std::make_shared<Both>();
  CLI::App* command = bench->add_subcommand("engine", "A whole model: time a token and peak memory");
  command->footer(
      "The prompt is made up (a fixed pseudo-random sequence), so any length can be measured and other programs can "
      "run "
      "the same.\n\n"
      "Example: tamis bench engine --model models/tiny-v4 --context 65520 --new-tokens 16 --repeats 1 --kv-cache fp8");
  add_model(command, options->model);
  command->add_option("--context", options->engine.context, "Tokens of the prompt")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--new-tokens", options->engine.new_tokens, "Tokens to write after it")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--prefill-chunk", options->engine.prefill_chunk, "Prompt tokens a step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("N")
      ->capture_default_str();
  add_kv_cache(command, options->kv_cache);
  command->add_option("--repeats", options->engine.runs, "Whole runs; every decode step of each is a sample")
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->capture_default_str();
  auto common = std::shared_ptr<BenchOptions>(options, &options->common);
  add_common(command, common);
  command->callback([options] {
    options->common.session.repeats = options->engine.runs;
    options->engine.model = options->model;
    options->engine.kv_precision = kKvPrecisions.at(options->kv_cache);
    options->engine.kv_name = options->kv_cache.c_str();
    bench::Session session(options->common.session, print_line);
    bench::bench_engine(session, options->engine);
  });
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Time the operations beside their floors");
  command->require_subcommand(1);
  command->footer(
      "Every result is compared with the reference before it is timed; inputs are random. A row says what the machine "
      "allows at best\n"
      "(the floor, measured in the same run) and what is aimed at (the goal). `--json` gives lines to keep under "
      "docs/measurements.\n\n"
      "Examples:\n"
      "  tamis bench topk\n"
      "  tamis bench topk --filter 'width 262144' --json >> docs/measurements/topk_cpu.jsonl\n"
      "  tamis bench topk --gpu\n"
      "  tamis bench engine --model models/tiny-v4 --context 2048 --kv-cache fp32");
  add_topk(command, exit_code);
  add_compressor(command, exit_code);
  add_op(command, exit_code, "indexer", "Index scores, and scores with their selection", bench::bench_indexer);
  add_op(command, exit_code, "sparse_mla", "Attention over listed entries of two caches", bench::bench_sparse_mla);
  add_engine(command);
}

}  // namespace tamis::cli
