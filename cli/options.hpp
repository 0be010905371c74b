#pragma once

// Options that several commands share.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>

#include "model/step.hpp"

namespace tamis::cli {

inline const std::map<std::string, model::KvPrecision> kKvPrecisions = {{"fp32", model::KvPrecision::kFloat32},
                                                                        {"bf16", model::KvPrecision::kBFloat16},
                                                                        {"fp8", model::KvPrecision::kFloat8}};

inline std::string kv_name(model::KvPrecision precision) {
  for (const auto& [name, value] : kKvPrecisions) {
    if (value == precision) return name;
  }
  return "?";
}

inline CLI::Option* add_model(CLI::App* app, std::string& directory) {
  return app->add_option("--model", directory, "Folder with config.json, safetensors and tokenizer.json")
      ->required()
      ->type_name("DIR");
}

inline CLI::Option* add_kv_cache(CLI::App* app, std::string& name) {
  return app->add_option("--kv-cache", name, "Form of the cached keys: fp32 (parity), bf16, fp8 (as served)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8"}))
      ->type_name("TYPE")
      ->capture_default_str();
}

inline CLI::Option* add_threads(CLI::App* app, int& num_threads) {
  return app->add_option("--threads", num_threads, "Threads; 0 uses all cores. Never changes a result")
      ->check(CLI::Range(0, 4096))
      ->type_name("N")
      ->capture_default_str();
}

}  // namespace tamis::cli
