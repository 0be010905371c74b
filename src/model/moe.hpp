#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gemm/linear.hpp"
#include "model/buffer.hpp"
#include "model/checkpoint.hpp"
#include "model/config.hpp"

namespace tamis::model {

/// Puts the `count` experts of largest score + bias first in `order` ([experts], out), the largest in front; equal ones
/// by the lower expert, NaN after every number.
void choose_experts(std::span<const float> score, std::span<const float> bias, std::span<std::int32_t> order,
                    std::size_t count);

/// Mixture of experts (S-9.2): routed by token id (hash layers) or by score plus bias, and a shared expert.
class Moe {
 public:
  /// Reads PREFIXgate.*, PREFIXexperts.E.* and PREFIXshared_experts.*; prefix is "layers.N.ffn.".
  /// @throws Error kDataError naming folder, tensor and token if a hash table names an expert that is not there, or one
  ///         twice for a token.
  Moe(const Checkpoint& checkpoint, const std::string& prefix, const ModelConfig& config, bool hash_routed);

  /// @param x       [tokens, hidden], normed
  /// @param tokens  [count] token ids, for hash routing
  /// @param out     [count, hidden], out: sum over the chosen experts by ascending expert, then the shared one
  void forward(const float* x, const std::int32_t* tokens, std::int64_t count, float* out, int num_threads);

 private:
  struct Expert {
    gemm::Linear w1, w2, w3;
  };
  struct Choice {
    std::int64_t token;
    float weight;
  };
  Expert load_expert(const Checkpoint& checkpoint, const std::string& prefix) const;
  void route(const std::int32_t* tokens, std::int64_t count);
  void run(const Expert& expert, const float* x, const float* weights, std::int64_t count, float* out, int num_threads);

  std::int64_t hidden_, inter_, num_experts_, experts_per_token_;
  float scaling_, limit_;
  gemm::Linear gate_;
  std::vector<float> bias_;            // score routing: [experts]
  std::vector<std::int32_t> tid2eid_;  // hash routing: [vocab, experts_per_token]
  std::vector<Expert> experts_;
  std::vector<Expert> shared_;               // one or none
  std::vector<std::vector<Choice>> chosen_;  // by expert: who comes, ascending token
  Buffer<float> scores_, gathered_, weights_, gate_out_, up_out_, expert_out_;
};

}  // namespace tamis::model
