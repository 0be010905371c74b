#include "model/transformer.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "engine/batch_builder.hpp"
#include "engine/kv_caches.hpp"
#include "engine/single_pass.hpp"
#include "model_files.hpp"

namespace tamis::model {
namespace {

std::vector<std::int32_t> some_tokens(int count) {
  std::vector<std::int32_t> tokens = {0};
  for (int i = 1; i < count; ++i) tokens.push_back(4 + i * 7919 % 256);
  return tokens;
}

// Runs three tokens and returns the logits of the rows asked for.
std::vector<float> logits_of_rows(const std::vector<std::int64_t>& rows) {
  Transformer model = Transformer::open(tiny_v4());
  const ModelConfig& config = model.config();
  const std::vector<std::int32_t> tokens = some_tokens(3);
  engine::KvCaches caches(config, KvPrecision::kFloat32, engine::pages_needed(3, 3, config));
  engine::RequestPages pages = caches.make_request_pages();
  engine::BatchBuilder builder(config);
  builder.add(pages, 0, tokens);
  StepBatch batch = builder.finish();
  batch.logit_rows = rows;
  std::vector<float> logits(rows.size() * static_cast<std::size_t>(config.vocab_size),
                            std::numeric_limits<float>::quiet_NaN());
  StageTimes times;
  model.forward(batch, caches.layers(), {.num_threads = 1}, logits.data(), times);
  return logits;
}

TEST(Transformer, MoreRowsOfLogitsThanTokens) {
  const std::vector<float> once = logits_of_rows({0, 1, 2});
  std::vector<std::int64_t> rows;
  for (int i = 0; i < 1000; ++i) rows.push_back(i % 3);
  const std::vector<float> often = logits_of_rows(rows);
  for (std::size_t i = 0; i < often.size(); ++i) ASSERT_EQ(often[i], once[i % once.size()]) << i;
}

TEST(Transformer, RowsOutsideTheStep) {
  EXPECT_EQ(error_text(Status::kInvalidArgument,
                       [] {
                         logits_of_rows({0, 3});
                       }),
            "forward: logits of row 3, must be in [0, 3)");
  EXPECT_EQ(error_text(Status::kInvalidArgument, [] { logits_of_rows({-1}); }),
            "forward: logits of row -1, must be in [0, 3)");
}

// Watches the shapes of what a step selects.
class Shapes : public Observer {
 public:
  void tensor(std::string_view name, ConstTensorView value) override {
    if (name == "layers.1.topk") topk = {value.size(0), value.size(1)};
  }
  std::vector<std::int64_t> topk;
};

// 300 tokens see at most 75 entries. Rows as wide as the config says would take 300 * 2^24 * 4 bytes, 20 GB, each.
TEST(Transformer, WindowAndTopkFarBeyondTheText) {
  const TemporaryFolder folder;
  std::string config = file_text(tiny_v4() / "config.json");
  const auto set = [&](const std::string& from, const std::string& to) {
    const std::size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos);
    config.replace(at, from.size(), to);
  };
  const std::vector<std::int32_t> tokens = some_tokens(300);
  const auto run = [&](Observer* observer) {
    folder.write("config.json", config);
    Transformer model(Checkpoint::open(tiny_v4()), ModelConfig::open(folder.path()));
    return engine::single_pass(model, tokens, {.observer = observer, .num_threads = 1});
  };
  set("\"sliding_window\": 128", "\"sliding_window\": 300");
  set("\"index_topk\": 64", "\"index_topk\": 75");
  const std::vector<float> expected = run(nullptr);
  set("\"sliding_window\": 300", "\"sliding_window\": 16777216");
  set("\"index_topk\": 75", "\"index_topk\": 16777216");
  EXPECT_EQ(run(nullptr), expected);
  Shapes shapes;
  EXPECT_EQ(run(&shapes), expected);
  EXPECT_EQ(shapes.topk, (std::vector<std::int64_t>{300, 75}));
}

}  // namespace
}  // namespace tamis::model
