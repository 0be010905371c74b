#include "engine/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tamis/status.hpp"

namespace tamis::engine {
namespace {

TEST(Sampler, GreedyTakesTheLargestAndTheLowestOfEquals) {
  Sampler sampler({});
  EXPECT_EQ(sampler.sample(std::vector<float>{0.0F, 2.0F, 2.0F, -1.0F}), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  Sampler sampler({.temperature = 0.5, .top_p = 1.0, .seed = 11});
  const std::vector<float> logits = {0.0F, 0.5F, -0.5F};
  const int draws = 20000;
  std::vector<double> count(3);
  for (int i = 0; i < draws; ++i) ++count[static_cast<std::size_t>(sampler.sample(logits))];
  const double total = std::exp(0.0) + std::exp(1.0) + std::exp(-1.0);
  for (std::size_t i = 0; i < 3; ++i) {
    const double p = std::exp(logits[i] / 0.5) / total;
    EXPECT_NEAR(count[i] / draws, p, 5 * std::sqrt(p * (1 - p) / draws));  // five standard deviations
  }
}

TEST(Sampler, TopPKeepsTheSmallestSetWithThatShare) {
  Sampler sampler({.temperature = 1.0, .top_p = 0.6, .seed = 3});
  const std::vector<float> logits = {std::log(0.2F), std::log(0.5F),
                                     std::log(0.3F)};  // 0.5 is short of 0.6, 0.8 is not
  for (int i = 0; i < 1000; ++i) EXPECT_NE(sampler.sample(logits), 0);
}

TEST(Sampler, TheSeedFixesTheDraws) {
  const std::vector<float> logits(50, 0.0F);
  std::vector<std::int32_t> first;
  for (int run = 0; run < 2; ++run) {
    Sampler sampler({.temperature = 1.0, .top_p = 1.0, .seed = 42});
    std::vector<std::int32_t> draws;
    for (int i = 0; i < 20; ++i) draws.push_back(sampler.sample(logits));
    if (run == 0) first = draws;
    else EXPECT_EQ(draws, first);
  }
}

TEST(Sampler, NamesTheParameterOutOfRange) {
  const auto text = [](const SamplingParams& params) -> std::string {
    try {
      Sampler sampler(params);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(text({.temperature = -1.0}), "sampling: temperature is -1, must be a number >= 0");
  EXPECT_EQ(text({.temperature = std::nan("")}), "sampling: temperature is nan, must be a number >= 0");
  EXPECT_EQ(text({.top_p = 0.0}), "sampling: top_p is 0, must be above 0 and at most 1");
  EXPECT_EQ(text({.top_p = 1.5}), "sampling: top_p is 1.5, must be above 0 and at most 1");
}

}  // namespace
}  // namespace tamis::engine
