#include "engine/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/check.hpp"

namespace tamis::engine {

Sampler::Sampler(const SamplingParams& params) : params_(params), generator_(params.seed) {
  TAMIS_CHECK(params.temperature >= 0.0 && std::isfinite(params.temperature), Status::kInvalidArgument,
              "sampling: temperature is ", params.temperature, ", must be a number >= 0");
  TAMIS_CHECK(params.top_p > 0.0 && params.top_p <= 1.0, Status::kInvalidArgument, "sampling: top_p is ", params.top_p,
              ", must be above 0 and at most 1");
}

std::int32_t Sampler::sample(std::span<const float> logits) {
  if (params_.temperature == 0.0) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  std::vector<double> weight(order.size());
  double total = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    weight[i] =
        std::exp((static_cast<double>(logit(order[i])) - static_cast<double>(logit(order[0]))) / params_.temperature);
    total += weight[i];
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && kept < params_.top_p * total) kept += weight[count++];
  // 53 random bits as a fraction; std::uniform_real_distribution would differ between libraries.
  double point = static_cast<double>(generator_() >> 11) * 0x1p-53 * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    point -= weight[i];
    if (point < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace tamis::engine
