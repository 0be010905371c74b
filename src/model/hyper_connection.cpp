#include "model/hyper_connection.hpp"

#include <algorithm>
#include <cmath>

#include "core/parallel.hpp"

namespace tamis::model {
namespace {

constexpr std::int64_t kRowsAPiece = 16;  // rows a thread takes at a time

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

// rsqrt(mean(x^2) + eps). Eight partial sums in a fixed order: the loop vectorises and the bits do not depend on how.
float inverse_rms(const float* x, std::int64_t n, float eps) {
  float partial[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int lane = 0; lane < 8; ++lane) partial[lane] += x[i + lane] * x[i + lane];
  }
  float sum = 0;
  for (; i < n; ++i) sum += x[i] * x[i];
  for (float p : partial) sum += p;
  return 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
}

void weighted_sum(const float* streams, const float* weights, std::int64_t mult, std::int64_t hidden, float* out) {
  for (std::int64_t c = 0; c < hidden; ++c) out[c] = weights[0] * streams[c];
  for (std::int64_t i = 1; i < mult; ++i) {
    const float weight = weights[i];
    const float* stream = streams + i * hidden;
    for (std::int64_t c = 0; c < hidden; ++c) out[c] += weight * stream[c];
  }
}

// Softmax over rows, then alternating column and row normalisation; `a` is [n, n] row-major, in place.
void sinkhorn(float* a, std::int64_t n, std::int64_t iterations, float eps) {
  const auto normalise_columns = [&] {
    for (std::int64_t k = 0; k < n; ++k) {
      float sum = 0;
      for (std::int64_t j = 0; j < n; ++j) sum += a[j * n + k];
      for (std::int64_t j = 0; j < n; ++j) a[j * n + k] /= sum + eps;
    }
  };
  for (std::int64_t j = 0; j < n; ++j) {
    float* row = a + j * n;
    const float largest = *std::max_element(row, row + n);
    float sum = 0;
    for (std::int64_t k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - largest);
    for (std::int64_t k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
  normalise_columns();
  for (std::int64_t i = 1; i < iterations; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < n; ++k) sum += a[j * n + k];
      for (std::int64_t k = 0; k < n; ++k) a[j * n + k] /= sum + eps;
    }
    normalise_columns();
  }
}

}  // namespace

HyperConnection::HyperConnection(const Checkpoint& checkpoint, const std::string& prefix, const ModelConfig& config)
    : hidden_(config.hidden_size),
      mult_(config.hc_mult),
      sinkhorn_iters_(config.hc_sinkhorn_iters),
      rms_norm_eps_(static_cast<float>(config.rms_norm_eps)),
      hc_eps_(static_cast<float>(config.hc_eps)) {
  const std::int64_t mixes = 2 * mult_ + mult_ * mult_;
  fn_ = gemm::Linear(checkpoint.read_fp32(prefix + "_fn", {mixes, mult_ * hidden_}), mixes, mult_ * hidden_);
  base_ = checkpoint.read_fp32(prefix + "_base", {mixes});
  scale_ = checkpoint.read_fp32(prefix + "_scale", {3});
}

void HyperConnection::collapse(const float* streams, std::int64_t tokens, float* collapsed, int num_threads) {
  const std::int64_t width = mult_ * hidden_, mixes = 2 * mult_ + mult_ * mult_;
  mixed_ = mixes_.get(tokens * mixes);
  fn_(streams, tokens, mixed_, num_threads);
  core::parallel_for(tokens, kRowsAPiece, num_threads, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* m = mixed_ + t * mixes;
      const float factor = inverse_rms(streams + t * width, width, rms_norm_eps_);
      for (std::int64_t i = 0; i < mult_; ++i) {
        m[i] = sigmoid(m[i] * factor * scale_[0] + base_[static_cast<std::size_t>(i)]) + hc_eps_;
      }
      for (std::int64_t i = mult_; i < 2 * mult_; ++i) {
        m[i] = 2.0F * sigmoid(m[i] * factor * scale_[1] + base_[static_cast<std::size_t>(i)]);
      }
      for (std::int64_t i = 2 * mult_; i < mixes; ++i) {
        m[i] = m[i] * factor * scale_[2] + base_[static_cast<std::size_t>(i)];
      }
      sinkhorn(m + 2 * mult_, mult_, sinkhorn_iters_, hc_eps_);
      weighted_sum(streams + t * width, m, mult_, hidden_, collapsed + t * hidden_);
    }
  });
}

void HyperConnection::expand(const float* sublayer_out, std::int64_t tokens, float* streams, int num_threads) const {
  const std::int64_t width = mult_ * hidden_, mixes = 2 * mult_ + mult_ * mult_;
  // A piece of the streams of one token at a time, so that old and new values stay in registers and L1.
  constexpr std::int64_t kChannels = 64;
  core::parallel_for(tokens, kRowsAPiece, num_threads, [&](std::int64_t begin, std::int64_t end, int) {
    std::vector<float> old(static_cast<std::size_t>(mult_ * kChannels));
    for (std::int64_t t = begin; t < end; ++t) {
      const float* post = mixed_ + t * mixes + mult_;
      const float* mix = post + mult_;
      const float* u = sublayer_out + t * hidden_;
      float* x = streams + t * width;
      for (std::int64_t c0 = 0; c0 < hidden_; c0 += kChannels) {
        const std::int64_t n = std::min(kChannels, hidden_ - c0);
        for (std::int64_t j = 0; j < mult_; ++j) std::copy_n(x + j * hidden_ + c0, n, old.data() + j * kChannels);
        for (std::int64_t k = 0; k < mult_; ++k) {
          float* out = x + k * hidden_ + c0;
          for (std::int64_t c = 0; c < n; ++c) out[c] = post[k] * u[c0 + c];
          for (std::int64_t j = 0; j < mult_; ++j) {
            const float weight = mix[j * mult_ + k];
            const float* from = old.data() + j * kChannels;
            for (std::int64_t c = 0; c < n; ++c) out[c] += weight * from[c];
          }
        }
      }
    }
  });
}

HyperHead::HyperHead(const Checkpoint& checkpoint, const ModelConfig& config)
    : hidden_(config.hidden_size),
      mult_(config.hc_mult),
      rms_norm_eps_(static_cast<float>(config.rms_norm_eps)),
      hc_eps_(static_cast<float>(config.hc_eps)) {
  fn_ = gemm::Linear(checkpoint.read_fp32("hc_head_fn", {mult_, mult_ * hidden_}), mult_, mult_ * hidden_);
  base_ = checkpoint.read_fp32("hc_head_base", {mult_});
  scale_ = checkpoint.read_fp32("hc_head_scale", {1});
}

void HyperHead::collapse(const float* streams, std::int64_t tokens, float* collapsed, int num_threads) {
  const std::int64_t width = mult_ * hidden_;
  float* mixed = mixes_.get(tokens * mult_);
  fn_(streams, tokens, mixed, num_threads);
  for (std::int64_t t = 0; t < tokens; ++t) {
    float* m = mixed + t * mult_;
    const float factor = inverse_rms(streams + t * width, width, rms_norm_eps_);
    for (std::int64_t i = 0; i < mult_; ++i) {
      m[i] = sigmoid(m[i] * factor * scale_[0] + base_[static_cast<std::size_t>(i)]) + hc_eps_;
    }
    weighted_sum(streams + t * width, m, mult_, hidden_, collapsed + t * hidden_);
  }
}

}  // namespace tamis::model
