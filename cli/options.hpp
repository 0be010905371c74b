#pragma once

// Options that several commands share.

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <system_error>

#include "model/step.hpp"

namespace tamis::cli {

inline const std::map<std::string, model::KvPrecision> kKvPrecisions = {{"fp32", model::KvPrecision::kFloat32},
                                                                        {"bf16", model::KvPrecision::kBFloat16},
                                                                        {"fp8", model::KvPrecision::kFloat8}};

// Empty text that stands for a path is a variable that was not set, rather than the current folder or nothing.
inline std::string check_path(const std::string& text) { return text.empty() ? "must not be empty" : ""; }

// CLI11 reads -1 as 2^64 - 1, and takes larger numbers for it.
inline std::string check_unsigned(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good ? "" : "is " + text + ", must be a whole number from 0 to 18446744073709551615";
}

// CLI11's own range check would print the largest double in 309 digits.
inline std::string check_temperature(const std::string& text) {
  double value = 0;
  const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0;
  return good ? "" : "is " + text + ", must be a number of at least 0";
}

inline CLI::Option* add_seed(CLI::App* app, std::uint64_t& seed, const char* what) {
  return app->add_option("--seed", seed, what)
      ->check(CLI::Validator(check_unsigned, ""))
      ->type_name("S")
      ->capture_default_str();
}

inline CLI::Option* add_model(CLI::App* app, std::string& directory) {
  return app->add_option("--model", directory, "Folder with config.json, safetensors and tokenizer.json")
      ->required()
      ->check(CLI::Validator(check_path, ""))
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
