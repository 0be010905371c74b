#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace tamis::model {

/// Quantised values of a matrix and their UE8M0 scales, as the official format stores them.
struct QuantizedMatrix {
  std::vector<std::uint8_t> values;
  std::vector<std::uint8_t> scales;
};

/// e4m3 with one power-of-two scale per 128 x 128 block: values [rows, columns], scales [ceil(rows / 128),
/// ceil(columns / 128)]. A scale is the smallest 2^e with 448 * 2^e >= the block's largest magnitude, e >= -126; a
/// block of zeros has scale 1. The rounding error of v is at most max(2^-4 |v|, 2^-10 * scale).
/// @param values  [rows, columns] row major, finite.
QuantizedMatrix quantize_fp8_blocks(std::span<const float> values, std::int64_t rows, std::int64_t columns);

/// e2m1, two per byte (even column in the low nibble), one power-of-two scale per 32 columns of a row: values [rows,
/// columns / 2], scales [rows, ceil(columns / 32)]. A scale is the smallest 2^e with 6 * 2^e >= the group's largest
/// magnitude, e >= -126; a group of zeros has scale 1. With x = |v| / scale the rounding error is at most
/// scale * (x <= 2 ? 1/4 : x <= 4 ? 1/2 : 1).
/// @param columns  Even.
QuantizedMatrix quantize_fp4_groups(std::span<const float> values, std::int64_t rows, std::int64_t columns);

/// How the official format stores a tensor.
enum class OfficialFormat : std::uint8_t { kUnchanged, kFp8Blocks, kFp4Groups };

/// By official name (S-9.4): attention projections, the indexer's query projection and shared experts in fp8, routed
/// experts in fp4, all else as it is.
OfficialFormat official_format(std::string_view name);

struct QuantizeReport {
  int num_fp8 = 0;
  int num_fp4 = 0;
  int num_unchanged = 0;
  std::int64_t bytes_before = 0;  ///< Tensor bytes, scales included.
  std::int64_t bytes_after = 0;
};

/// Writes the model of `source` in the official fp8 and fp4 format under official names: one model.safetensors, the
/// tokenizer's files, and last a config.json with quantization_config and expert_dtype added. One tensor at a time is
/// in memory.
/// @param destination  Created if missing; must not be the source folder.
/// @throws Error kDataError if the source is not a readable model or holds weights that are not finite;
///         kInvalidArgument if the folders are the same.
QuantizeReport quantize_checkpoint(const std::filesystem::path& source, const std::filesystem::path& destination);

}  // namespace tamis::model
