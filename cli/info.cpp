#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "commands.hpp"
#include "core/cpu_info.hpp"
#include "model/checkpoint.hpp"
#include "model/config.hpp"
#include "options.hpp"
#include "output.hpp"

namespace tamis::cli {
namespace {

struct InfoOptions {
  std::string model;
  bool json = false;
};

nlohmann::ordered_json machine_facts() {
  return {{"version", TAMIS_VERSION},
          {"cpu", core::cpu_name()},
          {"simd", core::simd_target()},
          {"threads", std::thread::hardware_concurrency()},
          {"cuda", "this binary has no CUDA kernels"}};
}

nlohmann::ordered_json model_facts(const std::string& directory) {
  const model::ModelConfig config = model::ModelConfig::open(directory);
  const model::Checkpoint checkpoint = model::Checkpoint::open(directory);
  std::map<std::string, std::int64_t> by_storage;
  std::int64_t parameters = 0;
  for (const std::string& name : checkpoint.names()) {
    const model::TensorInfo info = checkpoint.info(name);
    const std::int64_t count = model::element_count(info.shape);
    parameters += count;
    by_storage[model::storage_name(info.storage)] += count;
  }
  std::string ratios;
  for (const model::LayerConfig& layer : config.layers) {
    ratios += (ratios.empty() ? "" : " ") + std::to_string(layer.compress_ratio);
  }
  return {{"parameters", parameters},
          {"stored as", by_storage},
          {"layers", config.num_hidden_layers},
          {"compress ratios", ratios},
          {"hidden size", config.hidden_size},
          {"query heads", config.num_attention_heads},
          {"index heads", config.index_n_heads},
          {"index topk", config.index_topk},
          {"sliding window", config.sliding_window},
          {"experts", fmt::format("{} of {} and {} shared", config.num_experts_per_tok, config.n_routed_experts,
                                  config.n_shared_experts)},
          {"vocabulary", config.vocab_size},
          {"longest text", config.max_position_embeddings}};
}

void info(const InfoOptions& options) {
  nlohmann::ordered_json facts = machine_facts();
  if (!options.model.empty()) facts["model"] = model_facts(options.model);
  if (options.json) {
    print_out("{}\n", facts.dump());
    return;
  }
  const auto print = [](const nlohmann::ordered_json& object) {
    for (const auto& [key, value] : object.items()) {
      if (!value.is_object() || key == "stored as") {
        print_out("{:16} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
      }
    }
  };
  print(facts);
  if (facts.contains("model")) {
    print_out("\n");
    print(facts["model"]);
  }
}

}  // namespace

void add_info(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* command = app.add_subcommand("info", "Print what this machine and, with --model, a checkpoint offer");
  command->add_option("--model", options->model, "Folder of a checkpoint")
      ->check(CLI::Validator(check_path, ""))
      ->type_name("DIR");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] { info(*options); });
}

}  // namespace tamis::cli
