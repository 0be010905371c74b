#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gemm/linear.hpp"
#include "model/buffer.hpp"
#include "model/checkpoint.hpp"
#include "model/config.hpp"

namespace tamis::model {

/// Manifold hyper-connections around one sublayer (S-9.1): the residual is `hc_mult` streams; a sublayer sees a
/// weighted sum of them, and its output goes back into all of them next to a doubly stochastic mix of the old ones.
class HyperConnection {
 public:
  /// Reads PREFIX_fn, PREFIX_base and PREFIX_scale.
  HyperConnection(const Checkpoint& checkpoint, const std::string& prefix, const ModelConfig& config);

  /// y = sum_i pre_i X_i, and remembers post and mix for expand().
  /// @param streams    [tokens, hc_mult, hidden]
  /// @param collapsed  [tokens, hidden], out
  void collapse(const float* streams, std::int64_t tokens, float* collapsed, int num_threads);

  /// X'_k = post_k * u + sum_j mix[j][k] * X_j, in place.
  /// @param sublayer_out  [tokens, hidden]
  void expand(const float* sublayer_out, std::int64_t tokens, float* streams, int num_threads) const;

 private:
  std::int64_t hidden_, mult_, sinkhorn_iters_;
  float rms_norm_eps_, hc_eps_;
  gemm::Linear fn_;
  std::vector<float> base_, scale_;
  Buffer<float> mixes_;  // [tokens, 2 * mult + mult * mult]: raw, then pre | post | mix
  float* mixed_ = nullptr;
};

/// The head's own weighted sum of the streams: sigmoid weights only.
class HyperHead {
 public:
  HyperHead(const Checkpoint& checkpoint, const ModelConfig& config);
  void collapse(const float* streams, std::int64_t tokens, float* collapsed, int num_threads);

 private:
  std::int64_t hidden_, mult_;
  float rms_norm_eps_, hc_eps_;
  gemm::Linear fn_;
  std::vector<float> base_, scale_;
  Buffer<float> mixes_;
};

}  // namespace tamis::model
