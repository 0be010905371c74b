#pragma once

// Runs of the engine over the small model, for tests of what runs parts of a step elsewhere.

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "model/tokenizer.hpp"

namespace tamis::engine {

using model::KvPrecision;

inline const std::string kModel = TAMIS_SOURCE_DIR "/models/tiny-v4";

/// A host's block and that of a "device" which is the CPU with memory of its own, full of NaN and negative numbers when
/// new: what is not copied there does not arrive.
class CpuStage {
 public:
  std::byte* new_host_block(std::size_t bytes) { return renew(host_, bytes); }
  std::byte* new_device_block(std::size_t bytes) { return renew(device_, bytes); }
  void upload(std::size_t bytes) {
    ++num_uploads;
    std::memcpy(device_.get(), host_.get(), bytes);
  }
  void download(std::size_t offset, std::size_t bytes) {
    std::memcpy(host_.get() + offset, device_.get() + offset, bytes);
  }

  int num_blocks = 0, num_uploads = 0;

 private:
  struct Free {
    void operator()(std::byte* block) const { operator delete (block, std::align_val_t{256}); }
  };
  using Block = std::unique_ptr<std::byte, Free>;

  std::byte* renew(Block& block, std::size_t bytes) {
    ++num_blocks;
    block.reset(static_cast<std::byte*>(operator new (bytes, std::align_val_t{256})));
    std::memset(block.get(), 0xFF, bytes);
    return block.get();
  }

  Block host_, device_;
};

inline model::Transformer& tiny() {
  static model::Transformer transformer = model::Transformer::open(kModel);
  return transformer;
}

inline const std::vector<std::int32_t>& golden_prompt() {
  static const std::vector<std::int32_t> prompt = [] {
    std::ifstream file(kModel + "/golden.txt", std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return model::Tokenizer::open(kModel).encode(text.str());
  }();
  return prompt;
}

struct EngineCase {
  KvPrecision precision = KvPrecision::kFloat8;
  std::int64_t prefill_chunk = 64, companions = 0, topk = 0;
};

// Continues the golden prompt by 8 tokens, which look up a code told 680 tokens earlier.
inline std::vector<std::int32_t> tokens_of(const EngineCase& c, model::TopkBackend* topk,
                                           model::CompressorBackend* compressor = nullptr) {
  Engine engine(tiny(), {.kv_precision = c.precision,
                         .prefill_chunk = c.prefill_chunk,
                         .step_tokens = c.prefill_chunk + 100,
                         .cache_tokens = 16384,
                         .max_requests = 16,
                         .selection = {.topk = c.topk},
                         .num_threads = 1,
                         .topk_backend = topk,
                         .compressor_backend = compressor});
  std::vector<std::int32_t> tokens;
  engine.add(
      {.prompt = golden_prompt(), .max_new_tokens = 8, .on_token = [&](std::int32_t t) { tokens.push_back(t); }});
  for (std::int64_t i = 0; i < c.companions; ++i) {
    std::vector<std::int32_t> prompt = {0};
    for (std::int64_t t = 1; t < 1 + i * 53; ++t) prompt.push_back(static_cast<std::int32_t>(4 + (t * 7919 + i) % 256));
    engine.add({.prompt = prompt, .max_new_tokens = 3 + i, .on_token = [&](std::int32_t t) { tokens.push_back(t); }});
  }
  engine.run();
  return tokens;
}

inline std::vector<EngineCase> engine_cases() {
  std::vector<EngineCase> cases;
  for (const KvPrecision precision : {KvPrecision::kFloat32, KvPrecision::kBFloat16, KvPrecision::kFloat8}) {
    for (const std::int64_t chunk : {7, 64, 1000}) cases.push_back({precision, chunk, 0, 16});
  }
  cases.push_back({KvPrecision::kFloat8, 64, 9, 0});
  cases.push_back({KvPrecision::kFloat8, 300, 9, 16});
  return cases;
}

}  // namespace tamis::engine
