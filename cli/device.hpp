#pragma once

// --device of the commands that run a model: where its top-k runs.

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/compressor_backend.hpp"
#include "engine/topk_backend.hpp"
#include "tamis/status.hpp"
#include "tamis/tensor.hpp"

namespace tamis::cli {

/// cpu, cuda or cuda:N; nothing for any other text.
inline std::optional<Device> parse_device(std::string_view text) {
  if (text == "cpu") return Device{};
  if (text == "cuda") return Device{Device::Kind::kCuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  const std::string_view number = text.substr(kPrefix.size());
  Device device{Device::Kind::kCuda, 0};
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), device.index);
  if (error != std::errc() || end != number.data() + number.size() || device.index < 0) return std::nullopt;
  return device;
}

inline std::string check_device(const std::string& text) {
  return parse_device(text) ? "" : "is " + text + ", must be cpu, cuda or cuda:N";
}

inline CLI::Option* add_device(CLI::App* app, std::string& text) {
  return app
      ->add_option("--device", text,
                   "Where the indexer's top-k and the compressors run: cpu, cuda, cuda:N. Never changes a result")
      ->check(CLI::Validator(check_device, ""))
      ->type_name("DEVICE")
      ->capture_default_str();
}

/// Null for the CPU. @throws Error with the option's name and the reason if the top-k cannot run there.
inline std::unique_ptr<model::TopkBackend> open_topk_backend(const std::string& text) {
  try {
    return engine::make_topk_backend(parse_device(text).value());
  } catch (const Error& error) {
    throw Error(error.status(), "--device " + text + ": " + error.what());
  }
}

/// The same for the compressors.
inline std::unique_ptr<model::CompressorBackend> open_compressor_backend(const std::string& text) {
  try {
    return engine::make_compressor_backend(parse_device(text).value());
  } catch (const Error& error) {
    throw Error(error.status(), "--device " + text + ": " + error.what());
  }
}

}  // namespace tamis::cli
