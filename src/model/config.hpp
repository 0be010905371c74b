#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/ops.hpp"

namespace tamis::model {

/// What differs from layer to layer.
struct LayerConfig {
  int compress_ratio = 0;     ///< 0: sliding window only; 4: overlapping windows and an indexer; 128: no indexer.
  bool hash_routing = false;  ///< Experts come from the table tid2eid[token], not from the router's scores.

  bool has_compressor() const { return compress_ratio > 0; }
  bool has_indexer() const { return compress_ratio == 4; }
};

/// How the linear weights are stored. Reading goes by what the tensors are; this is what config.json announces.
struct QuantizationInfo {
  bool fp8 = false;          ///< Linears are e4m3 with one scale per block.
  int block_rows = 128;      ///< Rows (outputs) of a block that shares one scale.
  int block_columns = 128;   ///< Columns (inputs) of such a block.
  bool fp4_experts = false;  ///< Routed experts are e2m1 with one UE8M0 scale per 32 inputs.
};

/// A DeepSeek-V4 config.json, checked. Names are the file's. Symbols of S-1.1 in parentheses.
struct ModelConfig {
  int vocab_size = 0;
  int hidden_size = 0;  ///< (D)
  int num_hidden_layers = 0;
  int num_attention_heads = 0;  ///< (H) one shared key/value head
  int head_dim = 0;             ///< (d) rotary dims included
  int qk_rope_head_dim = 0;     ///< the last dims of a head; even
  int q_lora_rank = 0;
  int o_groups = 0;  ///< divides num_attention_heads
  int o_lora_rank = 0;
  int sliding_window = 0;  ///< (W) raw tokens visible, the query's own included

  int index_n_heads = 0;   ///< (Hi) 0 if no layer has an indexer and the file does not say
  int index_head_dim = 0;  ///< (di) likewise
  int index_topk = 0;      ///< (K) likewise

  double rms_norm_eps = 1e-6;

  int hc_mult = 0;  ///< residual streams
  int hc_sinkhorn_iters = 0;
  double hc_eps = 1e-6;

  int n_routed_experts = 0;
  int num_experts_per_tok = 0;
  int n_shared_experts = 0;  ///< 0 or 1
  int moe_intermediate_size = 0;
  double routed_scaling_factor = 1.0;
  double swiglu_limit = 0.0;  ///< 0: no clamp

  double rope_theta = 0.0;            ///< base where compress_ratio is 0; plain frequencies
  double compress_rope_theta = 0.0;   ///< base where compress_ratio is above 0
  RopeScaling compress_rope_scaling;  ///< YaRN of those layers; factor 1: plain frequencies

  std::vector<LayerConfig> layers;  ///< num_hidden_layers of them

  int max_position_embeddings = 0;
  int bos_token_id = -1;  ///< -1: none
  std::vector<int> eos_token_ids;
  int pad_token_id = -1;  ///< -1: none
  bool tie_word_embeddings = false;
  int num_nextn_predict_layers = 0;  ///< draft layers in the checkpoint; not part of `layers`

  QuantizationInfo quantization;

  /// Reads directory/config.json.
  /// @throws Error kDataError naming file, key, expected and got.
  static ModelConfig open(const std::filesystem::path& directory);

  /// Reads the text of a config.json in either dialect (S-1.2): the published one (compress_ratios, num_hash_layers,
  /// rope_scaling) or the one transformers writes (layer_types, compress_rates, mlp_layer_types, rope_parameters).
  /// @param name  What errors call the file.
  static ModelConfig parse(std::string_view text, const std::string& name);
};

}  // namespace tamis::model
