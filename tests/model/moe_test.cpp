#include "model/moe.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "model/safetensors.hpp"
#include "model_files.hpp"

namespace tamis::model {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::int32_t> chosen(const std::vector<float>& score, const std::vector<float>& bias, std::size_t count) {
  std::vector<std::int32_t> order(score.size());
  choose_experts(score, bias, order, count);
  order.resize(count);
  return order;
}

TEST(ChooseExperts, LargestSumFirstAndEqualOnesByTheLowerExpert) {
  using Experts = std::vector<std::int32_t>;
  EXPECT_EQ(chosen({1, 2, 3, 4}, {0, 0, 0, 0}, 2), (Experts{3, 2}));
  EXPECT_EQ(chosen({1, 2, 3, 4}, {5, 0, 0, 0}, 2), (Experts{0, 3}));
  EXPECT_EQ(chosen({2, 2, 2, 2}, {0, 0, 0, 0}, 3), (Experts{0, 1, 2}));
}

TEST(ChooseExperts, NanComesAfterEveryNumber) {
  using Experts = std::vector<std::int32_t>;
  EXPECT_EQ(chosen({kNan, 1, kNan, 2}, {0, 0, 0, 0}, 4), (Experts{3, 1, 0, 2}));
  EXPECT_EQ(chosen({kNan, 1, 2}, {0, -kInfinity, 0}, 3), (Experts{2, 1, 0}));
  EXPECT_EQ(chosen({kInfinity, 1, 2}, {-kInfinity, 0, 0}, 3), (Experts{2, 1, 0}));
  // Many of them, in every place: a comparison that is no order makes sorting leave its range.
  constexpr std::size_t kExperts = 384;
  for (std::size_t stride = 1; stride < 8; ++stride) {
    std::vector<float> score(kExperts), bias(kExperts, 0.0F);
    Experts expected;
    for (std::size_t e = 0; e < kExperts; ++e) score[e] = e % stride == 0 ? kNan : static_cast<float>(kExperts - e);
    for (std::size_t e = 0; e < kExperts; ++e) {
      if (!std::isnan(score[e])) expected.push_back(static_cast<std::int32_t>(e));
    }
    for (std::size_t e = 0; e < kExperts; e += stride) expected.push_back(static_cast<std::int32_t>(e));
    EXPECT_EQ(chosen(score, bias, kExperts), expected) << stride;
  }
}

// A layer of three experts, two a token, for a vocabulary of two.
class MoeFile : public testing::Test {
 protected:
  MoeFile() {
    config_.hidden_size = config_.moe_intermediate_size = 4;
    config_.n_routed_experts = 3;
    config_.num_experts_per_tok = 2;
    config_.n_shared_experts = 0;
    config_.vocab_size = 2;
    config_.routed_scaling_factor = 1.0;
  }

  Moe load(const std::vector<std::int64_t>& tid2eid) const {
    const std::vector<float> weights(16, 0.25F);
    const auto matrix = [&](std::int64_t rows) {
      return StoredTensor{FileDType::kF32, {rows, 4}, std::as_bytes(std::span(weights).first(rows * 4))};
    };
    TensorMap tensors;
    tensors["layers.0.ffn.gate.weight"] = matrix(3);
    tensors["layers.0.ffn.gate.tid2eid"] = {FileDType::kI64, {2, 2}, std::as_bytes(std::span(tid2eid))};
    for (int e = 0; e < 3; ++e) {
      for (const char* name : {"w1", "w2", "w3"}) {
        tensors["layers.0.ffn.experts." + std::to_string(e) + "." + name + ".weight"] = matrix(4);
      }
    }
    write_safetensors(folder_.path() / "model.safetensors", tensors);
    return {Checkpoint::open(folder_.path()), "layers.0.ffn.", config_, /*hash_routed=*/true};
  }
  std::string tensor() const { return folder_.path().string() + ": tensor \"layers.0.ffn.gate.tid2eid\": "; }

  TemporaryFolder folder_;
  ModelConfig config_;
};

TEST_F(MoeFile, HashTablesNameDifferentExpertsThatAreThere) {
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         load({0, 1, 2, 2});
                       }),
            tensor() + "token 1: expected different experts, got 2 twice");
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         load({0, 0, 0, 0});
                       }),
            tensor() + "token 0: expected different experts, got 0 twice");
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         load({0, 1, 3, 2});
                       }),
            tensor() + "token 1: expected experts in [0, 3), got 3");
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         load({-1, 1, 1, 2});
                       }),
            tensor() + "token 0: expected experts in [0, 3), got -1");
  // The same expert for both tokens is as it should be: it takes all rows of a step.
  Moe moe = load({1, 0, 1, 2});
  const std::vector<float> x(8, 1.0F);
  const std::int32_t tokens[] = {0, 1};
  std::vector<float> out(8, kNan);
  moe.forward(x.data(), tokens, 2, out.data(), 1);
  for (float v : out) EXPECT_EQ(v, out[0]);
  EXPECT_GT(out[0], 0.0F);
}

}  // namespace
}  // namespace tamis::model
