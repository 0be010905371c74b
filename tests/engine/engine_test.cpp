#include "engine/engine.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/recall.hpp"
#include "engine/single_pass.hpp"
#include "model/tokenizer.hpp"
#include "tamis/status.hpp"

namespace tamis::engine {
namespace {

using model::KvPrecision;

const std::string kModel = TAMIS_SOURCE_DIR "/models/tiny-v4";

model::Transformer& tiny() {
  static model::Transformer transformer = model::Transformer::open(kModel);
  return transformer;
}

const std::vector<std::int32_t>& golden_prompt() {
  static const std::vector<std::int32_t> prompt = [] {
    std::ifstream file(kModel + "/golden.txt", std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return model::Tokenizer::open(kModel).encode(text.str());
  }();
  return prompt;
}

// "482913." and a newline.
const std::vector<std::int32_t> kGoldenContinuation = {56, 60, 54, 61, 53, 55, 50, 14};

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t salt) {
  std::vector<std::int32_t> tokens = {0};
  for (std::int64_t i = 1; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(4 + (i * 7919 + salt * 104729) % 256));
  }
  return tokens;
}

std::vector<std::int32_t> continue_prompt(const EngineConfig& config, const std::vector<std::int32_t>& prompt,
                                          std::int64_t count, std::int64_t companions = 0) {
  Engine engine(tiny(), config);
  for (std::int64_t i = 0; i < companions / 2; ++i) {
    engine.add({.prompt = some_tokens(1 + i * 53, i), .max_new_tokens = 3 + i});
  }
  std::vector<std::int32_t> tokens;
  engine.add({.prompt = prompt, .max_new_tokens = count, .on_token = [&](std::int32_t t) { tokens.push_back(t); }});
  for (std::int64_t i = companions / 2; i < companions; ++i) {
    engine.add({.prompt = some_tokens(1 + i * 53, i), .max_new_tokens = 3 + i});
  }
  engine.run();
  EXPECT_EQ(engine.num_unfinished(), 0);
  return tokens;
}

struct GoldenCase {
  KvPrecision precision;
  std::int64_t prefill_chunk, companions;
};

class EngineGolden : public testing::TestWithParam<GoldenCase> {};

TEST_P(EngineGolden, FindsTheCodeOfAmber) {
  const auto [precision, chunk, companions] = GetParam();
  const EngineConfig config{.kv_precision = precision,
                            .prefill_chunk = chunk,
                            .step_tokens = companions > 0 ? chunk + 100 : chunk,
                            .cache_tokens = 16384,
                            .max_requests = 16,
                            .num_threads = 1};
  EXPECT_EQ(continue_prompt(config, golden_prompt(), 8, companions), kGoldenContinuation);
}

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  for (const KvPrecision precision : {KvPrecision::kFloat32, KvPrecision::kBFloat16, KvPrecision::kFloat8}) {
    for (const std::int64_t chunk : {1, 7, 64, 1000}) cases.push_back({precision, chunk, 0});
    cases.push_back({precision, 64, 9});
  }
  return cases;
}

std::string golden_name(const testing::TestParamInfo<GoldenCase>& test) {
  constexpr const char* kNames[] = {"fp32", "bf16", "fp8"};
  return std::string(kNames[static_cast<int>(test.param.precision)]) + "_chunk" +
         std::to_string(test.param.prefill_chunk) + (test.param.companions > 0 ? "_companions" : "");
}

INSTANTIATE_TEST_SUITE_P(Tiny, EngineGolden, testing::ValuesIn(golden_cases()), golden_name);

// Logits of every position, read in chunks of `chunk` next to `companions` other requests.
std::vector<float> scores(KvPrecision precision, std::int64_t chunk, std::int64_t companions, int threads) {
  Engine engine(tiny(), {.kv_precision = precision,
                         .prefill_chunk = chunk,
                         .step_tokens = chunk + 150,
                         .cache_tokens = 16384,
                         .max_requests = 16,
                         .num_threads = threads});
  for (std::int64_t i = 0; i < companions; ++i) {
    engine.add({.prompt = some_tokens(30 + i * 61, i), .max_new_tokens = 4});
  }
  RequestSpec spec{.prompt = golden_prompt()};
  std::vector<float> all;
  for (std::size_t p = 0; p < spec.prompt.size(); ++p) spec.scored_positions.push_back(static_cast<std::int64_t>(p));
  spec.on_scores = [&](std::int64_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  engine.add(std::move(spec));
  engine.run();
  return all;
}

class EnginePrecision : public testing::TestWithParam<KvPrecision> {};

TEST_P(EnginePrecision, LogitsHaveTheSameBitsHoweverTheWorkIsCut) {
  const std::vector<float> whole = scores(GetParam(), 1000, 0, 1);
  ASSERT_EQ(whole.size(), golden_prompt().size() * 260);
  for (const std::int64_t chunk : {5, 64, 129}) EXPECT_EQ(scores(GetParam(), chunk, 0, 1), whole) << "chunk " << chunk;
  EXPECT_EQ(scores(GetParam(), 64, 6, 1), whole) << "with companions";
}

TEST_P(EnginePrecision, ASinglePassAgreesWithTheEngine) {
  EXPECT_EQ(single_pass(tiny(), golden_prompt(), {.selection = {}, .kv_precision = GetParam(), .num_threads = 1}),
            scores(GetParam(), 1000, 0, 1));
}

INSTANTIATE_TEST_SUITE_P(Tiny, EnginePrecision,
                         testing::Values(KvPrecision::kFloat32, KvPrecision::kBFloat16, KvPrecision::kFloat8));

TEST(ThreadEngine, ThreadsDoNotChangeBits) {
  const std::vector<float> one = scores(KvPrecision::kFloat8, 200, 3, 1);
  EXPECT_EQ(scores(KvPrecision::kFloat8, 200, 3, 2), one);
  EXPECT_EQ(scores(KvPrecision::kFloat8, 200, 3, 5), one);
}

TEST(Engine, SampledTokensDoNotDependOnCompanions) {
  const auto sample = [](std::int64_t companions) {
    Engine engine(tiny(), {.prefill_chunk = 50, .cache_tokens = 8192, .max_requests = 8, .num_threads = 1});
    for (std::int64_t i = 0; i < companions; ++i) {
      engine.add({.prompt = some_tokens(10 + i, i), .max_new_tokens = 9, .sampling = {.temperature = 1.0, .seed = 5}});
    }
    std::vector<std::int32_t> tokens;
    engine.add({.prompt = some_tokens(40, 1),
                .max_new_tokens = 20,
                .sampling = {.temperature = 1.0, .top_p = 0.9, .seed = 77},
                .on_token = [&](std::int32_t t) { tokens.push_back(t); }});
    engine.run();
    return tokens;
  };
  const auto alone = sample(0);
  EXPECT_EQ(alone.size(), 20U);
  EXPECT_EQ(sample(5), alone);
}

TEST(Engine, PagesGoBackWhenARequestEnds) {
  Engine engine(tiny(), {.prefill_chunk = 64, .cache_tokens = 2048, .max_requests = 4, .num_threads = 1});
  for (int i = 0; i < 4; ++i) engine.add({.prompt = some_tokens(100 + 30 * i, i), .max_new_tokens = 5});
  engine.step();
  EXPECT_GT(engine.caches().taken().window, 0);
  engine.run();
  const PageCounts taken = engine.caches().taken();
  EXPECT_EQ(taken.window, 0);
  EXPECT_EQ(taken.compressed, 0);
  EXPECT_EQ(taken.c4_state, 0);
  EXPECT_EQ(taken.c128_state, 0);
}

TEST(Engine, ARequestThatFitsLaterWaitsAndOneThatNeverFitsIsRefusedByName) {
  Engine engine(tiny(), {.prefill_chunk = 64, .cache_tokens = 512, .max_requests = 2, .num_threads = 1});
  std::vector<int> ended(3);
  for (int i = 0; i < 3; ++i) {  // 400 tokens each: two pages of 256, and the pool has two
    engine.add({.prompt = some_tokens(390, i), .max_new_tokens = 10, .on_token = [&ended, i](std::int32_t) {
                  ++ended[static_cast<std::size_t>(i)];
                }});
  }
  try {
    engine.add({.prompt = some_tokens(3000, 0), .max_new_tokens = 1});
    FAIL() << "3001 tokens do not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kResourceExhausted);
    EXPECT_STREQ(error.what(), "request: needs 12 pages of the compressed cache, its pool has 2");
  }
  engine.run();
  EXPECT_EQ(ended, (std::vector<int>{10, 10, 10})) << "the others are not touched";
}

TEST(Engine, ACancelledRequestLeavesTheOthersAlone) {
  const std::vector<std::int32_t> prompt = some_tokens(150, 3);
  const EngineConfig config{.prefill_chunk = 64, .cache_tokens = 4096, .max_requests = 4, .num_threads = 1};
  const auto alone = continue_prompt(config, prompt, 12);
  Engine engine(tiny(), config);
  std::vector<std::int32_t> tokens;
  engine.add({.prompt = prompt, .max_new_tokens = 12, .on_token = [&](std::int32_t t) { tokens.push_back(t); }});
  RequestId victim = 0;
  int heard = 0;
  victim = engine.add({.prompt = some_tokens(90, 4), .max_new_tokens = 50, .on_token = [&](std::int32_t) {
                         if (++heard == 3) {
                           EXPECT_TRUE(engine.cancel(victim));  // from inside a step
                         }
                       }});
  engine.run();
  EXPECT_EQ(heard, 3);
  EXPECT_EQ(tokens, alone);
  EXPECT_EQ(engine.caches().taken().compressed, 0);
  EXPECT_FALSE(engine.cancel(victim));
  EXPECT_FALSE(engine.cancel(12345));
}

TEST(Engine, StopTokensEndARequestAndAreNotPassedOn) {
  Engine engine(tiny(), {.cache_tokens = 2048, .num_threads = 1});
  std::vector<std::int32_t> tokens;
  engine.add({.prompt = golden_prompt(),
              .max_new_tokens = 50,
              .stop_tokens = {50},  // "."
              .on_token = [&](std::int32_t t) { tokens.push_back(t); }});
  engine.run();
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{56, 60, 54, 61, 53, 55}));
}

TEST(Engine, CountsStepsWhoseCompressionIsSkipped) {
  Engine engine(tiny(), {.prefill_chunk = 1, .step_tokens = 1, .cache_tokens = 512, .num_threads = 1});
  engine.add({.prompt = some_tokens(256, 0), .max_new_tokens = 0});
  engine.run();
  EXPECT_EQ(engine.stats().steps, 256);
  EXPECT_EQ(engine.stats().c4_skipped, 192);
  EXPECT_EQ(engine.stats().c128_skipped, 254);
}

std::string error_text(const auto& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Engine, NamesWhatIsWrongWithARequestOrASetting) {
  Engine engine(tiny(), {.cache_tokens = 512, .num_threads = 1});
  EXPECT_EQ(error_text([&] { engine.add({.prompt = {}}); }), "request: the prompt has no tokens");
  EXPECT_EQ(error_text([&] {
              engine.add({.prompt = {0, 260}});
            }),
            "request: prompt holds token 260, must be in [0, 260)");
  EXPECT_EQ(error_text([&] { engine.add({.prompt = {-1}}); }), "request: prompt holds token -1, must be in [0, 260)");
  EXPECT_EQ(error_text([&] { engine.add({.prompt = {0}, .max_new_tokens = -2}); }),
            "request: max_new_tokens is -2, must be at least 0");
  EXPECT_EQ(error_text([&] { engine.add({.prompt = {0}, .max_new_tokens = 65536}); }),
            "request: a prompt of 1 tokens and 65536 new ones make 65537, the model's limit is 65536");
  EXPECT_EQ(error_text([&] { engine.add({.prompt = {0}, .sampling = {.temperature = -1}}); }),
            "sampling: temperature is -1, must be a number >= 0");
  EXPECT_EQ(error_text([&] { Engine(tiny(), {.prefill_chunk = 0}); }),
            "engine: prefill_chunk is 0, must be at least 1");
  EXPECT_EQ(error_text([&] { Engine(tiny(), {.cache_tokens = -5}); }),
            "engine: cache_tokens is -5, must be at least 1");
  EXPECT_EQ(error_text([&] { Engine(tiny(), {.selection = {.topk = -1}}); }),
            "engine: index_topk is -1, must be at least 1, or 0 for the model's own");
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(
      error_text([&] { engine.add({.prompt = {0}, .max_new_tokens = kHuge}); }),
      "request: a prompt of 1 tokens and 9223372036854775807 new ones make 9223372036854775808, the model's limit "
      "is 65536");
  EXPECT_EQ(error_text([&] { Engine(tiny(), {.cache_tokens = kHuge}); }),
            "engine: cache_tokens is 9223372036854775807, must be at most 1073741824");
  EXPECT_EQ(error_text([&] { Engine(tiny(), {.max_requests = kHuge}); }),
            "engine: max_requests is 9223372036854775807, must be at most 1073741824");
  const auto scored = [&](std::vector<std::int64_t> positions) {
    return error_text([&] { engine.add({.prompt = {0, 5, 6}, .scored_positions = std::move(positions)}); });
  };
  EXPECT_EQ(scored({0, 1, 1}), "request: scored_positions holds 1 after 1, must ascend");
  EXPECT_EQ(scored({2, 0}), "request: scored_positions holds 0 after 2, must ascend");
  EXPECT_EQ(scored({0, 3}), "request: scored_positions holds 3, must be in [0, 3)");
  EXPECT_EQ(scored({-1, 0}), "request: scored_positions holds -1, must be in [0, 3)");
  EXPECT_EQ(scored({0, 1, 2}), "no error");
}

TEST(Engine, ACallbackThatThrowsEndsItsRequestOnly) {
  const std::vector<std::int32_t> prompt = some_tokens(150, 3);
  const EngineConfig config{.prefill_chunk = 64, .cache_tokens = 4096, .max_requests = 4, .num_threads = 1};
  const auto alone = continue_prompt(config, prompt, 12);
  Engine engine(tiny(), config);
  int thrown = 0;
  engine.add({.prompt = some_tokens(90, 4), .max_new_tokens = 50, .on_token = [&](std::int32_t) {
                ++thrown;
                throw std::runtime_error("no room for the text");
              }});
  std::vector<std::int32_t> tokens;
  const RequestId id =
      engine.add({.prompt = prompt, .max_new_tokens = 12, .on_token = [&](std::int32_t t) { tokens.push_back(t); }});
  EXPECT_THROW(engine.run(), std::runtime_error);
  EXPECT_EQ(engine.num_unfinished(), 1);
  engine.run();
  EXPECT_EQ(thrown, 1);
  EXPECT_EQ(tokens, alone);
  // The engine knows that it is outside of a step: pages go back at once.
  const RequestId other = engine.add({.prompt = prompt, .max_new_tokens = 12});
  engine.step();
  EXPECT_TRUE(engine.cancel(other));
  EXPECT_EQ(engine.caches().taken().compressed, 0);
  EXPECT_FALSE(engine.num_processed(id).has_value());
}

TEST(Engine, ACancelledRequestHearsNoMoreScores) {
  Engine engine(tiny(), {.cache_tokens = 512, .num_threads = 1});
  RequestId id = 0;
  int heard = 0;
  id = engine.add({.prompt = some_tokens(20, 1), .scored_positions = {3, 4, 5}, .on_scores = [&](auto, auto) {
                     ++heard;
                     engine.cancel(id);
                   }});
  engine.run();
  EXPECT_EQ(heard, 1);
}

TEST(Engine, AStepThatFailsMovesNoRequest) {
  Engine engine(tiny(), {.cache_tokens = 512, .num_threads = -1});  // which the operations refuse
  const RequestId id = engine.add({.prompt = some_tokens(20, 1), .max_new_tokens = 1});
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THROW(engine.step(), Error);
    EXPECT_EQ(engine.num_processed(id), 0);
  }
  EXPECT_TRUE(engine.cancel(id));
  EXPECT_EQ(engine.caches().taken().compressed, 0);
}

TEST(Recall, TextsHaveTheAskedLengthAndRepeat) {
  const model::Tokenizer tokenizer = model::Tokenizer::open(kModel);
  for (const std::int64_t length : {256, 512, 777, 2048}) {
    const RecallText text = make_recall_text(tokenizer, length, 9);
    EXPECT_EQ(static_cast<std::int64_t>(text.tokens.size()), length);
    EXPECT_EQ(text.digit_positions.size() % 6, 0U);
    EXPECT_FALSE(text.digit_positions.empty());
    for (const std::int64_t p : text.digit_positions) {
      EXPECT_GE(text.tokens[static_cast<std::size_t>(p)], '0' + 4);
      EXPECT_LE(text.tokens[static_cast<std::size_t>(p)], '9' + 4);
    }
    EXPECT_EQ(make_recall_text(tokenizer, length, 9).tokens, text.tokens);
    EXPECT_NE(make_recall_text(tokenizer, length, 10).tokens, text.tokens);
  }
  EXPECT_EQ(error_text([&] { make_recall_text(tokenizer, 100, 0); }), "recall: length is 100, must be at least 256");
}

TEST(Recall, NeighbouringSeedsShareNoTexts) {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    for (std::int64_t trial = 0; trial < 32; ++trial) seeds.insert(recall_text_seed(seed, trial));
  }
  EXPECT_EQ(seeds.size(), 32U * 32U);
}

TEST(Recall, ALengthAboveTheModelsLimitIsRefusedBeforeMemoryIsTaken) {
  const model::Tokenizer tokenizer = model::Tokenizer::open(kModel);
  EXPECT_EQ(error_text([&] { measure_recall(tiny(), tokenizer, {}, std::int64_t{1} << 40, 1, 0); }),
            "request: a prompt of 1099511627776 tokens and 0 new ones make 1099511627776, the model's limit is 65536");
}

TEST(Recall, TheIndexerFindsCodesAndRandomEntriesDoNot) {
  const model::Tokenizer tokenizer = model::Tokenizer::open(kModel);
  EngineConfig config{.kv_precision = KvPrecision::kFloat8, .selection = {.topk = 16}, .num_threads = 1};
  const RecallResult indexer = measure_recall(tiny(), tokenizer, config, 2048, 2, 1);
  EXPECT_GE(indexer.right, indexer.digits * 99 / 100);
  EXPECT_EQ(indexer.digits, 96);
  config.selection.random = true;
  const RecallResult random = measure_recall(tiny(), tokenizer, config, 2048, 2, 1);
  EXPECT_LT(random.right, random.digits * 45 / 100);
}

}  // namespace
}  // namespace tamis::engine
