// `tamis explain topk`: the rules of the CPU, or with --gpu those of CUDA, on a machine with or without one.

#include <fmt/core.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "core/check.hpp"
#include "core/gpu_list.hpp"
#include "core/parallel.hpp"
#include "explain.hpp"
#include "options.hpp"
#include "output.hpp"
#include "tamis/topk.hpp"
#include "topk/rules.hpp"
#include "topk/support.hpp"

namespace tamis::cli {
namespace {

struct ExplainTopk {
  std::int64_t rows = 1, width = 0, k = 0;
  std::string dtype = "fp32", algorithm = "auto", order = "position";
  int threads = 1;
  bool json = false;

  bool gpu = false;
  std::optional<std::int64_t> sms, shared_bytes;
};

const std::map<std::string, DType> kScoreTypes = {
    {"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}};
const std::map<std::string, TopkOrder> kTopkOrders = {{"position", TopkOrder::kPosition},
                                                      {"by_value", TopkOrder::kByValue}};

// Every algorithm by its name.
const std::map<std::string, TopkAlgorithm>& topk_algorithms() {
  static const std::map<std::string, TopkAlgorithm> names = [] {
    std::map<std::string, TopkAlgorithm> all;
    for (int i = 0; i <= static_cast<int>(TopkAlgorithm::kCub); ++i) {
      const auto algorithm = static_cast<TopkAlgorithm>(i);
      all[topk_algorithm_name(algorithm)] = algorithm;
    }
    return all;
  }();
  return names;
}

// --- CPU -------------------------------------------------------------------------------------------------------------

void explain_on_cpu(const ExplainTopk& options, bool with_shape) {
  std::vector<RuleLine> rules;
  Json json = {{"op", "topk"}, {"device", "cpu"}};
  std::string text;
  const TopkRule* chosen = nullptr;
  if (with_shape) {
    // The choice looks at shapes only, so one byte stands for all memory.
    alignas(64) static std::byte nothing[64];
    TopkArgs args;
    args.scores = ConstTensorView(nothing, kScoreTypes.at(options.dtype), {options.rows, options.width});
    args.k = options.k;
    args.indices = TensorView(nothing, DType::kInt32, {options.rows, options.k});
    args.order = kTopkOrders.at(options.order);
    args.algorithm = topk_algorithms().at(options.algorithm);
    args.num_threads = options.threads;
    const TopkChoice choice = topk_choose(args);
    const std::size_t workspace = topk_workspace_bytes(args);
    for (const TopkRule& rule : topk_rules()) {
      if (rule.algorithm == choice.algorithm) chosen = &rule;
    }
    const int workers = core::num_workers(options.threads);
    json.update({{"rows", options.rows},
                 {"width", options.width},
                 {"k", options.k},
                 {"dtype", options.dtype},
                 {"order", options.order},
                 {"threads", workers},
                 {"algorithm", topk_algorithm_name(choice.algorithm)},
                 {"why", choice.why},
                 {"workspace_bytes", workspace}});
    text = fmt::format("topk of {} x {} {}, k {}: {}\n  {}\n  workspace: {} bytes with {} thread{}\n\n", options.rows,
                       options.width, options.dtype, options.k, topk_algorithm_name(choice.algorithm), choice.why,
                       workspace, workers, workers == 1 ? "" : "s");
  }
  for (const TopkRule& rule : topk_rules()) rules.push_back({rule.name, rule.limits, rule.why, &rule == chosen});
  json["rules"] = rules_json(rules);
  if (options.json) {
    print_out("{}\n", json.dump());
    return;
  }
  print_out("{}", text);
  print_rules(rules);
}

// --- CUDA ------------------------------------------------------------------------------------------------------------

// A GPU to explain, and whose numbers it has.
struct ExplainedGpu {
  TopkGpu gpu;
  std::string source;
};

ExplainedGpu explained_gpu(const ExplainTopk& options) {
  ExplainedGpu found{kTopkH200, ""};
  const int given = options.sms.has_value() + options.shared_bytes.has_value();
  if (given == 2) {
    found.source = "as given";
  } else {
    std::string why;
    if (const std::optional<TopkGpu> first = find_topk_gpu(0, why)) {
      found = {*first, "read from cuda:0, " + core::list_gpus().gpus.at(0).name};
    } else {
      found.source = "an H200's: " + why;
    }
    if (given > 0) found.source = "as given, the rest " + found.source;
  }
  found.gpu.num_sms = static_cast<int>(options.sms.value_or(found.gpu.num_sms));
  found.gpu.max_shared_bytes = options.shared_bytes.value_or(found.gpu.max_shared_bytes);
  return found;
}

void check_option(const char* name, std::int64_t value, std::int64_t most) {
  TAMIS_CHECK(value >= 0 && value <= most, Status::kInvalidArgument, "explain: ", name, " is ", value,
              ", must be in [0, ", most, "] on CUDA");
}

void explain_on_gpu(const ExplainTopk& options, bool with_shape) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 29;  // of a grid
  constexpr std::int64_t kMostColumns = std::numeric_limits<std::int32_t>::max();
  check_option("--rows", options.rows, kMostRows);
  check_option("--width", options.width, kMostColumns);
  check_option("--k", options.k, kMostColumns);
  const auto [gpu, source] = explained_gpu(options);
  Json json = {{"op", "topk"},
               {"device", "cuda"},
               {"gpu", {{"sms", gpu.num_sms}, {"shared_bytes", gpu.max_shared_bytes}, {"source", source}}}};
  std::string text = fmt::format("GPU: {} multiprocessors, {} bytes of shared memory a block ({})\n", gpu.num_sms,
                                 gpu.max_shared_bytes, source);
  const TopkCudaRule* chosen = nullptr;
  if (with_shape) {
    const TopkCase c{options.rows, options.width, options.k, kTopkOrders.at(options.order)};
    chosen = &topk_cuda_rule(c, topk_algorithms().at(options.algorithm), gpu);
    const TopkCudaLayout layout = topk_cuda_layout(c, chosen->algorithm, gpu);
    json.update({{"rows", options.rows},
                 {"width", options.width},
                 {"k", options.k},
                 {"dtype", options.dtype},
                 {"order", options.order},
                 {"algorithm", chosen->name},
                 {"why", chosen->why},
                 {"blocks_a_row", layout.blocks_per_row},
                 {"candidates_a_block", layout.capacity},
                 {"workspace_bytes", nullptr}});
    if (layout.workspace_bytes) json["workspace_bytes"] = *layout.workspace_bytes;
    text += fmt::format("topk of {} x {} {}, k {}{}: {}\n  {}\n  {} block{} a row", options.rows, options.width,
                        options.dtype, options.k, c.order == TopkOrder::kByValue ? ", by value" : "", chosen->name,
                        chosen->why, layout.blocks_per_row, layout.blocks_per_row == 1 ? "" : "s");
    if (layout.capacity > 0) text += fmt::format(", {} candidates a block", layout.capacity);
    text += layout.workspace_bytes       ? fmt::format("\n  workspace: {} bytes\n", *layout.workspace_bytes)
            : core::cuda_archs().empty() ? fmt::format("\n  workspace: not known, {}\n", core::kNoCudaInBuild)
                                         : "\n  workspace: not known without a GPU, CUB asks it\n";
  }
  std::vector<RuleLine> rules;
  for (const TopkCudaRule& rule : topk_cuda_rules()) {
    std::string limits = rule.limits;
    const std::int64_t max_k = topk_filter_max_k(gpu);
    if (rule.max_k == kTopkFilterK && max_k < topk_filter_max_k(kTopkH200)) {
      limits += fmt::format("; on this GPU k <= {}, for want of shared memory", max_k);
    }
    rules.push_back({rule.name, limits, rule.why, &rule == chosen, rule.measured});
  }
  json["rules"] = rules_json(rules);
  if (options.json) {
    print_out("{}\n", json.dump());
    return;
  }
  print_out("{}\n", text);
  print_rules(rules);
}

}  // namespace

void add_explain_topk(CLI::App* explain) {
  auto options = std::make_shared<ExplainTopk>();
  CLI::App* command = explain->add_subcommand("topk", "Which algorithm selects");
  command->footer(
      "--gpu explains CUDA's rules, on any machine: for its first GPU, or else for an H200, or for the numbers "
      "given.\n\n"
      "Examples:\n"
      "  tamis explain topk --rows 64 --width 65536 --k 512\n"
      "  tamis explain topk --gpu --rows 4 --width 131072 --k 2048 --sms 108 --shared-bytes "
      "166912");
  auto* rows =
      command->add_option("--rows", options->rows, "Rows of the scores")->type_name("N")->capture_default_str();
  auto* width = command->add_option("--width", options->width, "Scores a row")->type_name("N");
  auto* k = command->add_option("--k", options->k, "Winners a row")->type_name("K");
  auto* dtype = command->add_option("--dtype", options->dtype, "Of the scores: fp32, bf16, fp16")
                    ->check(CLI::IsMember(kScoreTypes))
                    ->type_name("TYPE")
                    ->capture_default_str();
  auto* order = command->add_option("--order", options->order, "Of the winners: position, by_value")
                    ->check(CLI::IsMember(kTopkOrders))
                    ->type_name("ORDER")
                    ->capture_default_str();
  auto* algorithm = command->add_option("--algorithm", options->algorithm, "Force one; says what speaks against it")
                        ->check(CLI::IsMember(topk_algorithms()))
                        ->type_name("NAME")
                        ->capture_default_str();
  for (auto* option : {rows, dtype, order, algorithm}) option->needs(width)->needs(k);  // parts of a shape
  auto* threads = add_threads(command, options->threads);
  add_json(command, options->json);
  auto* gpu = command->add_flag("--gpu", options->gpu, "The rules of CUDA")->excludes(threads);
  const auto add_fact = [&](const char* name, auto& value, const char* what, std::int64_t least) {
    command->add_option(name, value, what)->check(CLI::Range(least, std::int64_t{1} << 30))->type_name("N")->needs(gpu);
  };
  add_fact("--sms", options->sms, "Of the GPU: multiprocessors", 1);
  add_fact("--shared-bytes", options->shared_bytes, "Of the GPU: shared memory that a block may have", 0);
  command->callback([options, width, k] {
    const bool with_shape = shape_given({width, k});
    if (options->gpu) explain_on_gpu(*options, with_shape);
    else explain_on_cpu(*options, with_shape);
  });
}

}  // namespace tamis::cli
