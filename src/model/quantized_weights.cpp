#include "model/quantized_weights.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/check.hpp"
#include "core/float_formats.hpp"
#include "model/checkpoint.hpp"
#include "model/config.hpp"
#include "model/json_file.hpp"

namespace tamis::model {
namespace {

constexpr std::uint64_t kMaxSmallFileBytes = 256U << 20;

// Smallest e with max_code * 2^e >= amax, exactly: max_code = mantissa * 2^exponent with mantissa in [0.5, 1).
// At e >= -126 both 2^e and 2^-e are normal numbers.
int scale_exponent(float amax, float mantissa, int exponent) {
  if (amax == 0.0F) return 0;
  int e = 0;
  const float m = std::frexp(amax, &e);
  return std::max(-126, e - exponent + (m > mantissa ? 1 : 0));
}
int fp8_scale_exponent(float amax) { return scale_exponent(amax, 0.875F, 9); }  // 448 = 0.875 * 2^9
int fp4_scale_exponent(float amax) { return scale_exponent(amax, 0.75F, 3); }   // 6 = 0.75 * 2^3

// Division by 2^e in one exact step wherever the quotient is a normal number.
float divided_by_exp2(float value, int e) { return value * core::exp2_int(-e); }

struct Extents {
  std::int64_t row_begin, row_end, column_begin, column_end;
};

float largest_magnitude(std::span<const float> values, std::int64_t columns, const Extents& x) {
  float amax = 0.0F;
  for (std::int64_t r = x.row_begin; r < x.row_end; ++r) {
    for (std::int64_t c = x.column_begin; c < x.column_end; ++c) {
      const float v = values[static_cast<std::size_t>(r * columns + c)];
      TAMIS_CHECK(std::isfinite(v), Status::kDataError, "expected finite weights, got ", v, " at [", r, ", ", c, "]");
      amax = std::max(amax, std::abs(v));
    }
  }
  return amax;
}

void check_matrix(const char* operation, std::span<const float> values, std::int64_t rows, std::int64_t columns) {
  const std::int64_t shape[] = {rows, columns};
  TAMIS_CHECK(rows >= 0 && columns >= 0 && static_cast<std::int64_t>(values.size()) == element_count(shape),
              Status::kInvalidArgument, operation, ": values has ", values.size(), " elements, must have ", rows, " * ",
              columns);
}

std::string_view after_number(std::string_view text) {
  const std::size_t end = text.find_first_not_of("0123456789");
  return end == 0 || end == std::string_view::npos ? std::string_view() : text.substr(end);
}

void copy_if_there(const std::filesystem::path& source, const std::filesystem::path& destination, const char* file) {
  if (!file_exists(source / file)) return;
  const std::string text = read_text_file(source / file, kMaxSmallFileBytes);
  write_file(destination / file, std::as_bytes(std::span(text)));
}

// Each output tensor and where it comes from.
struct Piece {
  std::string source;  ///< official name of the weight
  OfficialFormat format = OfficialFormat::kUnchanged;
  bool scale = false;
};

}  // namespace

QuantizedMatrix quantize_fp8_blocks(std::span<const float> values, std::int64_t rows, std::int64_t columns) {
  check_matrix("quantize_fp8_blocks", values, rows, columns);
  QuantizedMatrix q;
  if (values.empty()) return q;
  q.values.resize(values.size());
  for (std::int64_t r0 = 0; r0 < rows; r0 += kFp8Block) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += kFp8Block) {
      const Extents x{r0, std::min(rows, r0 + kFp8Block), c0, std::min(columns, c0 + kFp8Block)};
      const int e = fp8_scale_exponent(largest_magnitude(values, columns, x));
      q.scales.push_back(static_cast<std::uint8_t>(e + 127));
      for (std::int64_t r = x.row_begin; r < x.row_end; ++r) {
        for (std::int64_t c = x.column_begin; c < x.column_end; ++c) {
          const auto i = static_cast<std::size_t>(r * columns + c);
          q.values[i] = core::float_to_e4m3(divided_by_exp2(values[i], e));
        }
      }
    }
  }
  return q;
}

QuantizedMatrix quantize_fp4_groups(std::span<const float> values, std::int64_t rows, std::int64_t columns) {
  check_matrix("quantize_fp4_groups", values, rows, columns);
  TAMIS_CHECK(columns % 2 == 0, Status::kInvalidArgument, "quantize_fp4_groups: columns is ", columns,
              ", must be even");
  QuantizedMatrix q;
  if (values.empty()) return q;
  q.values.resize(values.size() / 2);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += kFp4Group) {
      const Extents x{r, r + 1, c0, std::min(columns, c0 + kFp4Group)};
      const int e = fp4_scale_exponent(largest_magnitude(values, columns, x));
      q.scales.push_back(static_cast<std::uint8_t>(e + 127));
      for (std::int64_t c = x.column_begin; c < x.column_end; c += 2) {
        const auto i = static_cast<std::size_t>(r * columns + c);
        const unsigned low = core::float_to_e2m1(divided_by_exp2(values[i], e));
        const unsigned high = core::float_to_e2m1(divided_by_exp2(values[i + 1], e));
        q.values[i / 2] = static_cast<std::uint8_t>(high << 4 | low);
      }
    }
  }
  return q;
}

OfficialFormat official_format(std::string_view name) {
  std::string_view rest;
  if (name.starts_with("layers.")) rest = after_number(name.substr(7));
  else if (name.starts_with("mtp.")) rest = after_number(name.substr(4));
  if (!rest.starts_with('.')) return OfficialFormat::kUnchanged;
  rest.remove_prefix(1);
  for (std::string_view fp8 : {"attn.wq_a.weight", "attn.wq_b.weight", "attn.wkv.weight", "attn.wo_a.weight",
                               "attn.wo_b.weight", "attn.indexer.wq_b.weight", "ffn.shared_experts.w1.weight",
                               "ffn.shared_experts.w2.weight", "ffn.shared_experts.w3.weight"}) {
    if (rest == fp8) return OfficialFormat::kFp8Blocks;
  }
  if (name.starts_with("mtp.") && (rest == "e_proj.weight" || rest == "h_proj.weight"))
    return OfficialFormat::kFp8Blocks;
  if (rest.starts_with("ffn.experts.")) {
    const std::string_view leaf = after_number(rest.substr(12));
    if (leaf == ".w1.weight" || leaf == ".w2.weight" || leaf == ".w3.weight") return OfficialFormat::kFp4Groups;
  }
  return OfficialFormat::kUnchanged;
}

QuantizeReport quantize_checkpoint(const std::filesystem::path& source, const std::filesystem::path& destination) {
  TAMIS_CHECK(!destination.empty(), Status::kInvalidArgument, "quantize: the destination is empty, must name a folder");
  ModelConfig::open(source);  // Refuses what is not a DeepSeek-V4 model before anything is written.
  const Checkpoint checkpoint = Checkpoint::open(source);
  std::error_code error;
  std::filesystem::create_directories(destination, error);
  TAMIS_CHECK(!error, Status::kDataError, destination.string(), ": cannot be created: ", error.message());
  TAMIS_CHECK(!std::filesystem::equivalent(source, destination, error), Status::kInvalidArgument,
              "quantize: the destination is the source folder, ", source.string());

  // What will be written. A source tensor that is scaled already and is not to be quantised keeps its scale.
  QuantizeReport report;
  std::vector<TensorSpec> specs;
  std::map<std::string, Piece, std::less<>> pieces;
  const auto add = [&](const std::string& name, Piece piece, FileDType dtype, std::vector<std::int64_t> shape) {
    specs.push_back({name, dtype, std::move(shape)});
    report.bytes_after += specs.back().bytes();
    pieces.emplace(name, std::move(piece));
  };
  for (const std::string& name : checkpoint.names()) {
    const TensorInfo info = checkpoint.info(name);
    const RawTensor raw = checkpoint.raw(name);
    const OfficialFormat format = official_format(name);
    const std::string scale = name.ends_with(".weight") ? name.substr(0, name.size() - 6) + "scale" : std::string();
    report.bytes_before += static_cast<std::int64_t>(raw.values.bytes.size());
    if (raw.scale != nullptr) report.bytes_before += static_cast<std::int64_t>(raw.scale->bytes.size());
    if (format == OfficialFormat::kUnchanged) {
      add(name, {name, format, false}, raw.values.dtype, raw.values.shape);
      if (raw.scale != nullptr) add(scale, {name, format, true}, raw.scale->dtype, raw.scale->shape);
      ++report.num_unchanged;
      continue;
    }
    const bool fp8 = format == OfficialFormat::kFp8Blocks;
    TAMIS_CHECK(info.shape.size() == 2 && (fp8 || info.shape[1] % 2 == 0), Status::kDataError, source.string(),
                ": tensor ", quote(name), ": expected a matrix", fp8 ? "" : " with an even number of columns", ", got ",
                shape_text(info.shape));
    const std::int64_t rows = info.shape[0], columns = info.shape[1];
    if (fp8) {
      add(name, {name, format, false}, FileDType::kF8E4M3, {rows, columns});
      add(scale, {name, format, true}, FileDType::kF8E8M0, {ceil_div(rows, kFp8Block), ceil_div(columns, kFp8Block)});
      ++report.num_fp8;
    } else {
      add(name, {name, format, false}, FileDType::kI8, {rows, columns / 2});
      add(scale, {name, format, true}, FileDType::kF8E8M0, {rows, ceil_div(columns, kFp4Group)});
      ++report.num_fp4;
    }
  }

  // A folder without it is no model: however this run ends, new weights never stand beside an old config.
  const auto config_path = destination / "config.json";
  TAMIS_CHECK(!std::filesystem::is_directory(config_path, error), Status::kDataError, config_path.string(),
              ": a folder, cannot be replaced");
  std::filesystem::remove(config_path, error);
  TAMIS_CHECK(!error, Status::kDataError, config_path.string(), ": cannot be removed: ", error.message());

  // Values and scales of a tensor are far apart in the file, so each is quantised twice: cheaper than keeping all.
  SafetensorsWriter writer(destination / "model.safetensors", std::move(specs), {{"format", "pt"}});
  for (const TensorSpec& spec : writer.tensors()) {
    const Piece& piece = pieces.find(spec.name)->second;
    if (piece.format == OfficialFormat::kUnchanged) {
      const RawTensor raw = checkpoint.raw(piece.source);
      writer.write(spec.name, piece.scale ? raw.scale->bytes : raw.values.bytes);
      continue;
    }
    const auto shape = checkpoint.info(piece.source).shape;
    const std::vector<float> values = checkpoint.read_fp32(piece.source, shape);
    QuantizedMatrix q;
    try {
      q = piece.format == OfficialFormat::kFp8Blocks ? quantize_fp8_blocks(values, shape[0], shape[1])
                                                     : quantize_fp4_groups(values, shape[0], shape[1]);
    } catch (const Error& e) {
      core::fail(e.status(), source.string(), ": tensor ", quote(piece.source), ": ", e.what());
    }
    writer.write(spec.name, std::as_bytes(std::span(piece.scale ? q.scales : q.values)));
  }
  writer.finish();

  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "generation_config.json", "chat_template.jinja"}) {
    copy_if_there(source, destination, file);
  }
  Json config =
      parse_json(read_text_file(source / "config.json", kMaxSmallFileBytes), (source / "config.json").string());
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"scale_fmt", "ue8m0"},
                                   {"weight_block_size", {kFp8Block, kFp8Block}},
                                   {"activation_scheme", "dynamic"}};
  config["expert_dtype"] = "fp4";
  const std::string text = config.dump(2) + "\n";
  // Last, so that a run that was cut short cannot be mistaken for a whole one.
  write_file(config_path, std::as_bytes(std::span(text)));
  return report;
}

}  // namespace tamis::model
