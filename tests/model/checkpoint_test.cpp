#include "model/checkpoint.hpp"

#include <cmath>
#include <limits>
#include <list>

#include "core/float_formats.hpp"
#include "model_files.hpp"

namespace tamis::model {
namespace {

// Tensors whose bytes the map points into.
class Tensors {
 public:
  template <typename T>
  void add(const std::string& name, FileDType dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    store_.emplace_back(bytes.begin(), bytes.end());
    map_[name] = {dtype, std::move(shape), store_.back()};
  }
  void copy(const std::string& name, const StoredTensor& tensor) { map_[name] = tensor; }
  const TensorMap& map() const { return map_; }

 private:
  std::list<std::vector<std::byte>> store_;
  TensorMap map_;
};

// A checkpoint of those tensors in a folder of its own.
class Written {
 public:
  explicit Written(const Tensors& tensors) { write_safetensors(folder_.path() / "model.safetensors", tensors.map()); }
  Checkpoint open() const { return Checkpoint::open(folder_.path()); }
  std::string where(const std::string& name) const { return folder_.path().string() + ": tensor \"" + name + "\""; }
  std::string directory() const { return folder_.path().string(); }

 private:
  TemporaryFolder folder_;
};

struct NamePair {
  const char* file;
  const char* official;
};
constexpr NamePair kNames[] = {
    {"model.embed_tokens.weight", "embed.weight"},
    {"lm_head.weight", "head.weight"},
    {"model.norm.weight", "norm.weight"},
    {"model.hc_head.hc_fn", "hc_head_fn"},
    {"model.hc_head.hc_base", "hc_head_base"},
    {"model.hc_head.hc_scale", "hc_head_scale"},
    {"model.layers.7.input_layernorm.weight", "layers.7.attn_norm.weight"},
    {"model.layers.7.post_attention_layernorm.weight", "layers.7.ffn_norm.weight"},
    {"model.layers.7.attn_hc.fn", "layers.7.hc_attn_fn"},
    {"model.layers.7.attn_hc.base", "layers.7.hc_attn_base"},
    {"model.layers.7.attn_hc.scale", "layers.7.hc_attn_scale"},
    {"model.layers.7.ffn_hc.fn", "layers.7.hc_ffn_fn"},
    {"model.layers.7.ffn_hc.base", "layers.7.hc_ffn_base"},
    {"model.layers.7.ffn_hc.scale", "layers.7.hc_ffn_scale"},
    {"model.layers.7.self_attn.q_a_proj.weight", "layers.7.attn.wq_a.weight"},
    {"model.layers.7.self_attn.q_b_proj.weight", "layers.7.attn.wq_b.weight"},
    {"model.layers.7.self_attn.kv_proj.weight", "layers.7.attn.wkv.weight"},
    {"model.layers.7.self_attn.o_a_proj.weight", "layers.7.attn.wo_a.weight"},
    {"model.layers.7.self_attn.o_b_proj.weight", "layers.7.attn.wo_b.weight"},
    {"model.layers.7.self_attn.o_b_proj.weight_scale_inv", "layers.7.attn.wo_b.scale"},
    {"model.layers.7.self_attn.q_a_norm.weight", "layers.7.attn.q_norm.weight"},
    {"model.layers.7.self_attn.q_norm.weight", "layers.7.attn.q_norm.weight"},
    {"model.layers.7.self_attn.kv_norm.weight", "layers.7.attn.kv_norm.weight"},
    {"model.layers.7.self_attn.sinks", "layers.7.attn.attn_sink"},
    {"model.layers.7.self_attn.attn_sink", "layers.7.attn.attn_sink"},
    {"model.layers.7.self_attn.compressor.kv_proj.weight", "layers.7.attn.compressor.wkv.weight"},
    {"model.layers.7.self_attn.compressor.gate_proj.weight", "layers.7.attn.compressor.wgate.weight"},
    {"model.layers.7.self_attn.compressor.kv_norm.weight", "layers.7.attn.compressor.norm.weight"},
    {"model.layers.7.self_attn.compressor.position_bias", "layers.7.attn.compressor.ape"},
    {"model.layers.7.self_attn.compressor.indexer.kv_proj.weight", "layers.7.attn.indexer.compressor.wkv.weight"},
    {"model.layers.7.self_attn.compressor.indexer.gate_proj.weight", "layers.7.attn.indexer.compressor.wgate.weight"},
    {"model.layers.7.self_attn.compressor.indexer.kv_norm.weight", "layers.7.attn.indexer.compressor.norm.weight"},
    {"model.layers.7.self_attn.compressor.indexer.position_bias", "layers.7.attn.indexer.compressor.ape"},
    {"model.layers.7.self_attn.compressor.indexer.q_b_proj.weight", "layers.7.attn.indexer.wq_b.weight"},
    {"model.layers.7.self_attn.compressor.indexer.scorer.weights_proj.weight",
     "layers.7.attn.indexer.weights_proj.weight"},
    {"model.layers.7.self_attn.compressor.indexer.weights_proj.weight", "layers.7.attn.indexer.weights_proj.weight"},
    {"model.layers.7.self_attn.indexer.compressor.norm.weight", "layers.7.attn.indexer.compressor.norm.weight"},
    {"model.layers.7.mlp.gate.weight", "layers.7.ffn.gate.weight"},
    {"model.layers.7.mlp.gate.e_score_correction_bias", "layers.7.ffn.gate.bias"},
    {"model.layers.7.mlp.gate.tid2eid", "layers.7.ffn.gate.tid2eid"},
    {"model.layers.7.mlp.shared_experts.gate_proj.weight", "layers.7.ffn.shared_experts.w1.weight"},
    {"model.layers.7.mlp.shared_experts.down_proj.weight", "layers.7.ffn.shared_experts.w2.weight"},
    {"model.layers.7.mlp.shared_experts.up_proj.weight", "layers.7.ffn.shared_experts.w3.weight"},
    {"model.layers.7.mlp.experts.12.gate_proj.weight", "layers.7.ffn.experts.12.w1.weight"},
    {"model.layers.7.mlp.experts.12.down_proj.weight_scale_inv", "layers.7.ffn.experts.12.w2.scale"},
    {"model.layers.7.mlp.experts.12.up_proj.weight", "layers.7.ffn.experts.12.w3.weight"},
    {"model.layers.7.mlp.experts.gate_up_proj", "layers.7.ffn.experts.gate_up_proj"},
    {"model.layers.7.mlp.experts.down_proj", "layers.7.ffn.experts.down_proj"},
    {"mtp.0.attn.wq_a.weight", "mtp.0.attn.wq_a.weight"},
    {"mtp.0.e_proj.scale", "mtp.0.e_proj.scale"},
    {"layers.x.self_attn.sinks", "layers.x.self_attn.sinks"},
    {"layers.3", "layers.3"},
    {"something.else", "something.else"},
    {"", ""},
};

TEST(Checkpoint, OfficialNames) {
  for (const NamePair& pair : kNames) {
    EXPECT_EQ(official_tensor_name(pair.file), pair.official) << pair.file;
    EXPECT_EQ(official_tensor_name(pair.official), pair.official) << pair.official;
  }
  const Checkpoint tiny = Checkpoint::open(tiny_v4());
  for (const std::string& name : tiny.names()) EXPECT_EQ(official_tensor_name("model." + name), name);
}

TEST(Checkpoint, TinyModel) {
  const Checkpoint c = Checkpoint::open(tiny_v4());
  EXPECT_EQ(c.directory(), tiny_v4());
  EXPECT_TRUE(c.has("layers.0.ffn.gate.tid2eid"));
  EXPECT_FALSE(c.has("layers.0.ffn.gate.bias"));
  const TensorInfo info = c.info("layers.1.attn.wkv.weight");
  EXPECT_EQ(info.shape, (std::vector<std::int64_t>{512, 256}));
  EXPECT_EQ(info.storage, Storage::kBFloat16);
  EXPECT_STREQ(storage_name(info.storage), "bf16");
  const auto values = c.read_fp32("layers.1.attn.wkv.weight", {512, 256});
  const auto bits = c.read_bf16("layers.1.attn.wkv.weight", {512, 256});
  ASSERT_EQ(values.size(), bits.size());
  float largest = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(values[i], core::bf16_to_float(bits[i]));
    largest = std::max(largest, std::abs(values[i]));
  }
  EXPECT_GT(largest, 0.0F);
  EXPECT_LT(largest, 10.0F);
  for (std::int64_t expert : c.read_int("layers.0.ffn.gate.tid2eid", {260, 2})) {
    EXPECT_GE(expert, 0);
    EXPECT_LT(expert, 4);
  }
}

TEST(Checkpoint, ErrorsNameTensorExpectedAndGot) {
  const Checkpoint c = Checkpoint::open(tiny_v4());
  const std::string at = tiny_v4().string() + ": tensor ";
  EXPECT_EQ(error_text(Status::kDataError, [&] { c.read_fp32("nope", {1}); }), at + "\"nope\" is missing");
  EXPECT_EQ(error_text(Status::kDataError, [&] { c.info("nope"); }), at + "\"nope\" is missing");
  EXPECT_EQ(error_text(Status::kDataError, [&] { c.read_int("nope", {1}); }), at + "\"nope\" is missing");
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         c.read_fp32("embed.weight", {256, 260});
                       }),
            at + "\"embed.weight\": expected shape [256, 260], got [260, 256]");
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         c.read_fp32("embed.weight", {260, 256, 1});
                       }),
            at + "\"embed.weight\": expected shape [260, 256, 1], got [260, 256]");
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         c.read_int("embed.weight", {260, 256});
                       }),
            at + "\"embed.weight\": expected integers, got BF16");
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         c.read_fp32("layers.0.ffn.gate.tid2eid", {260, 2});
                       }),
            at + "\"layers.0.ffn.gate.tid2eid\": expected floating-point values, got I64");
  std::vector<float> small(3);
  const std::int64_t shape[] = {256};
  EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { c.read_fp32_into("norm.weight", shape, small); }),
            "read_fp32_into: \"norm.weight\": out has 3 elements, must have 256");
}

// The tiny model again, under the names and fused experts of transformers.
TEST(Checkpoint, TransformersNamesGiveTheSameValues) {
  const Checkpoint official = Checkpoint::open(tiny_v4());
  Tensors tensors;
  const auto renamed = [](std::string name) {
    const auto replace = [&](std::string_view from, std::string_view to) {
      if (const auto at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
    };
    for (const NamePair& pair : {NamePair{".attn.indexer.compressor.", ".self_attn.compressor.indexer."},
                                 {".attn.indexer.weights_proj", ".self_attn.compressor.indexer.scorer.weights_proj"},
                                 {".attn.indexer.", ".self_attn.compressor.indexer."},
                                 {".attn.", ".self_attn."},
                                 {".compressor.norm.", ".compressor.kv_norm."},
                                 {".indexer.norm.", ".indexer.kv_norm."},
                                 {".ape", ".position_bias"},
                                 {".wq_a.", ".q_a_proj."},
                                 {".wq_b.", ".q_b_proj."},
                                 {".wkv.", ".kv_proj."},
                                 {".wgate.", ".gate_proj."},
                                 {".wo_a.", ".o_a_proj."},
                                 {".wo_b.", ".o_b_proj."},
                                 {".q_norm.", ".q_a_norm."},
                                 {".attn_sink", ".sinks"},
                                 {".attn_norm.", ".input_layernorm."},
                                 {".ffn_norm.", ".post_attention_layernorm."},
                                 {".hc_attn_", ".attn_hc."},
                                 {".hc_ffn_", ".ffn_hc."},
                                 {".ffn.", ".mlp."},
                                 {".gate.bias", ".gate.e_score_correction_bias"},
                                 {".w1.", ".gate_proj."},
                                 {".w2.", ".down_proj."},
                                 {".w3.", ".up_proj."},
                                 {"hc_head_", "hc_head.hc_"}}) {
      replace(pair.file, pair.official);
    }
    if (name == "embed.weight") return std::string("model.embed_tokens.weight");
    if (name == "head.weight") return std::string("lm_head.weight");
    return "model." + name;
  };
  for (const std::string& name : official.names()) {
    if (name.find(".ffn.experts.") == std::string::npos) tensors.copy(renamed(name), official.raw(name).values);
  }
  for (int layer = 0; layer < 5; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".ffn.experts.";
    std::vector<std::uint16_t> gate_up, down;
    for (int expert = 0; expert < 4; ++expert) {
      for (const char* name : {".w1.weight", ".w3.weight"}) {
        const auto part = official.read_bf16(prefix + std::to_string(expert) + name, {96, 256});
        gate_up.insert(gate_up.end(), part.begin(), part.end());
      }
      const auto part = official.read_bf16(prefix + std::to_string(expert) + ".w2.weight", {256, 96});
      down.insert(down.end(), part.begin(), part.end());
    }
    const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    tensors.add(mlp + "gate_up_proj", FileDType::kBF16, {4, 192, 256}, gate_up);
    tensors.add(mlp + "down_proj", FileDType::kBF16, {4, 256, 96}, down);
  }
  const Written written(tensors);
  const Checkpoint other = written.open();
  ASSERT_EQ(other.names(), official.names());
  for (const std::string& name : official.names()) {
    const TensorInfo info = official.info(name);
    EXPECT_NE(other.info(name).file_name, name == "norm.weight" ? "" : name);
    ASSERT_EQ(other.info(name).shape, info.shape) << name;
    const auto a = official.raw(name).values.bytes, b = other.raw(name).values.bytes;
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
    if (info.storage != Storage::kInteger) {
      EXPECT_EQ(other.read_fp32(name, info.shape), official.read_fp32(name, info.shape)) << name;
    }
  }
  EXPECT_EQ(error_text(Status::kDataError,
                       [&] {
                         other.read_fp32("layers.1.ffn.experts.2.w3.weight", {96, 255});
                       }),
            written.where("layers.1.ffn.experts.2.w3.weight") +
                " (in the file \"model.layers.1.mlp.experts.gate_up_proj\"): expected shape [96, 255], got [96, 256]");
}

TEST(Checkpoint, PlainStorage) {
  Tensors tensors;
  tensors.add<float>("f32", FileDType::kF32, {3}, {1.5F, -0.0F, 3e38F});
  tensors.add<std::uint16_t>("f16", FileDType::kF16, {2}, {0x3C00, 0x0001});
  tensors.add<std::uint16_t>("bf16", FileDType::kBF16, {1, 2}, {0x3F80, 0xC000});
  tensors.add<std::int8_t>("i8", FileDType::kI8, {2}, {-1, 127});
  tensors.add<std::uint8_t>("u8", FileDType::kU8, {2}, {255, 0});
  tensors.add<std::int32_t>("i32", FileDType::kI32, {2}, {-2147483647, 5});
  tensors.add<std::int64_t>("i64", FileDType::kI64, {1}, {std::int64_t{1} << 60});
  tensors.add<float>("empty", FileDType::kF32, {0, 4}, {});
  tensors.add<std::uint8_t>("scales", FileDType::kF8E8M0, {1}, {127});
  tensors.add<std::uint8_t>("lone", FileDType::kF8E4M3, {1, 1}, {0x38});
  const Written written(tensors);
  const Checkpoint c = written.open();
  EXPECT_EQ(c.read_fp32("f32", {3}), (std::vector<float>{1.5F, -0.0F, 3e38F}));
  EXPECT_TRUE(std::signbit(c.read_fp32("f32", {3})[1]));
  EXPECT_EQ(c.read_fp32("f16", {2}), (std::vector<float>{1.0F, 0x1p-24F}));
  EXPECT_EQ(c.read_fp32("bf16", {1, 2}), (std::vector<float>{1.0F, -2.0F}));
  EXPECT_EQ(c.read_bf16("f16", {2}), (std::vector<std::uint16_t>{0x3F80, 0x3380}));
  EXPECT_EQ(c.read_int("i8", {2}), (std::vector<std::int64_t>{-1, 127}));
  EXPECT_EQ(c.read_int("u8", {2}), (std::vector<std::int64_t>{255, 0}));
  EXPECT_EQ(c.read_int("i32", {2}), (std::vector<std::int64_t>{-2147483647, 5}));
  EXPECT_EQ(c.read_int("i64", {1}), (std::vector<std::int64_t>{std::int64_t{1} << 60}));
  EXPECT_TRUE(c.read_fp32("empty", {0, 4}).empty());
  EXPECT_EQ(error_text(Status::kDataError, [&] { c.info("scales"); }),
            written.where("scales") + ": F8_E8M0 holds scales, not values");
  EXPECT_EQ(error_text(Status::kDataError, [&] { c.info("lone"); }),
            written.where("lone") + ": F8_E4M3 without a scale tensor");
}

// Every code under distinct scales, in a matrix whose edge blocks are partial.
TEST(Checkpoint, DequantisesFp8Exactly) {
  constexpr std::int64_t kRows = 130, kColumns = 259;
  std::vector<std::uint8_t> codes;
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    const auto code = static_cast<std::uint8_t>(i % 251);
    codes.push_back((code & 0x7F) == 0x7F ? 0 : code);
  }
  const std::vector<std::uint8_t> exponents = {127, 120, 0, 140, 254, 100};  // [2, 3]
  std::vector<float> scales;
  for (std::uint8_t e : exponents) scales.push_back(std::ldexp(1.0F, e - 127));
  for (const bool e8m0 : {true, false}) {
    Tensors tensors;
    tensors.add("layers.0.attn.wkv.weight", FileDType::kF8E4M3, {kRows, kColumns}, codes);
    if (e8m0) tensors.add("layers.0.attn.wkv.scale", FileDType::kF8E8M0, {2, 3}, exponents);
    else tensors.add("layers.0.attn.wkv.weight_scale_inv", FileDType::kF32, {2, 3}, scales);
    const Written written(tensors);
    const Checkpoint c = written.open();
    EXPECT_EQ(c.names(), std::vector<std::string>{"layers.0.attn.wkv.weight"});
    EXPECT_EQ(c.info("layers.0.attn.wkv.weight").storage, Storage::kFloat8Blocks);
    const auto values = c.read_fp32("layers.0.attn.wkv.weight", {kRows, kColumns});
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t col = 0; col < kColumns; ++col) {
        const auto i = static_cast<std::size_t>(r * kColumns + col);
        const double exact = static_cast<double>(core::e4m3_to_float(codes[i])) *
                             std::ldexp(1.0, exponents[static_cast<std::size_t>(r / 128 * 3 + col / 128)] - 127);
        ASSERT_EQ(values[i], static_cast<float>(exact)) << r << " " << col;
      }
    }
  }
}

TEST(Checkpoint, DequantisesFp4Exactly) {
  constexpr std::int64_t kRows = 3, kColumns = 80;  // two groups of 32 and one of 16
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < kRows * kColumns / 2; ++i) bytes.push_back(static_cast<std::uint8_t>(i * 37));
  const std::vector<std::uint8_t> exponents = {127, 1, 253, 130, 120, 126, 128, 100, 0};
  for (const FileDType dtype : {FileDType::kI8, FileDType::kU8}) {
    Tensors tensors;
    tensors.add("layers.0.ffn.experts.0.w1.weight", dtype, {kRows, kColumns / 2}, bytes);
    tensors.add("layers.0.ffn.experts.0.w1.scale", FileDType::kF8E8M0, {kRows, 3}, exponents);
    const Written written(tensors);
    const Checkpoint c = written.open();
    const TensorInfo info = c.info("layers.0.ffn.experts.0.w1.weight");
    EXPECT_EQ(info.storage, Storage::kFloat4Groups);
    EXPECT_EQ(info.shape, (std::vector<std::int64_t>{kRows, kColumns}));
    EXPECT_EQ(c.raw("layers.0.ffn.experts.0.w1.weight").values.shape[1], kColumns / 2);
    const auto values = c.read_fp32("layers.0.ffn.experts.0.w1.weight", {kRows, kColumns});
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t col = 0; col < kColumns; ++col) {
        const auto i = static_cast<std::size_t>(r * kColumns + col);
        const int code = col % 2 == 0 ? bytes[i / 2] & 0xF : bytes[i / 2] >> 4;
        const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        const double exact = (code & 8 ? -1 : 1) * magnitudes[code & 7] *
                             std::ldexp(1.0, exponents[static_cast<std::size_t>(r * 3 + col / 32)] - 127);
        ASSERT_EQ(values[i], static_cast<float>(exact)) << r << " " << col;
      }
    }
  }
}

TEST(Checkpoint, BadScales) {
  const std::string name = "layers.0.attn.wkv.weight", scale = "layers.0.attn.wkv.scale";
  const std::vector<std::uint8_t> codes(4 * 130);
  const auto error = [&](FileDType dtype, std::vector<std::int64_t> shape, std::uint8_t byte, FileDType values,
                         bool read) {
    Tensors tensors;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file_dtype_bytes(dtype) * shape[0] * shape[1]), byte);
    const std::int64_t rows = values == FileDType::kBF16 ? 2 : 4;
    tensors.add(name, values, {rows, 130}, codes);
    tensors.add(scale, dtype, shape, bytes);
    const Written written(tensors);
    const Checkpoint c = written.open();
    const std::string text = error_text(Status::kDataError, [&] {
      if (read) c.read_fp32(name, {rows, values == FileDType::kI8 ? 260 : 130});
      else c.info(name);
    });
    EXPECT_TRUE(text.starts_with(written.where(name) + ": ")) << text;
    return text.substr(written.where(name).size() + 2);
  };
  EXPECT_EQ(error(FileDType::kF8E8M0, {2, 1}, 127, FileDType::kF8E4M3, false),
            "scale \"layers.0.attn.wkv.scale\": expected [1, 2] for values [4, 130], got [2, 1]");
  EXPECT_EQ(error(FileDType::kF8E8M0, {4, 8}, 127, FileDType::kI8, false),
            "scale \"layers.0.attn.wkv.scale\": expected [4, 9] for values [4, 130], got [4, 8]");
  EXPECT_EQ(error(FileDType::kBF16, {1, 2}, 0, FileDType::kF8E4M3, false),
            "scale \"layers.0.attn.wkv.scale\": expected F8_E8M0 or F32, got BF16");
  EXPECT_EQ(error(FileDType::kF8E8M0, {1, 2}, 127, FileDType::kBF16, false),
            "BF16 values do not take a scale, but \"layers.0.attn.wkv.scale\" is there");
  EXPECT_EQ(error(FileDType::kF8E8M0, {1, 2}, 255, FileDType::kF8E4M3, true),
            "scale \"layers.0.attn.wkv.scale\": element 0 is not a finite number");
  EXPECT_EQ(error(FileDType::kF32, {4, 9}, 255, FileDType::kI8, true),
            "scale \"layers.0.attn.wkv.scale\": element 0 is not a finite number");
}

// Sizes of a tensor without bytes are bounded by nothing in the file.
TEST(Checkpoint, HugeEmptyTensors) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 48;
  Tensors tensors;
  tensors.add<float>("a", FileDType::kF32, {kHuge, kHuge, 0}, {});
  tensors.add<float>("model.layers.0.mlp.experts.down_proj", FileDType::kF32, {2, kHuge, 0}, {});
  tensors.add<float>("layers.0.attn.wkv.weight", FileDType::kF8E4M3, {kHuge, 0}, {});
  tensors.add<float>("layers.0.attn.wkv.scale", FileDType::kF32, {kHuge / 128, 0}, {});
  const Written written(tensors);
  const Checkpoint c = written.open();
  EXPECT_EQ(c.names().size(), 4U);
  for (const std::string& name : c.names()) {
    const auto shape = c.info(name).shape;
    EXPECT_TRUE(c.read_fp32(name, shape).empty());
    EXPECT_TRUE(c.raw(name).values.bytes.empty());
  }
}

TEST(Checkpoint, BadCollections) {
  const auto error = [](const Tensors& tensors) {
    const Written written(tensors);
    const std::string text = error_text(Status::kDataError, [&] { written.open(); });
    EXPECT_TRUE(text.starts_with(written.directory() + ": tensor")) << text;
    return text.substr(written.directory().size() + 2);
  };
  const std::vector<float> one = {1.0F};
  Tensors twice;
  twice.add("embed.weight", FileDType::kF32, {1}, one);
  twice.add("model.embed_tokens.weight", FileDType::kF32, {1}, one);
  EXPECT_EQ(error(twice), "tensor \"embed.weight\" is there twice, once as \"embed.weight\"");
  Tensors scales;
  scales.add("layers.0.attn.wkv.weight_scale_inv", FileDType::kF32, {1}, one);
  EXPECT_EQ(error(scales),
            "tensor \"layers.0.attn.wkv.weight_scale_inv\" is the scale of \"layers.0.attn.wkv.weight\", which is not "
            "there");
  scales.add("layers.0.attn.wkv.scale", FileDType::kF32, {1}, one);
  EXPECT_EQ(error(scales),
            "tensors \"layers.0.attn.wkv.scale\" and \"layers.0.attn.wkv.weight_scale_inv\" are both "
            "\"layers.0.attn.wkv.scale\"");
  Tensors fused;
  fused.add("model.layers.0.mlp.experts.gate_up_proj", FileDType::kF32, {1, 1, 1}, one);
  EXPECT_EQ(error(fused),
            "tensor \"model.layers.0.mlp.experts.gate_up_proj\": expected [experts, 2 * inter, hidden], got [1, 1, 1]");
  Tensors endless;  // no bytes, so any count fits the file
  endless.add<float>("model.layers.0.mlp.experts.down_proj", FileDType::kF32, {std::int64_t{1} << 40, 0, 1}, {});
  EXPECT_EQ(
      error(endless),
      "tensor \"model.layers.0.mlp.experts.down_proj\": expected [experts, hidden, inter], got [1099511627776, 0, "
      "1]");
}

}  // namespace
}  // namespace tamis::model
