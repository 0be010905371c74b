#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "model/attention.hpp"
#include "model/checkpoint.hpp"
#include "model/compressor_backend.hpp"
#include "model/config.hpp"
#include "model/hyper_connection.hpp"
#include "model/moe.hpp"
#include "model/step.hpp"
#include "model/topk_backend.hpp"

namespace tamis::model {

/// A DeepSeek-V4 model: weights and the forward pass of one step, in fp32 on the CPU, through the operations of
/// include/tamis; the indexer's selection may run elsewhere. Knows nothing of requests and pages beyond what a
/// StepBatch says.
///
/// A token's result does not depend on the other tokens of the step, nor on how its prompt was split into steps: the
/// operations promise it, products do (gemm::Linear), and the rest works row by row.
class Transformer {
 public:
  /// Reads config.json and the weights. @throws Error kDataError naming file, tensor, expected and got.
  static Transformer open(const std::filesystem::path& directory);
  Transformer(const Checkpoint& checkpoint, const ModelConfig& config);

  const ModelConfig& config() const { return config_; }

  struct StepOptions {
    Selection selection;
    KvPrecision kv_precision = KvPrecision::kFloat32;
    Observer* observer = nullptr;
    TopkBackend* topk_backend = nullptr;  ///< who runs the indexer's selection; null: index_topk() on the CPU
    CompressorBackend* compressor_backend = nullptr;  ///< who runs the compressors; null: compress() on the CPU
    int num_threads = 0;
  };

  /// Runs one step: writes the caches and returns the logits.
  /// @param caches  One a layer.
  /// @param logits  [batch.logit_rows.size(), vocab_size], out.
  /// @throws Error kInvalidArgument if a token id or position is outside the model's range, or a row of logits
  ///         outside the step.
  void forward(const StepBatch& batch, std::span<const LayerCaches> caches, const StepOptions& options, float* logits,
               StageTimes& times);

 private:
  struct Layer {
    Layer(const Checkpoint& checkpoint, const ModelConfig& config, int number);
    std::vector<float> attn_norm, ffn_norm;
    HyperConnection attn_connection, ffn_connection;
    Attention attention;
    Moe moe;
  };

  void grow_rope_tables(std::int64_t positions);
  StepIndices make_indices(const StepBatch& batch, std::span<const LayerCaches> caches) const;

  ModelConfig config_;
  std::vector<float> embedding_, norm_;
  std::vector<Layer> layers_;
  HyperHead hyper_head_;
  gemm::Linear head_;
  std::vector<float> plain_rope_, compressed_rope_;  // [rope_positions_, 64]; grown as positions come
  std::int64_t rope_positions_ = 0;
  Buffer<float> streams_, collapsed_, sublayer_out_, picked_;
};

}  // namespace tamis::model
