#include <fmt/core.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "commands.hpp"
#include "core/cpu_info.hpp"
#include "core/gpu_list.hpp"
#include "model/checkpoint.hpp"
#include "model/config.hpp"
#include "options.hpp"
#include "output.hpp"
#include "tamis/topk.hpp"

namespace tamis::cli {
namespace {

struct InfoOptions {
  std::string model;
  bool json = false;
};

// What the kernels were built for, the GPUs, and what of top-k runs on each; or why there are none.
nlohmann::ordered_json cuda_facts() {
  nlohmann::ordered_json facts;
  facts["built_for"] = core::cuda_archs();
  facts["gpus"] = nlohmann::ordered_json::array();
  const core::GpuList list = core::list_gpus();
  if (!list.why_none.empty()) facts["why_none"] = list.why_none;
  for (const core::GpuFacts& gpu : list.gpus) {
    nlohmann::ordered_json topk = nlohmann::ordered_json::array();
    for (const TopkSupport& entry : topk_support({Device::Kind::kCuda, gpu.index})) {
      topk.push_back(
          {{"algorithm", topk_algorithm_name(entry.algorithm)}, {"available", entry.available}, {"why", entry.why}});
    }
    facts["gpus"].push_back(
        {{"index", gpu.index},
         {"name", gpu.name},
         {"compute_capability", fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10)},
         {"sms", gpu.num_sms},
         {"topk", topk}});
  }
  return facts;
}

void print_cuda(const nlohmann::ordered_json& facts) {
  const auto text = [](const nlohmann::ordered_json& value) { return value.get<std::string>(); };
  const std::string archs = text(facts["built_for"]);
  print_out("{:16} {}\n", "cuda", archs.empty() ? core::kNoCudaInBuild : "kernels for sm " + archs);
  // A build without CUDA has said why already.
  if (facts.contains("why_none") && !archs.empty()) print_out("{:16} none: {}\n", "gpu", text(facts["why_none"]));
  for (const auto& gpu : facts["gpus"]) {
    print_out("{:16} {}, compute capability {}, {} multiprocessors\n", fmt::format("gpu {}", gpu["index"].get<int>()),
              text(gpu["name"]), text(gpu["compute_capability"]), gpu["sms"].get<int>());
    std::string names;
    std::map<std::string, std::string> missing;  // algorithms by the reason, which most often is one for all
    for (const auto& entry : gpu["topk"]) {
      std::string& list = entry["available"].get<bool>() ? names : missing[text(entry["why"])];
      list += (list.empty() ? "" : ", ") + text(entry["algorithm"]);
    }
    print_out("{:16} {}\n", "  top-k", names.empty() ? "none" : names);
    for (const auto& [why, list] : missing) print_out("{:16} {}: {}\n", "  without", list, why);
  }
}

nlohmann::ordered_json machine_facts() {
  return {{"version", TAMIS_VERSION},
          {"cpu", core::cpu_name()},
          {"simd", core::simd_target()},
          {"threads", std::thread::hardware_concurrency()},
          {"cuda", cuda_facts()}};
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
  print_cuda(facts["cuda"]);
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
