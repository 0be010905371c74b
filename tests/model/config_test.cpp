#include "model/config.hpp"

#include <functional>

#include "model/json_file.hpp"
#include "model_files.hpp"

namespace tamis::model {
namespace {

Json tiny_json() { return Json::parse(file_text(tiny_v4() / "config.json")); }

// The published dialect with the sizes of V4-Flash (S-1.2), its 43 layers and the entry of the draft layer.
Json published_json() {
  Json ratios = {0, 0};
  for (int pair = 0; pair < 20; ++pair) {
    ratios.push_back(4);
    ratios.push_back(128);
  }
  ratios.push_back(4);
  ratios.push_back(0);
  return {{"model_type", "deepseek_v4"},
          {"vocab_size", 129280},
          {"hidden_size", 4096},
          {"num_hidden_layers", 43},
          {"num_attention_heads", 64},
          {"num_key_value_heads", 1},
          {"head_dim", 512},
          {"qk_rope_head_dim", 64},
          {"q_lora_rank", 1024},
          {"o_groups", 8},
          {"o_lora_rank", 1024},
          {"index_n_heads", 64},
          {"index_head_dim", 128},
          {"index_topk", 512},
          {"sliding_window", 128},
          {"rope_theta", 10000},
          {"compress_rope_theta", 160000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 16},
            {"original_max_position_embeddings", 65536},
            {"beta_fast", 32},
            {"beta_slow", 1}}},
          {"max_position_embeddings", 1048576},
          {"rms_norm_eps", 1e-6},
          {"n_routed_experts", 256},
          {"num_experts_per_tok", 6},
          {"n_shared_experts", 1},
          {"moe_intermediate_size", 2048},
          {"num_hash_layers", 3},
          {"scoring_func", "sqrtsoftplus"},
          {"topk_method", "noaux_tc"},
          {"routed_scaling_factor", 1.5},
          {"swiglu_limit", 10.0},
          {"hc_mult", 4},
          {"hc_sinkhorn_iters", 20},
          {"hc_eps", 1e-6},
          {"num_nextn_predict_layers", 1},
          {"bos_token_id", 0},
          {"eos_token_id", 1},
          {"compress_ratios", ratios},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"scale_fmt", "ue8m0"},
            {"weight_block_size", {128, 128}},
            {"activation_scheme", "dynamic"}}}};
}

ModelConfig parse(const Json& json) { return ModelConfig::parse(json.dump(), "config.json"); }

std::string parse_error(const Json& json) {
  return error_text(Status::kDataError, [&] { parse(json); });
}

TEST(ModelConfig, ReadsTheTransformersDialect) {
  const ModelConfig c = ModelConfig::open(tiny_v4());
  EXPECT_EQ(c.vocab_size, 260);
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.num_hidden_layers, 5);
  EXPECT_EQ(c.num_attention_heads, 4);
  EXPECT_EQ(c.head_dim, 512);
  EXPECT_EQ(c.qk_rope_head_dim, 64);
  EXPECT_EQ(c.q_lora_rank, 128);
  EXPECT_EQ(c.o_groups, 2);
  EXPECT_EQ(c.o_lora_rank, 64);
  EXPECT_EQ(c.sliding_window, 128);
  EXPECT_EQ(c.index_n_heads, 8);
  EXPECT_EQ(c.index_head_dim, 128);
  EXPECT_EQ(c.index_topk, 64);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.hc_mult, 4);
  EXPECT_EQ(c.hc_sinkhorn_iters, 20);
  EXPECT_EQ(c.hc_eps, 1e-6);
  EXPECT_EQ(c.n_routed_experts, 4);
  EXPECT_EQ(c.num_experts_per_tok, 2);
  EXPECT_EQ(c.n_shared_experts, 1);
  EXPECT_EQ(c.moe_intermediate_size, 96);
  EXPECT_EQ(c.routed_scaling_factor, 1.5);
  EXPECT_EQ(c.swiglu_limit, 10.0);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.compress_rope_theta, 160000.0);
  EXPECT_EQ(c.compress_rope_scaling.factor, 1.0);
  EXPECT_EQ(c.max_position_embeddings, 65536);
  EXPECT_EQ(c.bos_token_id, 0);
  EXPECT_EQ(c.eos_token_ids, std::vector<int>{1});
  EXPECT_EQ(c.pad_token_id, 2);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_FALSE(c.quantization.fp8);
  EXPECT_FALSE(c.quantization.fp4_experts);
  const int ratios[] = {0, 4, 128, 4, 128};
  ASSERT_EQ(c.layers.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(c.layers[i].compress_ratio, ratios[i]);
    EXPECT_EQ(c.layers[i].hash_routing, i == 0);
    EXPECT_EQ(c.layers[i].has_indexer(), ratios[i] == 4);
    EXPECT_EQ(c.layers[i].has_compressor(), ratios[i] != 0);
  }
}

TEST(ModelConfig, ReadsThePublishedDialect) {
  const ModelConfig c = parse(published_json());
  ASSERT_EQ(c.layers.size(), 43U);
  EXPECT_EQ(c.layers[1].compress_ratio, 0);
  EXPECT_EQ(c.layers[2].compress_ratio, 4);
  EXPECT_EQ(c.layers[41].compress_ratio, 128);
  EXPECT_EQ(c.layers[42].compress_ratio, 4);
  EXPECT_TRUE(c.layers[2].hash_routing);
  EXPECT_FALSE(c.layers[3].hash_routing);
  EXPECT_EQ(c.compress_rope_scaling.factor, 16.0);
  EXPECT_EQ(c.compress_rope_scaling.original_max_positions, 65536.0);
  EXPECT_EQ(c.compress_rope_scaling.beta_fast, 32.0);
  EXPECT_EQ(c.compress_rope_scaling.beta_slow, 1.0);
  EXPECT_EQ(c.num_nextn_predict_layers, 1);
  EXPECT_TRUE(c.quantization.fp8);
  EXPECT_EQ(c.quantization.block_rows, 128);
  EXPECT_TRUE(c.quantization.fp4_experts);  // what absence of expert_dtype means
  EXPECT_EQ(c.pad_token_id, -1);
}

TEST(ModelConfig, TrailingDraftLayersAreOptionalAndMayBeSeveral) {
  Json json = published_json();
  json["compress_ratios"].erase(43);
  EXPECT_EQ(parse(json).layers.size(), 43U);
  for (int i = 0; i < 3; ++i) json["compress_ratios"].push_back(7);  // not looked at
  EXPECT_EQ(parse(json).layers.size(), 43U);
}

TEST(ModelConfig, YarnInRopeParameters) {
  Json json = tiny_json();
  Json& compress = json["rope_parameters"]["compress"];
  compress["rope_type"] = "yarn";
  compress["factor"] = 8.0;
  compress["original_max_position_embeddings"] = 4096;
  compress["attention_factor"] = 1.0;
  compress["rope_theta"] = 150000.0;
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.compress_rope_theta, 150000.0);
  EXPECT_EQ(c.compress_rope_scaling.factor, 8.0);
  EXPECT_EQ(c.compress_rope_scaling.original_max_positions, 4096.0);
  EXPECT_EQ(c.compress_rope_scaling.beta_fast, 32.0);

  json["rope_parameters"] = compress;  // before transformers splits it in two
  json["compress_rope_theta"] = 170000;
  EXPECT_EQ(parse(json).compress_rope_scaling.factor, 8.0);
  EXPECT_EQ(parse(json).compress_rope_theta, 170000.0);
  EXPECT_EQ(parse(json).rope_theta, 10000.0);
}

TEST(ModelConfig, OlderKeysOfTransformers) {
  Json json = tiny_json();
  json.erase("mlp_layer_types");
  json["num_hash_layers"] = 2;
  json.erase("qk_rope_head_dim");  // partial_rotary_factor 0.125 of 512 is left
  json.erase("compress_rates");
  json["compress_rate_csa"] = 4;
  json["eos_token_id"] = {1, 3};
  json["expert_dtype"] = "fp4";
  const ModelConfig c = parse(json);
  EXPECT_TRUE(c.layers[1].hash_routing);
  EXPECT_FALSE(c.layers[2].hash_routing);
  EXPECT_EQ(c.qk_rope_head_dim, 64);
  EXPECT_EQ(c.layers[1].compress_ratio, 4);
  EXPECT_EQ(c.eos_token_ids, (std::vector<int>{1, 3}));
  EXPECT_TRUE(c.quantization.fp4_experts);
}

TEST(ModelConfig, IndexerKeysAreNotNeededWithoutIndexer) {
  Json json = tiny_json();
  json["layer_types"] = Json::array();
  for (int i = 0; i < 5; ++i) json["layer_types"].push_back("sliding_attention");
  for (const char* key : {"index_n_heads", "index_head_dim", "index_topk"}) json.erase(key);
  EXPECT_EQ(parse(json).index_topk, 0);
}

// Every required key: missing, of the wrong type, and out of range.
TEST(ModelConfig, RequiredNumbers) {
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "head_dim",
                          "q_lora_rank",
                          "o_groups",
                          "o_lora_rank",
                          "sliding_window",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk",
                          "hc_mult",
                          "hc_sinkhorn_iters",
                          "n_routed_experts",
                          "num_experts_per_tok",
                          "n_shared_experts",
                          "moe_intermediate_size",
                          "routed_scaling_factor",
                          "max_position_embeddings"}) {
    const std::string begin = std::string("config.json: ") + key + ": expected ";
    Json json = tiny_json();
    json.erase(key);
    EXPECT_TRUE(parse_error(json).starts_with(begin)) << parse_error(json);
    EXPECT_TRUE(parse_error(json).ends_with("got nothing")) << parse_error(json);
    for (const Json& bad : {Json("8"), Json(-1), Json(1e30), Json(Json::array()), Json(9223372036854775807)}) {
      json[key] = bad;
      EXPECT_TRUE(parse_error(json).starts_with(begin)) << parse_error(json);
    }
  }
  for (const char* key : {"rope_theta", "compress_rope_theta"}) {
    Json json = published_json();
    json.erase(key);
    EXPECT_EQ(parse_error(json), std::string("config.json: ") + key + ": expected a number, got nothing");
    json[key] = 0;
    EXPECT_EQ(parse_error(json), std::string("config.json: ") + key + ": expected a number in [1, 1e+12], got 0");
  }
}

struct BadValue {
  const char* pointer;
  Json value;
  const char* error;
};

TEST(ModelConfig, BadValuesOfTransformersDialect) {
  const BadValue cases[] = {
      {"/head_dim", 512.5, "head_dim: expected an integer in [1, 16777216], got 512.5"},
      {"/vocab_size", 0, "vocab_size: expected an integer in [1, 16777216], got 0"},
      {"/qk_rope_head_dim", 63, "qk_rope_head_dim: expected an even number, got 63"},
      {"/qk_rope_head_dim", 514, "qk_rope_head_dim: expected an integer in [2, 512], got 514"},
      {"/o_groups", 3, "o_groups: expected a divisor of num_attention_heads = 4, got 3"},
      {"/num_experts_per_tok", 5, "num_experts_per_tok: expected an integer in [1, 4], got 5"},
      {"/n_shared_experts", 2, "n_shared_experts: expected an integer in [0, 1], got 2"},
      {"/index_head_dim", 32, "index_head_dim: expected at least the rotary dims, 64, got 32"},
      {"/layer_types/2", "full_attention",
       "layer_types[2]: expected sliding_attention, compressed_sparse_attention or heavily_compressed_attention, got "
       "\"full_attention\""},
      {"/layer_types/2", 4, "layer_types[2]: expected a string, got 4"},
      {"/layer_types", "x", "layer_types: expected an array, got \"x\""},
      {"/layer_types", Json::array({"moe"}), "layer_types: expected num_hidden_layers = 5 entries, got 1"},
      {"/mlp_layer_types/0", "dense", "mlp_layer_types[0]: expected hash_moe or moe, got \"dense\""},
      {"/mlp_layer_types", Json::array(), "mlp_layer_types: expected num_hidden_layers = 5 entries, got 0"},
      {"/compress_rates/compressed_sparse_attention", 8,
       "compress_rates.compressed_sparse_attention: expected an integer in [4, 4], got 8"},
      {"/compress_ratios", {0, 4, 128, 4, 4}, "compress_ratios: expected the ratios that layer_types says, got others"},
      {"/rope_parameters/main/rope_type", "linear",
       "rope_parameters.main.rope_type: expected yarn or default, got \"linear\""},
      {"/rope_parameters/main/rope_theta", "1e4",
       "rope_parameters.main.rope_theta: expected a number in [1, 1e+12], got \"1e4\""},
      {"/rope_parameters/compress", 1, "rope_parameters.compress: expected an object, got 1"},
      {"/tie_word_embeddings", 1, "tie_word_embeddings: expected true or false, got 1"},
      {"/eos_token_id", 260, "eos_token_id: expected an integer in [0, 259], got 260"},
      {"/eos_token_id", {1, -1}, "eos_token_id[1]: expected an integer in [0, 259], got -1"},
      {"/bos_token_id", "<s>", "bos_token_id: expected an integer in [0, 259], got \"<s>\""},
      {"/rms_norm_eps", -1e-6, "rms_norm_eps: expected a number in [0, 1], got -1e-06"},
      {"/model_type", "llama", "model_type: expected \"deepseek_v4\", got \"llama\""},
      {"/scoring_func", "sigmoid", "scoring_func: expected \"sqrtsoftplus\", got \"sigmoid\""},
      {"/num_key_value_heads", 4, "num_key_value_heads: expected 1, got 4"},
      {"/attention_bias", true, "attention_bias: expected false, got true"},
      {"/hidden_act", {{"a", 1}}, "hidden_act: expected \"silu\", got an object of 1 keys"},
      {"/expert_dtype", "int4", "expert_dtype: expected fp4, fp8 or bf16, got \"int4\""},
  };
  for (const BadValue& bad : cases) {
    Json json = tiny_json();
    json[Json::json_pointer(bad.pointer)] = bad.value;
    EXPECT_EQ(parse_error(json), std::string("config.json: ") + bad.error);
  }
}

TEST(ModelConfig, BadValuesOfPublishedDialect) {
  const BadValue cases[] = {
      {"/compress_ratios/2", 2, "compress_ratios[2]: expected 0, 4 or 128, got 2"},
      {"/compress_ratios/2", "4", "compress_ratios[2]: expected 0, 4 or 128, got \"4\""},
      {"/compress_ratios", {0, 4}, "compress_ratios: expected at least num_hidden_layers = 43 entries, got 2"},
      {"/compress_ratios", nullptr, "compress_ratios: expected an array (or layer_types), got nothing"},
      {"/num_hash_layers", 44, "num_hash_layers: expected an integer in [0, 43], got 44"},
      {"/num_hash_layers", nullptr, "num_hash_layers: expected an integer, got nothing"},
      {"/qk_rope_head_dim", nullptr, "partial_rotary_factor: expected a number, got nothing"},
      {"/rope_scaling/type", "linear", "rope_scaling.type: expected yarn or default, got \"linear\""},
      {"/rope_scaling/factor", 0.5, "rope_scaling.factor: expected a number in [1, 1e+06], got 0.5"},
      {"/rope_scaling/factor", nullptr, "rope_scaling.factor: expected a number, got nothing"},
      {"/rope_scaling/beta_fast", 0.5, "rope_scaling.beta_fast: expected at least beta_slow = 1, got 0.5"},
      {"/rope_scaling/attention_factor", 1.27, "rope_scaling.attention_factor: expected a number in [1, 1], got 1.27"},
      {"/rope_scaling", "yarn", "rope_scaling: expected an object, got \"yarn\""},
      {"/quantization_config/quant_method", "awq", "quantization_config.quant_method: expected \"fp8\", got \"awq\""},
      {"/quantization_config/weight_block_size",
       {32, 32},
       "quantization_config.weight_block_size[0]: expected an integer in [128, 128], got 32"},
      {"/quantization_config/weight_block_size",
       {128},
       "quantization_config.weight_block_size: expected 2 entries, got 1"},
  };
  for (const BadValue& bad : cases) {
    Json json = published_json();
    json[Json::json_pointer(bad.pointer)] = bad.value;
    EXPECT_EQ(parse_error(json), std::string("config.json: ") + bad.error);
  }
  Json window_yarn = tiny_json();
  window_yarn["rope_parameters"]["main"] = {
      {"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4}, {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(parse_error(window_yarn),
            "config.json: rope_parameters.main.factor: expected 1 (window layers have plain frequencies), got 4");
}

TEST(ModelConfig, NotJsonOrNotAnObject) {
  const auto error = [](std::string_view text) {
    return error_text(Status::kDataError, [&] { ModelConfig::parse(text, "config.json"); });
  };
  EXPECT_EQ(error("[]"), "config.json: expected an object, got an array of 0 elements");
  EXPECT_TRUE(error("").starts_with("config.json: not valid JSON: ")) << error("");
  EXPECT_TRUE(error("{\"a\": \n\n tru}").starts_with("config.json: not valid JSON: ")) << error("{\"a\": tru}");
  EXPECT_TRUE(error("{\"a\": 1e999}").starts_with("config.json: not valid JSON: "));
  EXPECT_TRUE(error("{\"a\": \"\xFF\"}").starts_with("config.json: not valid JSON: "));
  EXPECT_EQ(error("{\"a\": 1, \"b\": 2, \"a\": 3}"), "config.json: the key \"a\" is given twice");
  EXPECT_EQ(error(std::string(100000, '[')), "config.json: JSON nested deeper than 32 levels");
  EXPECT_EQ(error("{\"a\": " + std::string(32, '[') + std::string(32, ']') + "}"),
            "config.json: JSON nested deeper than 32 levels");
}

TEST(ModelConfig, NothingBehindANulByte) {
  for (const std::string& after : {std::string(), std::string("rubbish"), std::string("\0", 1)}) {
    const std::string text = file_text(tiny_v4() / "config.json") + '\0' + after;
    EXPECT_EQ(error_text(Status::kDataError, [&] { ModelConfig::parse(text, "c"); }),
              "c: not valid JSON: a NUL byte at byte " + std::to_string(text.find('\0')));
  }
}

TEST(ModelConfig, MissingFile) {
  const TemporaryFolder folder;
  const auto open = [&] { ModelConfig::open(folder.path()); };
  EXPECT_EQ(error_text(Status::kDataError, open), (folder.path() / "config.json").string() + ": no such file");
  std::filesystem::create_directory(folder.path() / "config.json");
  EXPECT_EQ(error_text(Status::kDataError, open), (folder.path() / "config.json").string() + ": not a regular file");
}

TEST(JsonText, QuotesControlCharactersAndCutsLongText) {
  EXPECT_EQ(quote("a\nb\"c\x01"), "\"a\\nb\\\"c\\u0001\"");
  EXPECT_EQ(quote(std::string(200, 'x')), "\"" + std::string(80, 'x') + "\"...");
  EXPECT_EQ(quote("\xC3"), "\"\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace tamis::model
