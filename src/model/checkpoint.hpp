#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors.hpp"

namespace tamis::model {

inline constexpr std::int64_t kFp8Block = 128;  ///< Rows and columns that share one scale.
inline constexpr std::int64_t kFp4Group = 32;   ///< Columns of a row that share one scale.

/// a / b rounded up, for sizes.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// How a tensor's values are stored.
enum class Storage : std::uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8Blocks,  ///< e4m3, one scale per 128 x 128 block (edge blocks are smaller)
  kFloat4Groups,  ///< e2m1, two per byte, low nibble first; one UE8M0 scale per 32 columns of a row
  kInteger,       ///< int64, int32, int8 or uint8 without scales
};

/// Lower-case name: fp32, fp16, bf16, fp8, fp4, integer.
const char* storage_name(Storage storage);

struct TensorInfo {
  std::string file_name;            ///< the tensor's name in the file
  std::vector<std::int64_t> shape;  ///< of the values: an fp4 tensor counts its elements, not its bytes
  Storage storage = Storage::kFloat32;
};

/// A tensor's bytes as they are in the file (fp4: the packed bytes and their shape) and its scale tensor, or null.
struct RawTensor {
  StoredTensor values;
  const StoredTensor* scale = nullptr;
};

/// A model folder's tensors under their official names (S-9.4), whichever names and storage its files use: official or
/// transformers names, with or without "model." in front, experts one by one or fused.
/// Reading is const and may happen from several threads at once.
class Checkpoint {
 public:
  /// Maps the files and checks their structure; values are read when asked for.
  /// @throws Error kDataError if a file is missing or not what its format promises, or if two tensors of the files have
  ///         the same official name.
  static Checkpoint open(const std::filesystem::path& directory);

  bool has(std::string_view name) const;

  /// @throws Error kDataError naming the tensor and the folder if it is missing.
  TensorInfo info(std::string_view name) const;

  /// All official names, sorted; scales are not tensors of their own.
  std::vector<std::string> names() const;

  /// The values in fp32, row major; fp8 and fp4 are multiplied by their scales (exact where the product is a normal
  /// fp32 number).
  /// @param expected_shape  Checked; the error names tensor, expected and got.
  std::vector<float> read_fp32(std::string_view name, std::span<const std::int64_t> expected_shape) const;
  std::vector<float> read_fp32(std::string_view name, std::initializer_list<std::int64_t> expected_shape) const {
    return read_fp32(name, std::span<const std::int64_t>(expected_shape.begin(), expected_shape.size()));
  }

  /// As read_fp32 into the caller's memory of exactly the shape's size.
  void read_fp32_into(std::string_view name, std::span<const std::int64_t> expected_shape, std::span<float> out) const;

  /// The values rounded to bf16 bits, nearest even; exact for tensors that are stored in bf16.
  std::vector<std::uint16_t> read_bf16(std::string_view name, std::initializer_list<std::int64_t> expected_shape) const;

  /// Integer values, from int64, int32, int8 or uint8.
  std::vector<std::int64_t> read_int(std::string_view name, std::initializer_list<std::int64_t> expected_shape) const;

  /// The bytes without conversion; valid as long as this object.
  RawTensor raw(std::string_view name) const;

  const std::filesystem::path& directory() const { return directory_; }

 private:
  /// One official tensor: a stored tensor, or rows [row_begin, row_end) of slice `slice` of a fused one.
  struct Entry {
    std::string file_name;
    const StoredTensor* tensor = nullptr;
    const StoredTensor* scale = nullptr;
    std::string scale_file_name;
    std::int64_t slice = -1;  ///< -1: the whole tensor
    std::int64_t row_begin = 0;
    std::int64_t row_end = 0;
  };
  /// An entry whose storage and shape were checked.
  struct Source {
    const Entry* entry = nullptr;
    Storage storage = Storage::kFloat32;
    std::int64_t numel = 0;
    const std::byte* data = nullptr;
  };

  void add(const std::string& official, Entry e);
  void add_fused(const std::string& official, const Entry& fused);
  const Entry& entry(std::string_view name) const;
  std::string where(std::string_view name, const Entry& e) const;
  Storage storage_of(std::string_view name, const Entry& e) const;
  static std::vector<std::int64_t> shape_of(const Entry& e, Storage storage);
  Source source(std::string_view name, std::span<const std::int64_t> expected_shape) const;
  void check_scales(std::string_view name, const Source& s) const;

  std::filesystem::path directory_;
  SafetensorsReader reader_;  ///< Owns what the entries point to; its map's nodes stay where they are when it moves.
  std::map<std::string, Entry, std::less<>> entries_;
};

/// The official name of a tensor that a file calls `file_name`; unknown names come back as they are, without "model.".
/// Scales end in ".scale". Fused experts keep their name under "ffn.experts." ("layers.0.ffn.experts.gate_up_proj").
std::string official_tensor_name(std::string_view file_name);

}  // namespace tamis::model
