#include "model/moe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.hpp"
#include "core/parallel.hpp"
#include "model/json_file.hpp"

namespace tamis::model {
namespace {

constexpr std::int64_t kRowsAPiece = 16;  // rows a thread takes at a time

// sqrt(log(1 + e^x)); for large x softplus is x itself to fp32 precision.
float sqrt_softplus(float x) { return std::sqrt(x > 20.0F ? x : std::log1p(std::exp(x))); }

}  // namespace

void choose_experts(std::span<const float> score, std::span<const float> bias, std::span<std::int32_t> order,
                    std::size_t count) {
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](std::int32_t e) {
    return score[static_cast<std::size_t>(e)] + bias[static_cast<std::size_t>(e)];
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float rank_a = rank(a), rank_b = rank(b);
                      // Without a place of its own NaN would make this no order, and sorting by it undefined.
                      if (std::isnan(rank_a) != std::isnan(rank_b)) return std::isnan(rank_b);
                      return rank_a > rank_b || (!(rank_a < rank_b) && a < b);
                    });
}

Moe::Moe(const Checkpoint& checkpoint, const std::string& prefix, const ModelConfig& config, bool hash_routed)
    : hidden_(config.hidden_size),
      inter_(config.moe_intermediate_size),
      num_experts_(config.n_routed_experts),
      experts_per_token_(config.num_experts_per_tok),
      scaling_(static_cast<float>(config.routed_scaling_factor)),
      limit_(config.swiglu_limit > 0 ? static_cast<float>(config.swiglu_limit)
                                     : std::numeric_limits<float>::infinity()) {
  gate_ = gemm::Linear(checkpoint.read_fp32(prefix + "gate.weight", {num_experts_, hidden_}), num_experts_, hidden_);
  if (hash_routed) {
    const std::string name = prefix + "gate.tid2eid";
    const std::string where = checkpoint.directory().string() + ": tensor " + quote(name);
    for (std::int64_t expert : checkpoint.read_int(name, {config.vocab_size, experts_per_token_})) {
      const auto place = static_cast<std::int64_t>(tid2eid_.size());
      const std::int64_t token = place / experts_per_token_, taken = place % experts_per_token_;
      TAMIS_CHECK(expert >= 0 && expert < num_experts_, Status::kDataError, where, ": token ", token,
                  ": expected experts in [0, ", num_experts_, "), got ", expert);
      // An expert's share of a step is at most the step's tokens, and a token's weights belong to different experts.
      TAMIS_CHECK(std::find(tid2eid_.end() - taken, tid2eid_.end(), expert) == tid2eid_.end(), Status::kDataError,
                  where, ": token ", token, ": expected different experts, got ", expert, " twice");
      tid2eid_.push_back(static_cast<std::int32_t>(expert));
    }
  } else {
    bias_ = checkpoint.read_fp32(prefix + "gate.bias", {num_experts_});
  }
  for (std::int64_t e = 0; e < num_experts_; ++e) {
    experts_.push_back(load_expert(checkpoint, prefix + "experts." + std::to_string(e) + "."));
  }
  if (config.n_shared_experts > 0) shared_.push_back(load_expert(checkpoint, prefix + "shared_experts."));
  chosen_.resize(static_cast<std::size_t>(num_experts_));
}

Moe::Expert Moe::load_expert(const Checkpoint& checkpoint, const std::string& prefix) const {
  const auto linear = [&](const char* name, std::int64_t out, std::int64_t in) {
    return gemm::Linear(checkpoint.read_fp32(prefix + name + ".weight", {out, in}), out, in);
  };
  return {linear("w1", inter_, hidden_), linear("w2", hidden_, inter_), linear("w3", inter_, hidden_)};
}

void Moe::route(const std::int32_t* tokens, std::int64_t count) {
  for (auto& list : chosen_) list.clear();
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_experts_));
  std::vector<std::int32_t> picked(static_cast<std::size_t>(experts_per_token_));
  const float* scores = scores_.get(count * num_experts_);
  for (std::int64_t t = 0; t < count; ++t) {
    const float* score = scores + t * num_experts_;
    if (!tid2eid_.empty()) {
      std::copy_n(tid2eid_.data() + tokens[t] * experts_per_token_, experts_per_token_, picked.data());
    } else {
      choose_experts({score, order.size()}, bias_, order, picked.size());
      std::copy_n(order.begin(), experts_per_token_, picked.begin());
    }
    float sum = 0;
    for (std::int32_t e : picked) sum += score[e];
    for (std::int32_t e : picked) chosen_[static_cast<std::size_t>(e)].push_back({t, score[e] / sum * scaling_});
  }
}

void Moe::run(const Expert& expert, const float* x, const float* weights, std::int64_t count, float* out,
              int num_threads) {
  float* gate = gate_out_.get(count * inter_);
  float* up = up_out_.get(count * inter_);
  expert.w1(x, count, gate, num_threads);
  expert.w3(x, count, up, num_threads);
  core::parallel_for(count, kRowsAPiece, num_threads, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin * inter_; i < end * inter_; ++i) {
      const float g = std::min(gate[i], limit_);
      const float u = std::clamp(up[i], -limit_, limit_);
      const float weight = weights == nullptr ? 1.0F : weights[i / inter_];
      gate[i] = weight * (g / (1.0F + std::exp(-g))) * u;
    }
  });
  expert.w2(gate, count, out, num_threads);
}

void Moe::forward(const float* x, const std::int32_t* tokens, std::int64_t count, float* out, int num_threads) {
  float* scores = scores_.get(count * num_experts_);
  gate_(x, count, scores, num_threads);
  for (std::int64_t i = 0; i < count * num_experts_; ++i) scores[i] = sqrt_softplus(scores[i]);
  route(tokens, count);

  std::fill_n(out, count * hidden_, 0.0F);
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    const auto& list = chosen_[e];
    const auto rows = static_cast<std::int64_t>(list.size());
    if (rows == 0) continue;
    float* gathered = gathered_.get(rows * hidden_);
    float* weights = weights_.get(rows);
    float* result = expert_out_.get(rows * hidden_);
    for (std::int64_t r = 0; r < rows; ++r) {
      const Choice& choice = list[static_cast<std::size_t>(r)];
      std::copy_n(x + choice.token * hidden_, hidden_, gathered + r * hidden_);
      weights[r] = choice.weight;
    }
    run(experts_[e], gathered, weights, rows, result, num_threads);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* sum = out + list[static_cast<std::size_t>(r)].token * hidden_;
      for (std::int64_t c = 0; c < hidden_; ++c) sum[c] += result[r * hidden_ + c];
    }
  }
  if (!shared_.empty()) {
    float* result = expert_out_.get(count * hidden_);
    run(shared_[0], x, nullptr, count, result, num_threads);
    for (std::int64_t i = 0; i < count * hidden_; ++i) out[i] += result[i];
  }
}

}  // namespace tamis::model
