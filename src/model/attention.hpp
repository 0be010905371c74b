#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gemm/linear.hpp"
#include "model/buffer.hpp"
#include "model/checkpoint.hpp"
#include "model/compressor_backend.hpp"
#include "model/config.hpp"
#include "model/step.hpp"
#include "model/topk_backend.hpp"

namespace tamis::model {

/// What all layers of a step share: who attends to which raw keys, and the C128 lists.
struct StepIndices {
  std::vector<std::int32_t> window_slots;  ///< [tokens, window_width] oldest to newest, -1 after
  std::int64_t window_width = 0;           ///< the longest of window_lens
  std::vector<std::int32_t> window_lens;   ///< [tokens]
  std::vector<std::int32_t> c128_slots;    ///< [tokens, c128_width] visible C128 entries
  std::vector<std::int32_t> c128_lens;     ///< [tokens]
  std::int64_t c128_width = 0;
  std::vector<std::int32_t> c4_ends;  ///< [tokens] visible C4 entries
  std::int64_t c4_columns = 0;        ///< the largest of them
};

/// Rotary tables, [max positions, 64] fp32 each.
struct RopeTables {
  ConstTensorView plain;       ///< layers without compression
  ConstTensorView compressed;  ///< everything in layers with it
};

/// Entries a page of the compressed caches holds: a page covers kPageTokens tokens in each of them.
inline constexpr std::int64_t kPageTokens = 256;

/// One attention layer (S-2): projections, compressor, indexer, sparse attention, output projection.
class Attention {
 public:
  /// Reads layers.N.attn.*.
  Attention(const Checkpoint& checkpoint, const ModelConfig& config, int layer);

  struct Context {
    const StepBatch& batch;
    const StepIndices& indices;
    const RopeTables& rope;
    const LayerCaches& caches;
    const Selection& selection;
    bool hadamard;  ///< rotate indexer vectors before they are quantised
    StageTimes& times;
    Observer* observer;
    TopkBackend* topk_backend;              ///< null: index_topk() on the CPU
    CompressorBackend* compressor_backend;  ///< null: compress() on the CPU
    int num_threads;
  };

  /// @param x    [tokens, hidden], normed
  /// @param out  [tokens, hidden], out
  void forward(const float* x, float* out, const Context& context);

 private:
  struct Compressor {
    Compressor(const Checkpoint& checkpoint, const std::string& prefix, std::int64_t hidden, std::int64_t head_dim,
               std::int64_t ratio);
    void forward(const float* x, const Context& context, const PagedCache& cache, const TensorView& state,
                 bool hadamard, float rms_norm_eps);

    std::int64_t ratio, coff, head_dim;
    gemm::Linear wkv, wgate;
    std::vector<float> ape, norm;
    Buffer<float> kv, gate;
    Buffer<std::byte> workspace;
  };
  struct Indexer {
    gemm::Linear wq_b, weights_proj;
    Compressor compressor;
    Buffer<float> q, weights, folded_weights;
    Buffer<std::byte> packed_q, workspace;
    Buffer<std::int32_t> slots;
  };

  void select(const float* x, const float* q_lora, const Context& context);
  void select_at_random(const Context& context, std::int64_t topk);
  void observe_compressed(const Context& context, const PagedCache& cache, const std::string& name);
  std::string tensor_name(const char* name) const;

  int layer_;
  std::int64_t ratio_, hidden_, heads_, head_dim_, q_lora_, groups_, o_lora_, index_heads_, index_topk_;
  float eps_;
  gemm::Linear wq_a_, wq_b_, wkv_, wo_b_;
  std::vector<gemm::Linear> wo_a_;  // by output group
  std::vector<float> q_norm_, kv_norm_, sink_;
  std::optional<Compressor> compressor_;
  std::optional<Indexer> indexer_;
  Buffer<float> q_lora_buffer_, q_, kv_, attended_, latent_;
  Buffer<std::byte> workspace_;
  std::int32_t* selected_slots_ = nullptr;  // [tokens, selected_width_] of this step
  std::int64_t selected_width_ = 0;
};

}  // namespace tamis::model
