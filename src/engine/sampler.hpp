#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace tamis::engine {

/// How the next token is drawn. temperature 0 is greedy: the largest logit, ties by the lower token.
struct SamplingParams {
  double temperature = 0.0;  ///< >= 0
  double top_p = 1.0;        ///< in (0, 1]: the smallest set of likeliest tokens with at least this share
  std::uint64_t seed = 0;
};

/// Draws tokens for one request. Its stream of random numbers belongs to the request alone, so what it draws does not
/// depend on who shares the batch, and is the same on every platform.
class Sampler {
 public:
  /// @throws Error kInvalidArgument if a parameter is outside its range.
  explicit Sampler(const SamplingParams& params);

  std::int32_t sample(std::span<const float> logits);

 private:
  SamplingParams params_;
  std::mt19937_64 generator_;
};

}  // namespace tamis::engine
