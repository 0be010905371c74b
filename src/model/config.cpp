#include "model/config.hpp"

#include <cmath>
#include <limits>
#include <optional>

#include "core/check.hpp"
#include "model/json_file.hpp"

namespace tamis::model {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 16U << 20;
// Bounds that no model comes near; below them products of two sizes fit 64 bits with room to spare.
constexpr int kMaxSize = 1 << 24;
constexpr int kMaxLayers = 4096;

// One object of the file: typed access to its keys, each with its range, each failing in one line.
class Fields {
 public:
  Fields(const Json& object, std::string file, std::string prefix = {})
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  /// Null counts as absent: transformers writes null for what is not set.
  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const char* key) const { return find(key) != nullptr; }

  template <typename... Parts>
  [[noreturn]] void fail(const std::string& key, const Parts&... parts) const {
    core::fail(Status::kDataError, file_, ": ", prefix_, key, ": ", parts...);
  }

  const Json& need(const char* key, const char* expected) const {
    const Json* value = find(key);
    if (value == nullptr) fail(key, "expected ", expected, ", got nothing");
    return *value;
  }

  int integer_value(const std::string& key, const Json& value, int lo, int hi) const {
    const bool fits =
        value.is_number_integer() &&
        (value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max()
                                    : value.get<std::int64_t>() >= std::numeric_limits<std::int32_t>::min());
    if (!fits || value.get<int>() < lo || value.get<int>() > hi) {
      fail(key, "expected an integer in [", lo, ", ", hi, "], got ", json_text(value));
    }
    return value.get<int>();
  }
  int integer(const char* key, int lo = 1, int hi = kMaxSize) const {
    return integer_value(key, need(key, "an integer"), lo, hi);
  }
  int integer_or(const char* key, int fallback, int lo = 1, int hi = kMaxSize) const {
    const Json* value = find(key);
    return value == nullptr ? fallback : integer_value(key, *value, lo, hi);
  }

  double number_value(const std::string& key, const Json& value, double lo, double hi) const {
    if (!value.is_number() || !(value.get<double>() >= lo && value.get<double>() <= hi)) {
      fail(key, "expected a number in [", lo, ", ", hi, "], got ", json_text(value));
    }
    return value.get<double>();
  }
  double number(const char* key, double lo, double hi) const {
    return number_value(key, need(key, "a number"), lo, hi);
  }
  double number_or(const char* key, double fallback, double lo, double hi) const {
    const Json* value = find(key);
    return value == nullptr ? fallback : number_value(key, *value, lo, hi);
  }

  bool boolean_or(const char* key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, "expected true or false, got ", json_text(*value));
    return value->get<bool>();
  }

  const std::string& string_value(const std::string& key, const Json& value) const {
    if (!value.is_string()) fail(key, "expected a string, got ", json_text(value));
    return value.get_ref<const std::string&>();
  }

  const Json& array(const char* key) const {
    const Json& value = need(key, "an array");
    if (!value.is_array()) fail(key, "expected an array, got ", json_text(value));
    return value;
  }

  Fields object(const char* key) const {
    const Json& value = need(key, "an object");
    if (!value.is_object()) fail(key, "expected an object, got ", json_text(value));
    return {value, file_, prefix_ + key + "."};
  }

  /// For settings of which one value is implemented: absent or equal.
  void must_be(const char* key, const Json& only) const {
    const Json* value = find(key);
    if (value != nullptr && (value->is_structured() || *value != only)) {
      fail(key, "expected ", json_text(only), ", got ", json_text(*value));
    }
  }

 private:
  const Json& object_;
  std::string file_;
  std::string prefix_;
};

std::string indexed(const char* key, std::size_t i) { return core::concat(key, "[", i, "]"); }

int checked_ratio(const Fields& f, const std::string& key, const Json& value) {
  const bool known = value.is_number_integer() && (value == 0 || value == 4 || value == 128);
  if (!known) f.fail(key, "expected 0, 4 or 128, got ", json_text(value));
  return value.get<int>();
}

// layer_types of transformers. compress_rates may repeat the ratios but not change them.
std::vector<int> ratios_of_layer_types(const Fields& f, std::size_t num_layers) {
  int sparse = 4, heavy = 128;
  if (f.has("compress_rates")) {
    const Fields rates = f.object("compress_rates");
    sparse = rates.integer_or("compressed_sparse_attention", sparse, 4, 4);
    heavy = rates.integer_or("heavily_compressed_attention", heavy, 128, 128);
  }
  f.integer_or("compress_rate_csa", sparse, 4, 4);
  f.integer_or("compress_rate_hca", heavy, 128, 128);
  const Json& types = f.array("layer_types");
  if (types.size() != num_layers) {
    f.fail("layer_types", "expected num_hidden_layers = ", num_layers, " entries, got ", types.size());
  }
  std::vector<int> ratios;
  for (std::size_t i = 0; i < num_layers; ++i) {
    const std::string key = indexed("layer_types", i);
    const std::string& type = f.string_value(key, types[i]);
    if (type == "sliding_attention") {
      ratios.push_back(0);
    } else if (type == "compressed_sparse_attention") {
      ratios.push_back(sparse);
    } else if (type == "heavily_compressed_attention") {
      ratios.push_back(heavy);
    } else {
      f.fail(key, "expected sliding_attention, compressed_sparse_attention or heavily_compressed_attention, got ",
             quote(type));
    }
  }
  return ratios;
}

// compress_ratios as published. Entries past num_hidden_layers belong to draft layers and are not looked at.
std::vector<int> ratios_as_published(const Fields& f, std::size_t num_layers) {
  const Json& list = f.array("compress_ratios");
  if (list.size() < num_layers) {
    f.fail("compress_ratios", "expected at least num_hidden_layers = ", num_layers, " entries, got ", list.size());
  }
  std::vector<int> ratios;
  for (std::size_t i = 0; i < num_layers; ++i) {
    ratios.push_back(checked_ratio(f, indexed("compress_ratios", i), list[i]));
  }
  return ratios;
}

std::vector<LayerConfig> read_layers(const Fields& f, std::size_t num_layers) {
  std::vector<int> ratios;
  if (f.has("layer_types")) {
    ratios = ratios_of_layer_types(f, num_layers);
    if (f.has("compress_ratios") && ratios_as_published(f, num_layers) != ratios) {
      f.fail("compress_ratios", "expected the ratios that layer_types says, got others");
    }
  } else if (f.has("compress_ratios")) {
    ratios = ratios_as_published(f, num_layers);
  } else {
    f.fail("compress_ratios", "expected an array (or layer_types), got nothing");
  }

  std::vector<LayerConfig> layers(num_layers);
  for (std::size_t i = 0; i < num_layers; ++i) layers[i].compress_ratio = ratios[i];
  if (f.has("mlp_layer_types")) {
    const Json& types = f.array("mlp_layer_types");
    if (types.size() != num_layers) {
      f.fail("mlp_layer_types", "expected num_hidden_layers = ", num_layers, " entries, got ", types.size());
    }
    for (std::size_t i = 0; i < num_layers; ++i) {
      const std::string key = indexed("mlp_layer_types", i);
      const std::string& type = f.string_value(key, types[i]);
      if (type != "hash_moe" && type != "moe") f.fail(key, "expected hash_moe or moe, got ", quote(type));
      layers[i].hash_routing = type == "hash_moe";
    }
  } else {
    const int hashed = f.integer("num_hash_layers", 0, static_cast<int>(num_layers));
    for (std::size_t i = 0; i < static_cast<std::size_t>(hashed); ++i) layers[i].hash_routing = true;
  }
  return layers;
}

constexpr double kMaxTheta = 1e12;

// A rope object's type and YaRN keys. Both "type" and "rope_type" are in use.
RopeScaling read_scaling(const Fields& f) {
  RopeScaling scaling;
  const char* key = f.has("rope_type") ? "rope_type" : "type";
  const Json* type = f.find(key);
  if (type == nullptr || *type == "default") return scaling;
  if (*type != "yarn") f.fail(key, "expected yarn or default, got ", json_text(*type));
  scaling.factor = f.number("factor", 1.0, 1e6);
  scaling.original_max_positions = f.integer("original_max_position_embeddings", 1, std::numeric_limits<int>::max());
  scaling.beta_fast = f.number_or("beta_fast", scaling.beta_fast, 1e-3, 1e6);
  scaling.beta_slow = f.number_or("beta_slow", scaling.beta_slow, 1e-3, 1e6);
  if (scaling.beta_fast < scaling.beta_slow) {
    f.fail("beta_fast", "expected at least beta_slow = ", scaling.beta_slow, ", got ", scaling.beta_fast);
  }
  f.number_or("attention_factor", 1.0, 1.0, 1.0);  // S-1.2: cos and sin are not scaled.
  return scaling;
}

void read_rope(const Fields& f, ModelConfig& c) {
  if (f.has("rope_parameters")) {
    const Fields both = f.object("rope_parameters");
    if (both.has("main") || both.has("compress")) {
      const Fields main = both.object("main");
      const Fields compress = both.object("compress");
      const RopeScaling main_scaling = read_scaling(main);
      if (main_scaling.factor != 1.0) {
        main.fail("factor", "expected 1 (window layers have plain frequencies), got ", main_scaling.factor);
      }
      c.rope_theta = main.number("rope_theta", 1.0, kMaxTheta);
      c.compress_rope_theta = compress.number("rope_theta", 1.0, kMaxTheta);
      c.compress_rope_scaling = read_scaling(compress);
      return;
    }
    // Not yet split in two: the scaling of the compressed layers, bases at the top level.
    c.compress_rope_scaling = read_scaling(both);
  } else if (f.has("rope_scaling")) {
    c.compress_rope_scaling = read_scaling(f.object("rope_scaling"));
  }
  c.rope_theta = f.number("rope_theta", 1.0, kMaxTheta);
  c.compress_rope_theta = f.number("compress_rope_theta", 1.0, kMaxTheta);
}

int read_rope_head_dim(const Fields& f, int head_dim) {
  if (f.has("qk_rope_head_dim")) return f.integer("qk_rope_head_dim", 2, head_dim);
  const double dims = f.number("partial_rotary_factor", 0.0, 1.0) * head_dim;
  if (dims < 2 || dims != std::floor(dims)) {
    f.fail("partial_rotary_factor", "expected a whole number of dims >= 2 of head_dim = ", head_dim, ", got ", dims);
  }
  return static_cast<int>(dims);
}

QuantizationInfo read_quantization(const Fields& f) {
  QuantizationInfo q;
  if (f.has("quantization_config")) {
    const Fields qc = f.object("quantization_config");
    qc.string_value("quant_method", qc.need("quant_method", "\"fp8\""));
    qc.must_be("quant_method", "fp8");
    qc.must_be("fmt", "e4m3");
    if (qc.has("weight_block_size")) {
      const Json& size = qc.array("weight_block_size");
      if (size.size() != 2) qc.fail("weight_block_size", "expected 2 entries, got ", size.size());
      for (std::size_t i = 0; i < 2; ++i) qc.integer_value(indexed("weight_block_size", i), size[i], 128, 128);
    }
    q.fp8 = true;
  }
  // Published fp8 configs without the key have fp4 experts too (S-1.2).
  q.fp4_experts = q.fp8;
  if (const Json* expert = f.find("expert_dtype")) {
    const std::string& dtype = f.string_value("expert_dtype", *expert);
    if (dtype != "fp4" && dtype != "fp8" && dtype != "bf16") {
      f.fail("expert_dtype", "expected fp4, fp8 or bf16, got ", quote(dtype));
    }
    q.fp4_experts = dtype == "fp4";
  }
  return q;
}

// What only one value of is implemented. Absent keys mean that value.
void check_fixed_settings(const Fields& f) {
  f.must_be("model_type", "deepseek_v4");
  f.must_be("num_key_value_heads", 1);
  f.must_be("hidden_act", "silu");
  f.must_be("scoring_func", "sqrtsoftplus");
  f.must_be("topk_method", "noaux_tc");
  f.must_be("norm_topk_prob", true);
  f.must_be("attention_bias", false);
  f.must_be("mlp_bias", false);
}

void read_token_ids(const Fields& f, ModelConfig& c) {
  c.bos_token_id = f.integer_or("bos_token_id", -1, 0, c.vocab_size - 1);
  c.pad_token_id = f.integer_or("pad_token_id", -1, 0, c.vocab_size - 1);
  const Json* eos = f.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    c.eos_token_ids.push_back(f.integer_value("eos_token_id", *eos, 0, c.vocab_size - 1));
    return;
  }
  for (std::size_t i = 0; i < eos->size(); ++i) {
    c.eos_token_ids.push_back(f.integer_value(indexed("eos_token_id", i), (*eos)[i], 0, c.vocab_size - 1));
  }
}

void read_indexer(const Fields& f, ModelConfig& c) {
  bool needed = false;
  for (const LayerConfig& layer : c.layers) needed = needed || layer.has_indexer();
  const auto size = [&](const char* key) { return needed ? f.integer(key) : f.integer_or(key, 0); };
  c.index_n_heads = size("index_n_heads");
  c.index_head_dim = size("index_head_dim");
  c.index_topk = size("index_topk");
  if (needed && c.index_head_dim < c.qk_rope_head_dim) {
    f.fail("index_head_dim", "expected at least the rotary dims, ", c.qk_rope_head_dim, ", got ", c.index_head_dim);
  }
}

}  // namespace

ModelConfig ModelConfig::parse(std::string_view text, const std::string& name) {
  const Json root = parse_json(text, name);
  TAMIS_CHECK(root.is_object(), Status::kDataError, name, ": expected an object, got ", json_text(root));
  const Fields f(root, name);
  check_fixed_settings(f);

  ModelConfig c;
  c.vocab_size = f.integer("vocab_size");
  c.hidden_size = f.integer("hidden_size");
  c.num_hidden_layers = f.integer("num_hidden_layers", 1, kMaxLayers);
  c.num_attention_heads = f.integer("num_attention_heads");
  c.head_dim = f.integer("head_dim");
  c.qk_rope_head_dim = read_rope_head_dim(f, c.head_dim);
  if (c.qk_rope_head_dim % 2 != 0) f.fail("qk_rope_head_dim", "expected an even number, got ", c.qk_rope_head_dim);
  c.q_lora_rank = f.integer("q_lora_rank");
  c.o_groups = f.integer("o_groups");
  if (c.num_attention_heads % c.o_groups != 0) {
    f.fail("o_groups", "expected a divisor of num_attention_heads = ", c.num_attention_heads, ", got ", c.o_groups);
  }
  c.o_lora_rank = f.integer("o_lora_rank");
  c.sliding_window = f.integer("sliding_window");
  c.rms_norm_eps = f.number_or("rms_norm_eps", 1e-6, 0.0, 1.0);
  c.hc_mult = f.integer("hc_mult", 1, 64);
  c.hc_sinkhorn_iters = f.integer("hc_sinkhorn_iters", 1, 1000);
  c.hc_eps = f.number_or("hc_eps", 1e-6, 0.0, 1.0);
  c.n_routed_experts = f.integer("n_routed_experts");
  c.num_experts_per_tok = f.integer("num_experts_per_tok", 1, c.n_routed_experts);
  c.n_shared_experts = f.integer("n_shared_experts", 0, 1);
  c.moe_intermediate_size = f.integer("moe_intermediate_size");
  c.routed_scaling_factor = f.number("routed_scaling_factor", 0.0, 1e6);
  c.swiglu_limit = f.number_or("swiglu_limit", 0.0, 0.0, 1e6);
  c.max_position_embeddings = f.integer("max_position_embeddings", 1, 1 << 30);
  c.tie_word_embeddings = f.boolean_or("tie_word_embeddings", false);
  c.num_nextn_predict_layers = f.integer_or("num_nextn_predict_layers", 0, 0, kMaxLayers);

  c.layers = read_layers(f, static_cast<std::size_t>(c.num_hidden_layers));
  read_rope(f, c);
  read_indexer(f, c);
  read_token_ids(f, c);
  c.quantization = read_quantization(f);
  return c;
}

ModelConfig ModelConfig::open(const std::filesystem::path& directory) {
  const auto path = directory / "config.json";
  return parse(read_text_file(path, kMaxConfigBytes), path.string());
}

}  // namespace tamis::model
