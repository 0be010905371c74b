// Any bytes as a config.json: a config whose layers agree with its counts, or a data error.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config.hpp"
#include "tamis/status.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tamis::model::ModelConfig;
  try {
    const ModelConfig c = ModelConfig::parse({reinterpret_cast<const char*>(data), size}, "config.json");
    if (c.layers.size() != static_cast<std::size_t>(c.num_hidden_layers) || c.num_attention_heads % c.o_groups != 0) {
      std::abort();
    }
  } catch (const tamis::Error& e) {
    if (e.status() != tamis::Status::kDataError || std::string_view(e.what()).find('\n') != std::string_view::npos) {
      std::abort();
    }
  }
  return 0;
}
