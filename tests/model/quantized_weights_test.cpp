#include "model/quantized_weights.hpp"

#include <cmath>
#include <limits>
#include <random>

#include "core/float_formats.hpp"
#include "model/checkpoint.hpp"
#include "model/config.hpp"
#include "model/json_file.hpp"
#include "model_files.hpp"

namespace tamis::model {
namespace {

std::vector<float> random_matrix(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.05F);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

// Half the distance between neighbouring codes: 2^-4 of the value for normal e4m3 (3 mantissa bits), 2^-10 of the scale
// for subnormals (multiples of 2^-9).
double fp8_bound(double value, double scale) { return std::max(std::abs(value) * 0x1p-4, scale * 0x1p-10); }

// e2m1 has steps of 1/2 up to 2, of 1 up to 4 and of 2 up to 6.
double fp4_bound(double value, double scale) {
  const double x = std::abs(value) / scale;
  return scale * (x <= 2 ? 0.25 : x <= 4 ? 0.5 : 1.0);
}

TEST(QuantizedWeights, Fp8ScaleIsTheSmallestThatHolds) {
  for (int e = -30; e <= 30; ++e) {
    const float top = 448.0F * core::exp2_int(e);
    const struct {
      float amax;
      int exponent;
    } cases[] = {{top, e}, {std::nextafter(top, 1e38F), e + 1}, {std::nextafter(top, 0.0F), e}, {-top, e}};
    for (const auto& c : cases) {
      const float values[] = {0.0F, c.amax, -0.0F};
      const QuantizedMatrix q = quantize_fp8_blocks(values, 1, 3);
      ASSERT_EQ(q.scales, std::vector<std::uint8_t>{static_cast<std::uint8_t>(c.exponent + 127)}) << c.amax;
      const double scale = std::ldexp(1.0, c.exponent);
      EXPECT_LE(std::abs(core::e4m3_to_float(q.values[1]) * scale - c.amax), fp8_bound(c.amax, scale));
      EXPECT_EQ(q.values[0], 0x00);
      EXPECT_EQ(q.values[2], 0x80);
    }
  }
}

TEST(QuantizedWeights, Fp4ScaleIsTheSmallestThatHolds) {
  for (int e = -30; e <= 30; ++e) {
    const float top = 6.0F * core::exp2_int(e);
    const float amax[] = {top, std::nextafter(top, 1e38F), std::nextafter(top, 0.0F)};
    const int exponents[] = {e, e + 1, e};
    for (int i = 0; i < 3; ++i) {
      const float values[] = {-amax[i], 0.0F};
      const QuantizedMatrix q = quantize_fp4_groups(values, 1, 2);
      EXPECT_EQ(q.scales, std::vector<std::uint8_t>{static_cast<std::uint8_t>(exponents[i] + 127)}) << amax[i];
      EXPECT_EQ(q.values[0] >> 4, 0);
      EXPECT_EQ(q.values[0] & 0xF, i == 1 ? 0xD : 0xF);  // -3 under the doubled scale, else -6
    }
  }
}

TEST(QuantizedWeights, ExtremeMagnitudes) {
  const float zeros[4] = {};
  EXPECT_EQ(quantize_fp8_blocks(zeros, 2, 2).scales, std::vector<std::uint8_t>{127});
  EXPECT_EQ(quantize_fp4_groups(zeros, 2, 2).scales, (std::vector<std::uint8_t>{127, 127}));
  const float tiny[] = {std::numeric_limits<float>::denorm_min(), -std::numeric_limits<float>::min()};
  EXPECT_EQ(quantize_fp8_blocks(tiny, 1, 2).scales, std::vector<std::uint8_t>{1});
  EXPECT_EQ(quantize_fp8_blocks(tiny, 1, 2).values[1], 0xB8);  // -1 * 2^-126
  EXPECT_EQ(quantize_fp4_groups(tiny, 1, 2).values[0], 0xA0);
  const float huge[] = {std::numeric_limits<float>::max(), 0.0F};
  EXPECT_EQ(quantize_fp8_blocks(huge, 1, 2).scales, std::vector<std::uint8_t>{127 + 120});
  EXPECT_EQ(quantize_fp4_groups(huge, 1, 2).scales, std::vector<std::uint8_t>{127 + 126});
  EXPECT_TRUE(quantize_fp8_blocks({}, 0, 5).scales.empty());
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const float values[] = {1.0F, 1.0F, 1.0F, bad};
    const std::string got = std::isnan(bad) ? "nan" : "inf";
    EXPECT_EQ(error_text(Status::kDataError, [&] { quantize_fp8_blocks(values, 2, 2); }),
              "expected finite weights, got " + got + " at [1, 1]");
    EXPECT_EQ(error_text(Status::kDataError, [&] { quantize_fp4_groups(values, 2, 2); }),
              "expected finite weights, got " + got + " at [1, 1]");
  }
  EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { quantize_fp4_groups(zeros, 4, 1); }),
            "quantize_fp4_groups: columns is 1, must be even");
  EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { quantize_fp8_blocks(zeros, 4, 2); }),
            "quantize_fp8_blocks: values has 4 elements, must have 4 * 2");
}

TEST(QuantizedWeights, EdgeBlocksKeepTheBound) {
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{1, 2}, {127, 130}, {129, 128}, {200, 320}}) {
    const std::vector<float> values = random_matrix(rows * columns, static_cast<unsigned>(rows));
    const QuantizedMatrix fp8 = quantize_fp8_blocks(values, rows, columns);
    const QuantizedMatrix fp4 = quantize_fp4_groups(values, rows, columns);
    const std::int64_t blocks = (columns + 127) / 128, groups = (columns + 31) / 32;
    ASSERT_EQ(static_cast<std::int64_t>(fp8.scales.size()), (rows + 127) / 128 * blocks);
    ASSERT_EQ(static_cast<std::int64_t>(fp4.scales.size()), rows * groups);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto i = static_cast<std::size_t>(r * columns + c);
        const double s8 = std::ldexp(1.0, fp8.scales[static_cast<std::size_t>(r / 128 * blocks + c / 128)] - 127);
        ASSERT_LE(std::abs(core::e4m3_to_float(fp8.values[i]) * s8 - values[i]), fp8_bound(values[i], s8));
        const double s4 = std::ldexp(1.0, fp4.scales[static_cast<std::size_t>(r * groups + c / 32)] - 127);
        const auto code = static_cast<std::uint8_t>(c % 2 == 0 ? fp4.values[i / 2] & 0xF : fp4.values[i / 2] >> 4);
        ASSERT_LE(std::abs(core::e2m1_to_float(code) * s4 - values[i]), fp4_bound(values[i], s4));
      }
    }
  }
}

TEST(QuantizedWeights, WhichTensors) {
  for (const char* name :
       {"layers.0.attn.wq_a.weight", "layers.60.attn.wo_b.weight", "mtp.0.attn.wkv.weight",
        "layers.3.attn.indexer.wq_b.weight", "layers.3.ffn.shared_experts.w2.weight", "mtp.0.e_proj.weight"}) {
    EXPECT_EQ(official_format(name), OfficialFormat::kFp8Blocks) << name;
  }
  for (const char* name :
       {"layers.0.ffn.experts.0.w1.weight", "layers.0.ffn.experts.383.w3.weight", "mtp.0.ffn.experts.1.w2.weight"}) {
    EXPECT_EQ(official_format(name), OfficialFormat::kFp4Groups) << name;
  }
  for (const char* name : {"embed.weight", "head.weight", "layers.0.attn.compressor.wkv.weight",
                           "layers.0.attn.indexer.weights_proj.weight", "layers.0.attn.q_norm.weight",
                           "layers.0.ffn.gate.weight", "layers.0.attn.attn_sink", "layers.0.hc_attn_fn",
                           "layers.x.attn.wkv.weight", "layers.0.e_proj.weight", "attn.wkv.weight", "layers.0",
                           "layers.", "layers.0.ffn.experts.w1.weight", "layers.0.ffn.experts.0.w4.weight", ""}) {
    EXPECT_EQ(official_format(name), OfficialFormat::kUnchanged) << name;
  }
}

TEST(QuantizeCheckpoint, TinyModelKeepsTheBoundAndTheRest) {
  const TemporaryFolder folder;
  const auto out = folder.path() / "new" / "fp8";
  const QuantizeReport report = quantize_checkpoint(tiny_v4(), out);
  const Checkpoint before = Checkpoint::open(tiny_v4()), after = Checkpoint::open(out);
  ASSERT_EQ(after.names(), before.names());
  int fp8 = 0, fp4 = 0, unchanged = 0;
  for (const std::string& name : before.names()) {
    const TensorInfo info = after.info(name);
    ASSERT_EQ(info.shape, before.info(name).shape) << name;
    EXPECT_EQ(info.file_name, name);
    if (official_format(name) == OfficialFormat::kUnchanged) {
      ++unchanged;
      EXPECT_EQ(info.storage, before.info(name).storage);
      const auto a = before.raw(name).values.bytes, b = after.raw(name).values.bytes;
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
      continue;
    }
    const bool is_fp8 = info.storage == Storage::kFloat8Blocks;
    EXPECT_EQ(is_fp8, official_format(name) == OfficialFormat::kFp8Blocks) << name;
    is_fp8 ? ++fp8 : ++fp4;
    const auto exact = before.read_fp32(name, info.shape), read = after.read_fp32(name, info.shape);
    const RawTensor raw = after.raw(name);
    EXPECT_EQ(raw.values.dtype, is_fp8 ? FileDType::kF8E4M3 : FileDType::kI8);
    EXPECT_EQ(raw.scale->dtype, FileDType::kF8E8M0);
    const std::int64_t columns = info.shape[1], scale_columns = raw.scale->shape[1];
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const std::int64_t r = static_cast<std::int64_t>(i) / columns, c = static_cast<std::int64_t>(i) % columns;
      const std::int64_t at = is_fp8 ? r / 128 * scale_columns + c / 128 : r * scale_columns + c / 32;
      const double scale = std::ldexp(1.0, std::to_integer<int>(raw.scale->bytes[static_cast<std::size_t>(at)]) - 127);
      ASSERT_LE(std::abs(static_cast<double>(read[i]) - exact[i]),
                is_fp8 ? fp8_bound(exact[i], scale) : fp4_bound(exact[i], scale))
          << name << " " << i;
    }
  }
  EXPECT_EQ(report.num_fp8, fp8);
  EXPECT_EQ(report.num_fp4, fp4);
  EXPECT_EQ(report.num_unchanged, unchanged);
  EXPECT_EQ(fp4, 5 * 4 * 3);
  EXPECT_EQ(fp8, 5 * (5 + 3) + 2);  // five projections and three of the shared expert a layer, two indexers
  EXPECT_LT(report.bytes_after, report.bytes_before);

  const ModelConfig config = ModelConfig::open(out);
  EXPECT_TRUE(config.quantization.fp8);
  EXPECT_TRUE(config.quantization.fp4_experts);
  EXPECT_EQ(config.layers.size(), 5U);
  EXPECT_EQ(file_text(out / "tokenizer.json"), file_text(tiny_v4() / "tokenizer.json"));
  EXPECT_EQ(file_text(out / "tokenizer_config.json"), file_text(tiny_v4() / "tokenizer_config.json"));

  // What is representable already comes out with the same values.
  quantize_checkpoint(out, folder.path() / "again");
  const Checkpoint again = Checkpoint::open(folder.path() / "again");
  for (const std::string& name : after.names()) {
    const TensorInfo info = after.info(name);
    if (info.storage == Storage::kInteger) continue;
    EXPECT_EQ(again.read_fp32(name, info.shape), after.read_fp32(name, info.shape)) << name;
  }
}

// Whatever was in the folder before: new weights beside an old config would run as a model that nobody made.
TEST(QuantizeCheckpoint, ALateFailureLeavesNoConfig) {
  const TemporaryFolder folder;
  folder.write("config.json", "{\"of\": \"another model\"}");
  std::filesystem::create_directory(folder.path() / "tokenizer_config.json");  // cannot be replaced by a file
  const std::string error = error_text(Status::kDataError, [&] { quantize_checkpoint(tiny_v4(), folder.path()); });
  EXPECT_TRUE(error.starts_with((folder.path() / "tokenizer_config.json").string() + ": cannot be replaced: "))
      << error;
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "config.json"));

  std::filesystem::create_directory(folder.path() / "config.json");
  EXPECT_EQ(error_text(Status::kDataError, [&] { quantize_checkpoint(tiny_v4(), folder.path()); }),
            (folder.path() / "config.json").string() + ": a folder, cannot be replaced");
}

TEST(QuantizeCheckpoint, Errors) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_text(Status::kDataError, [&] { quantize_checkpoint(folder.path(), folder.path() / "x"); }),
            (folder.path() / "config.json").string() + ": no such file");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "x"));
  EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { quantize_checkpoint(tiny_v4(), ""); }),
            "quantize: the destination is empty, must name a folder");
  EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { quantize_checkpoint(tiny_v4(), tiny_v4() / "."); }),
            "quantize: the destination is the source folder, " + tiny_v4().string());

  folder.write("config.json", file_text(tiny_v4() / "config.json"));
  const float bad[] = {1.0F, std::numeric_limits<float>::infinity()};
  write_safetensors(folder.path() / "model.safetensors",
                    {{"layers.0.attn.wkv.weight", {FileDType::kF32, {1, 2}, std::as_bytes(std::span(bad))}}});
  EXPECT_EQ(
      error_text(Status::kDataError, [&] { quantize_checkpoint(folder.path(), folder.path() / "y"); }),
      folder.path().string() + ": tensor \"layers.0.attn.wkv.weight\": expected finite weights, got inf at [0, 1]");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "y"));  // neither a half file nor a config
  write_safetensors(folder.path() / "model.safetensors",
                    {{"layers.0.ffn.experts.0.w1.weight", {FileDType::kF32, {2, 1}, std::as_bytes(std::span(bad))}}});
  EXPECT_EQ(error_text(Status::kDataError, [&] { quantize_checkpoint(folder.path(), folder.path() / "y"); }),
            folder.path().string() +
                ": tensor \"layers.0.ffn.experts.0.w1.weight\": expected a matrix with an even number of columns, got "
                "[2, 1]");
}

}  // namespace
}  // namespace tamis::model
