#pragma once

// Rows of numbers to and from their storage formats, one row a call: what cache_write() and cache_read() are made of,
// and what the compressor, the indexer and sparse attention use directly. SIMD with dispatch at run time; every bit is
// that of the scalar conversions in core/float_formats.hpp on every target. Nothing here checks, allocates or throws:
// the public entries have checked the cache (check_cache()) and the slot (slot_in_cache()).

#include <bit>
#include <cstdint>

#include "ops/layouts.hpp"
#include "tamis/cache.hpp"
#include "tamis/tensor.hpp"

namespace tamis::ops {

/// Smallest e with 448 * 2^e >= amax, exactly, from the bits: 448 is 1.75 * 2^8. amax must be >= 2^-126; infinity gives
/// 120.
constexpr int fp8_exponent(float amax) {
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  return static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7FFFFFU) > 0x600000U ? 1 : 0);
}

/// Smallest e with 6 * 2^e >= amax, exactly: 6 is 1.5 * 2^2. amax must be >= 2^-126; infinity gives 126.
constexpr int mxfp4_exponent(float amax) {
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  return static_cast<int>(bits >> 23) - 127 - 2 + ((bits & 0x7FFFFFU) > 0x400000U ? 1 : 0);
}

/// Quantises n values with one power-of-two scale: e = fp8_exponent(max(largest |x|, amax_floor)), code = e4m3(x *
/// 2^-e). NaN does not count towards the largest magnitude and becomes a NaN code; infinity becomes +-448 * 2^120,
/// which reads back as infinity.
/// @param amax_floor  At least 2^-100: kFp8AmaxFloor, kMla656AmaxFloor or a floor of another engine.
/// @return e, in [-109, 120]; the value of a code is code * 2^e, the UE8M0 byte is e + 127.
int quantize_fp8(const float* x, std::int64_t n, float amax_floor, std::uint8_t* codes);

/// out[i] = value(codes[i]) * scale in fp32.
void dequantize_fp8(const std::uint8_t* codes, std::int64_t n, float scale, float* out);

/// Quantises one block of 32 values to e2m1 (S-4.4): two codes a byte, the even element in the low nibble.
/// @param packed  [16], out.
/// @return UE8M0 byte, e + 127.
std::uint8_t quantize_mxfp4_block(const float* x, std::uint8_t* packed);

/// Decodes one block of 32: value(code) * 2^(scale - 127). A byte of 255, which nothing writes, means infinity.
void dequantize_mxfp4_block(const std::uint8_t* packed, std::uint8_t scale, float* out);

/// x[i] = bf16(x[i]) in place, nearest even.
void round_row_to_bf16(float* x, std::int64_t n);

/// Reads n numbers of a dtype (kFloat32 or kBFloat16) as fp32.
void load_row(const void* in, DType dtype, std::int64_t n, float* out);

/// Writes n fp32 numbers as kFloat32 or kBFloat16 (nearest even).
void store_row(const float* in, std::int64_t n, DType dtype, void* out);

/// The same for a run of elements of a layout without tiles (kFloat32, kBFloat16, kFp8PerTensor), at any alignment.
void load_elements(const void* in, std::int64_t n, CacheLayout layout, float scale, float* out);
void store_elements(const float* in, std::int64_t n, CacheLayout layout, float scale, bool round_first, void* out);

/// Quantises one row of cache.head_dim values and stores it at a slot that the cache has.
/// @param round_first  Round values to bf16 before they are quantised (S-5.1). False for rows that went through the
///                     Hadamard rotation, which are quantised from fp32 (S-4.2). Unquantised layouts ignore it.
void store_entry(const float* row, const PagedCache& cache, std::int64_t slot, bool round_first = true);

/// Reads one entry of a slot that the cache has as cache.head_dim fp32 numbers.
void load_entry(const ConstPagedCache& cache, std::int64_t slot, float* row);

}  // namespace tamis::ops
