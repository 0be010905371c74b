#pragma once

// What one step of the model works on: a flattened batch of requests as a serving engine builds it (S-7.1).

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tamis/cache.hpp"
#include "tamis/compressor.hpp"
#include "tamis/tensor.hpp"

namespace tamis::model {

/// In which form keys are cached. kFloat32 is for parity with other implementations, kFloat8 is what production uses.
enum class KvPrecision : std::uint8_t { kFloat32, kBFloat16, kFloat8 };

/// Caches of one layer. What a layer's ratio does not need stays absent.
struct LayerCaches {
  PagedCache window;       ///< raw keys
  PagedCache compressed;   ///< ratio > 0: compressed keys
  TensorView state;        ///< ratio > 0: compressor state [pages, page rows, 2 * coff * head_dim] fp32
  PagedCache index_k;      ///< ratio 4: indexer keys
  TensorView index_state;  ///< ratio 4: state of the indexer's compressor
};

/// [requests, max_pages] physical pages of a cache group; -1 where a request has none.
struct PageTable {
  std::vector<std::int32_t> pages;
  std::int64_t max_pages = 0;
};

/// Everything a step says about layers of one compress ratio.
struct RatioTables {
  PageTable state_pages;
  std::vector<std::int64_t> state_slots;  ///< [tokens]
  std::vector<std::int64_t> kv_slots;     ///< [tokens]: slot of the entry that the token completes, else -1
  CompressPlan plan = CompressPlan::kUnknown;
};

/// One step: `tokens.size()` tokens of `query_start_loc.size() - 1` requests.
struct StepBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> token_to_request;
  std::vector<std::int32_t> query_start_loc;
  PageTable window_pages;
  std::vector<std::int64_t> window_slots;  ///< [tokens]
  PageTable compressed_pages;              ///< one table for C4, its indexer and C128: a page covers the same tokens
  RatioTables c4;
  RatioTables c128;
  std::vector<std::int64_t> logit_rows;  ///< token rows whose logits are wanted; one may come again

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_requests() const { return static_cast<std::int64_t>(query_start_loc.size()) - 1; }
};

/// Who chooses the compressed entries of a C4 layer.
struct Selection {
  std::int64_t topk = 0;   ///< entries a token attends to; 0: what the model says
  bool random = false;     ///< the control: random visible entries instead of the indexer's choice
  std::uint64_t seed = 0;  ///< of the random choice; a token's choice depends on seed, layer and position alone
};

/// Parts of a step, for timing.
enum class Stage : std::uint8_t { kEmbed, kHyper, kProject, kCompress, kIndex, kAttend, kOutput, kExperts, kHead };
inline constexpr std::array<std::string_view, 9> kStageNames = {"embed",      "hyper-connections", "projections",
                                                                "compressor", "indexer",           "sparse attention",
                                                                "output",     "experts",           "head"};

/// Seconds spent in each stage.
struct StageTimes {
  std::array<double, kStageNames.size()> seconds{};
};

/// Adds the time of its scope to a stage.
class StageTimer {
 public:
  StageTimer(StageTimes& times, Stage stage)
      : seconds_(times.seconds[static_cast<std::size_t>(stage)]), start_(std::chrono::steady_clock::now()) {}
  ~StageTimer() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_;
};

/// Sees intermediate tensors, for comparison with golden values. Names are those of golden files:
/// layers.N.attn_in, attn_out, ffn_out, out, index_q, index_k, index_scores, compressed_kv, topk.
/// topk is as wide as the model says or as entries are visible to the last token, whichever is less.
/// With an observer a step must hold one request from position 0, and index scores are computed densely.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void tensor(std::string_view name, ConstTensorView value) = 0;
};

}  // namespace tamis::model
