#include "model/checkpoint.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/check.hpp"
#include "core/float_formats.hpp"
#include "model/json_file.hpp"

namespace tamis::model {
namespace {

constexpr std::int64_t kMaxExperts = 65536;  // A fused tensor becomes that many entries at most.

bool consume_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

struct Rename {
  std::string_view from;
  std::string_view to;
};

// Replaces the first matching beginning; the rest is kept.
template <std::size_t kCount>
std::string rename_prefix(std::string_view text, const Rename (&table)[kCount]) {
  for (const Rename& r : table) {
    if (consume_prefix(text, r.from)) return std::string(r.to) + std::string(text);
  }
  return std::string(text);
}

// Names that transformers uses, by place. What is not listed has its official name already.
constexpr Rename kTopNames[] = {
    {"embed_tokens.", "embed."},           {"lm_head.", "head."},
    {"hc_head.hc_fn", "hc_head_fn"},       {"hc_head.hc_base", "hc_head_base"},
    {"hc_head.hc_scale", "hc_head_scale"},
};
constexpr Rename kBlockNames[] = {
    {"input_layernorm.", "attn_norm."}, {"post_attention_layernorm.", "ffn_norm."}, {"attn_hc.fn", "hc_attn_fn"},
    {"attn_hc.base", "hc_attn_base"},   {"attn_hc.scale", "hc_attn_scale"},         {"ffn_hc.fn", "hc_ffn_fn"},
    {"ffn_hc.base", "hc_ffn_base"},     {"ffn_hc.scale", "hc_ffn_scale"},
};
constexpr Rename kAttentionNames[] = {
    {"q_a_proj.", "wq_a."}, {"q_b_proj.", "wq_b."},   {"kv_proj.", "wkv."},   {"o_a_proj.", "wo_a."},
    {"o_b_proj.", "wo_b."}, {"q_a_norm.", "q_norm."}, {"sinks", "attn_sink"},
};
constexpr Rename kCompressorNames[] = {
    {"kv_proj.", "wkv."},
    {"gate_proj.", "wgate."},
    {"kv_norm.", "norm."},
    {"position_bias", "ape"},
};
// transformers keeps the indexer inside the compressor, and the indexer's compressor flat inside the indexer.
constexpr Rename kIndexerNames[] = {
    {"q_b_proj.", "wq_b."},           {"scorer.weights_proj.", "weights_proj."},
    {"kv_proj.", "compressor.wkv."},  {"gate_proj.", "compressor.wgate."},
    {"kv_norm.", "compressor.norm."}, {"position_bias", "compressor.ape"},
};
constexpr Rename kExpertNames[] = {{"gate_proj.", "w1."}, {"down_proj.", "w2."}, {"up_proj.", "w3."}};

std::string official_attention_name(std::string_view rest) {
  if (consume_prefix(rest, "compressor.indexer.")) return "indexer." + rename_prefix(rest, kIndexerNames);
  if (consume_prefix(rest, "indexer.compressor.")) return "indexer.compressor." + rename_prefix(rest, kCompressorNames);
  if (consume_prefix(rest, "indexer.")) return "indexer." + rename_prefix(rest, kIndexerNames);
  if (consume_prefix(rest, "compressor.")) return "compressor." + rename_prefix(rest, kCompressorNames);
  return rename_prefix(rest, kAttentionNames);
}

std::string official_ffn_name(std::string_view rest) {
  if (rest == "gate.e_score_correction_bias") return "gate.bias";
  if (consume_prefix(rest, "shared_experts.")) return "shared_experts." + rename_prefix(rest, kExpertNames);
  if (consume_prefix(rest, "experts.")) {
    const std::size_t digits = rest.find_first_not_of("0123456789");
    if (digits != 0 && digits != std::string_view::npos && rest[digits] == '.') {
      return "experts." + std::string(rest.substr(0, digits + 1)) +
             rename_prefix(rest.substr(digits + 1), kExpertNames);
    }
    return "experts." + std::string(rest);
  }
  return std::string(rest);
}

// The part of a name behind "layers.N." or "mtp.N.".
std::string official_block_name(std::string_view rest) {
  if (consume_prefix(rest, "self_attn.") || consume_prefix(rest, "attn."))
    return "attn." + official_attention_name(rest);
  if (consume_prefix(rest, "mlp.") || consume_prefix(rest, "ffn.")) return "ffn." + official_ffn_name(rest);
  return rename_prefix(rest, kBlockNames);
}

float load_e8m0(std::byte code) { return core::exp2_int(static_cast<int>(code) - 127); }

template <typename T>
T load(const std::byte* bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float load_scale(const StoredTensor& scale, std::int64_t index) {
  return scale.dtype == FileDType::kF32 ? load<float>(scale.bytes.data(), index)
                                        : load_e8m0(scale.bytes[static_cast<std::size_t>(index)]);
}

void dequantize_fp8(const StoredTensor& tensor, const StoredTensor& scale, float* out) {
  static const auto kValues = [] {
    std::array<float, 256> table{};
    for (std::size_t code = 0; code < 256; ++code) table[code] = core::e4m3_to_float(static_cast<std::uint8_t>(code));
    return table;
  }();
  const std::int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  const std::int64_t blocks = ceil_div(columns, kFp8Block);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      const float s = load_scale(scale, r / kFp8Block * blocks + b);
      const std::int64_t end = std::min(columns, (b + 1) * kFp8Block);
      for (std::int64_t c = b * kFp8Block; c < end; ++c) {
        out[r * columns + c] =
            kValues[std::to_integer<std::size_t>(tensor.bytes[static_cast<std::size_t>(r * columns + c)])] * s;
      }
    }
  }
}

void dequantize_fp4(const StoredTensor& tensor, const StoredTensor& scale, float* out) {
  const std::int64_t rows = tensor.shape[0], bytes = tensor.shape[1];
  const std::int64_t groups = ceil_div(2 * bytes, kFp4Group);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const float s = load_scale(scale, r * groups + g);
      const std::int64_t end = std::min(bytes, (g + 1) * (kFp4Group / 2));
      for (std::int64_t i = g * (kFp4Group / 2); i < end; ++i) {
        const auto pair = std::to_integer<std::uint8_t>(tensor.bytes[static_cast<std::size_t>(r * bytes + i)]);
        out[2 * (r * bytes + i)] = core::e2m1_to_float(pair & 0xFU) * s;
        out[2 * (r * bytes + i) + 1] = core::e2m1_to_float(pair >> 4) * s;
      }
    }
  }
}

}  // namespace

const char* storage_name(Storage storage) {
  switch (storage) {
    case Storage::kFloat32: return "fp32";
    case Storage::kFloat16: return "fp16";
    case Storage::kBFloat16: return "bf16";
    case Storage::kFloat8Blocks: return "fp8";
    case Storage::kFloat4Groups: return "fp4";
    case Storage::kInteger: return "integer";
  }
  return "?";
}

std::string official_tensor_name(std::string_view file_name) {
  constexpr std::string_view kScaleAlias = ".weight_scale_inv";
  consume_prefix(file_name, "model.");
  if (file_name.ends_with(kScaleAlias)) {
    file_name.remove_suffix(kScaleAlias.size());
    return official_tensor_name(std::string(file_name) + ".scale");
  }
  for (std::string_view block : {"layers.", "mtp."}) {
    std::string_view rest = file_name;
    if (!consume_prefix(rest, block)) continue;
    const std::size_t digits = rest.find_first_not_of("0123456789");
    if (digits == 0 || digits == std::string_view::npos || rest[digits] != '.') break;
    return std::string(block) + std::string(rest.substr(0, digits + 1)) + official_block_name(rest.substr(digits + 1));
  }
  return rename_prefix(file_name, kTopNames);
}

Checkpoint Checkpoint::open(const std::filesystem::path& directory) {
  Checkpoint c;
  c.directory_ = directory;
  c.reader_ = SafetensorsReader::open_directory(directory);

  std::map<std::string, Entry, std::less<>> scales;
  for (const auto& [file_name, tensor] : c.reader_.tensors()) {
    const std::string official = official_tensor_name(file_name);
    Entry e;
    e.file_name = file_name;
    e.tensor = &tensor;
    if (official.ends_with(".scale")) {
      const auto [it, inserted] = scales.emplace(official, e);
      TAMIS_CHECK(inserted, Status::kDataError, directory.string(), ": tensors ", quote(it->second.file_name), " and ",
                  quote(file_name), " are both ", quote(official));
    } else if (official.ends_with(".ffn.experts.gate_up_proj") || official.ends_with(".ffn.experts.down_proj")) {
      c.add_fused(official, e);
    } else {
      c.add(official, e);
    }
  }
  for (const auto& [official, scale] : scales) {
    const std::string weight = official.substr(0, official.size() - std::strlen("scale")) + "weight";
    const auto it = c.entries_.find(weight);
    TAMIS_CHECK(it != c.entries_.end() && it->second.slice < 0, Status::kDataError, directory.string(), ": tensor ",
                quote(scale.file_name), " is the scale of ", quote(weight), ", which is not there");
    it->second.scale = scale.tensor;
    it->second.scale_file_name = scale.file_name;
  }
  return c;
}

void Checkpoint::add(const std::string& official, Entry e) {
  const auto [it, inserted] = entries_.emplace(official, std::move(e));
  TAMIS_CHECK(inserted, Status::kDataError, directory_.string(), ": tensor ", quote(official),
              " is there twice, once as ", quote(it->second.file_name));
}

// [experts, 2 * inter, hidden] holds w1 over w3 for each expert; [experts, hidden, inter] holds w2.
void Checkpoint::add_fused(const std::string& official, const Entry& fused) {
  const StoredTensor& tensor = *fused.tensor;
  const bool gate_up = official.ends_with("gate_up_proj");
  TAMIS_CHECK(tensor.shape.size() == 3 && tensor.shape[0] <= kMaxExperts && (!gate_up || tensor.shape[1] % 2 == 0),
              Status::kDataError, directory_.string(), ": tensor ", quote(fused.file_name), ": expected [experts, ",
              gate_up ? "2 * inter, hidden" : "hidden, inter", "], got ", shape_text(tensor.shape));
  const std::string prefix = official.substr(0, official.rfind('.') + 1);
  for (std::int64_t e = 0; e < tensor.shape[0]; ++e) {
    Entry part = fused;
    part.slice = e;
    const auto add_rows = [&](const char* name, std::int64_t begin, std::int64_t end) {
      part.row_begin = begin;
      part.row_end = end;
      add(prefix + std::to_string(e) + name, part);
    };
    if (gate_up) {
      add_rows(".w1.weight", 0, tensor.shape[1] / 2);
      add_rows(".w3.weight", tensor.shape[1] / 2, tensor.shape[1]);
    } else {
      add_rows(".w2.weight", 0, tensor.shape[1]);
    }
  }
}

bool Checkpoint::has(std::string_view name) const { return entries_.find(name) != entries_.end(); }

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> all;
  all.reserve(entries_.size());
  for (const auto& [name, e] : entries_) all.push_back(name);
  return all;
}

const Checkpoint::Entry& Checkpoint::entry(std::string_view name) const {
  const auto it = entries_.find(name);
  TAMIS_CHECK(it != entries_.end(), Status::kDataError, directory_.string(), ": tensor ", quote(name), " is missing");
  return it->second;
}

std::string Checkpoint::where(std::string_view name, const Entry& e) const {
  std::string text = directory_.string() + ": tensor " + quote(name);
  if (name != e.file_name) text += " (in the file " + quote(e.file_name) + ")";
  return text;
}

// Decides the storage and checks what belongs to it: ranks, and the scale's dtype and shape.
Storage Checkpoint::storage_of(std::string_view name, const Entry& e) const {
  const StoredTensor& t = *e.tensor;
  Storage storage = Storage::kInteger;
  switch (t.dtype) {
    case FileDType::kF32: storage = Storage::kFloat32; break;
    case FileDType::kF16: storage = Storage::kFloat16; break;
    case FileDType::kBF16: storage = Storage::kBFloat16; break;
    case FileDType::kI32:
    case FileDType::kI64: storage = Storage::kInteger; break;
    case FileDType::kU8:
    case FileDType::kI8: storage = e.scale != nullptr ? Storage::kFloat4Groups : Storage::kInteger; break;
    case FileDType::kF8E4M3:
      TAMIS_CHECK(e.scale != nullptr, Status::kDataError, where(name, e), ": F8_E4M3 without a scale tensor");
      storage = Storage::kFloat8Blocks;
      break;
    case FileDType::kF8E8M0: core::fail(Status::kDataError, where(name, e), ": F8_E8M0 holds scales, not values");
  }
  const bool scaled = storage == Storage::kFloat8Blocks || storage == Storage::kFloat4Groups;
  if (!scaled) {
    TAMIS_CHECK(e.scale == nullptr, Status::kDataError, where(name, e), ": ", file_dtype_name(t.dtype),
                " values do not take a scale, but ", quote(e.scale_file_name), " is there");
    return storage;
  }
  TAMIS_CHECK(t.shape.size() == 2, Status::kDataError, where(name, e), ": expected 2 dimensions of scaled values, got ",
              shape_text(t.shape));
  const bool fp8 = storage == Storage::kFloat8Blocks;
  const std::vector<std::int64_t> expected = {
      fp8 ? ceil_div(t.shape[0], kFp8Block) : t.shape[0],
      fp8 ? ceil_div(t.shape[1], kFp8Block) : ceil_div(2 * t.shape[1], kFp4Group)};
  const StoredTensor& s = *e.scale;
  TAMIS_CHECK(s.dtype == FileDType::kF8E8M0 || s.dtype == FileDType::kF32, Status::kDataError, where(name, e),
              ": scale ", quote(e.scale_file_name), ": expected F8_E8M0 or F32, got ", file_dtype_name(s.dtype));
  TAMIS_CHECK(s.shape == expected, Status::kDataError, where(name, e), ": scale ", quote(e.scale_file_name),
              ": expected ", shape_text(expected), " for values ", shape_text(t.shape), ", got ", shape_text(s.shape));
  return storage;
}

std::vector<std::int64_t> Checkpoint::shape_of(const Entry& e, Storage storage) {
  if (e.slice >= 0) return {e.row_end - e.row_begin, e.tensor->shape[2]};
  std::vector<std::int64_t> shape = e.tensor->shape;
  if (storage == Storage::kFloat4Groups) shape[1] *= 2;
  return shape;
}

Checkpoint::Source Checkpoint::source(std::string_view name, std::span<const std::int64_t> expected_shape) const {
  const Entry& e = entry(name);
  Source s;
  s.entry = &e;
  s.storage = storage_of(name, e);
  const auto shape = shape_of(e, s.storage);
  TAMIS_CHECK(std::equal(shape.begin(), shape.end(), expected_shape.begin(), expected_shape.end()), Status::kDataError,
              where(name, e), ": expected shape ", shape_text(expected_shape), ", got ", shape_text(shape));
  s.numel = element_count(shape);
  s.data = e.tensor->bytes.data();
  if (e.slice >= 0 && s.numel > 0) {  // Sizes of an empty tensor are not bounded by the file's.
    const std::int64_t width = e.tensor->shape[2] * file_dtype_bytes(e.tensor->dtype);
    s.data += (e.slice * e.tensor->shape[1] + e.row_begin) * width;
  }
  return s;
}

TensorInfo Checkpoint::info(std::string_view name) const {
  const Entry& e = entry(name);
  const Storage storage = storage_of(name, e);
  return {e.file_name, shape_of(e, storage), storage};
}

void Checkpoint::read_fp32_into(std::string_view name, std::span<const std::int64_t> expected_shape,
                                std::span<float> out) const {
  const Source s = source(name, expected_shape);
  TAMIS_CHECK(static_cast<std::int64_t>(out.size()) == s.numel, Status::kInvalidArgument,
              "read_fp32_into: ", quote(name), ": out has ", out.size(), " elements, must have ", s.numel);
  if (s.numel == 0) return;  // Nor are its rows, which the loops below would count.
  check_scales(name, s);
  const StoredTensor& tensor = *s.entry->tensor;
  switch (s.storage) {
    case Storage::kFloat32: std::memcpy(out.data(), s.data, out.size_bytes()); break;
    case Storage::kFloat16:
      for (std::int64_t i = 0; i < s.numel; ++i) {
        out[static_cast<std::size_t>(i)] = core::fp16_to_float(load<std::uint16_t>(s.data, i));
      }
      break;
    case Storage::kBFloat16:
      for (std::int64_t i = 0; i < s.numel; ++i) {
        out[static_cast<std::size_t>(i)] = core::bf16_to_float(load<std::uint16_t>(s.data, i));
      }
      break;
    case Storage::kFloat8Blocks: dequantize_fp8(tensor, *s.entry->scale, out.data()); break;
    case Storage::kFloat4Groups: dequantize_fp4(tensor, *s.entry->scale, out.data()); break;
    case Storage::kInteger:
      core::fail(Status::kDataError, where(name, *s.entry), ": expected floating-point values, got ",
                 file_dtype_name(tensor.dtype));
  }
}

// A NaN or infinite scale would spread over its whole block without a trace of where it came from.
void Checkpoint::check_scales(std::string_view name, const Source& s) const {
  const StoredTensor* scale = s.entry->scale;
  if (scale == nullptr) return;
  for (std::int64_t i = 0, n = scale->numel(); i < n; ++i) {
    const bool finite = scale->dtype == FileDType::kF32
                            ? std::isfinite(load<float>(scale->bytes.data(), i))
                            : scale->bytes[static_cast<std::size_t>(i)] != std::byte{0xFF};  // 0xFF is NaN
    TAMIS_CHECK(finite, Status::kDataError, where(name, *s.entry), ": scale ", quote(s.entry->scale_file_name),
                ": element ", i, " is not a finite number");
  }
}

std::vector<float> Checkpoint::read_fp32(std::string_view name, std::span<const std::int64_t> expected_shape) const {
  // Checked first, so that a wrong shape never allocates.
  std::vector<float> out(static_cast<std::size_t>(source(name, expected_shape).numel));
  read_fp32_into(name, expected_shape, out);
  return out;
}

std::vector<std::uint16_t> Checkpoint::read_bf16(std::string_view name,
                                                 std::initializer_list<std::int64_t> expected_shape) const {
  const std::span<const std::int64_t> shape(expected_shape.begin(), expected_shape.size());
  const Source s = source(name, shape);
  std::vector<std::uint16_t> out(static_cast<std::size_t>(s.numel));
  if (s.storage == Storage::kBFloat16) {
    if (s.numel > 0) std::memcpy(out.data(), s.data, out.size() * sizeof(out[0]));
    return out;
  }
  const std::vector<float> values = read_fp32(name, shape);
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = core::float_to_bf16(values[i]);
  return out;
}

std::vector<std::int64_t> Checkpoint::read_int(std::string_view name,
                                               std::initializer_list<std::int64_t> expected_shape) const {
  const Source s = source(name, {expected_shape.begin(), expected_shape.size()});
  const FileDType dtype = s.entry->tensor->dtype;
  TAMIS_CHECK(s.storage == Storage::kInteger, Status::kDataError, where(name, *s.entry), ": expected integers, got ",
              file_dtype_name(dtype));
  std::vector<std::int64_t> out(static_cast<std::size_t>(s.numel));
  for (std::int64_t i = 0; i < s.numel; ++i) {
    std::int64_t& value = out[static_cast<std::size_t>(i)];
    switch (dtype) {
      case FileDType::kI64: value = load<std::int64_t>(s.data, i); break;
      case FileDType::kI32: value = load<std::int32_t>(s.data, i); break;
      case FileDType::kI8: value = load<std::int8_t>(s.data, i); break;
      default: value = load<std::uint8_t>(s.data, i); break;
    }
  }
  return out;
}

RawTensor Checkpoint::raw(std::string_view name) const {
  const Entry& e = entry(name);
  const Storage storage = storage_of(name, e);
  const auto shape = shape_of(e, storage);
  const Source s = source(name, shape);
  RawTensor raw;
  raw.values.dtype = e.tensor->dtype;
  raw.values.shape = e.slice >= 0 ? shape : e.tensor->shape;
  raw.values.bytes = {s.data, static_cast<std::size_t>(raw.values.numel() * file_dtype_bytes(raw.values.dtype))};
  raw.scale = e.scale;
  return raw;
}

}  // namespace tamis::model
