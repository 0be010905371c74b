#pragma once

#include <cstddef>
#include <cstdint>

#include "tamis/tensor.hpp"

namespace tamis {

/// How one entry of a paged cache is stored. Byte offsets are in docs/layouts.md.
enum class CacheLayout : std::uint8_t {
  kFloat32,       ///< head_dim fp32.
  kBFloat16,      ///< head_dim bf16.
  kFp8PerTensor,  ///< head_dim e4m3, value = code * scale with one scale a cache.
  kFp8Mla584,  ///< V4 main attention: 448 e4m3 + 64 bf16, then 8 scale bytes (7 UE8M0) at the end of the page. head_dim
               ///< 512.
  kFp8Mla656,  ///< V3.2, interleaved: 512 e4m3, 4 fp32 scales, 64 bf16. head_dim 576.
  kIndexerFp8,    ///< 128 e4m3, then at the page's end one fp32 scale an entry (132 bytes). head_dim 128.
  kIndexerMxfp4,  ///< 64 bytes of e2m1 pairs, then at the page's end 4 UE8M0 bytes an entry (68 bytes). head_dim 128.
};

/// Name as printed: fp32, bf16, fp8_tensor, fp8_mla584, fp8_mla656, indexer_fp8, indexer_mxfp4.
const char* cache_layout_name(CacheLayout layout) noexcept;

/// Bytes that one entry occupies in all (data and scales), e.g. 584.
/// @throws Error kInvalidArgument if the layout does not have this head_dim.
std::int64_t cache_entry_bytes(CacheLayout layout, std::int64_t head_dim);

/// Smallest page stride a cache of this layout has in an engine: the entries, rounded up to 576 bytes for kFp8Mla584.
std::int64_t cache_page_bytes(CacheLayout layout, std::int64_t head_dim, std::int64_t page_size);

/// A paged cache: num_pages pages of page_size entries, page_stride_bytes apart (may exceed the payload: shared pools).
/// Slot s is entry s % page_size of page s / page_size. A contiguous tensor of n gathered rows is one page of n
/// entries.
template <typename Pointer>
struct BasicPagedCache {
  Pointer data = nullptr;
  CacheLayout layout = CacheLayout::kFloat32;
  std::int64_t head_dim = 0;
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;
  std::int64_t page_stride_bytes = 0;
  float scale = 1.0F;  ///< kFp8PerTensor only.
  Device device{};

  constexpr std::int64_t num_slots() const { return num_pages * page_size; }
  bool present() const { return page_size > 0; }
  template <typename Other>
  operator BasicPagedCache<Other>() const {  // NOLINT(google-explicit-constructor): views convert freely
    return {data, layout, head_dim, num_pages, page_size, page_stride_bytes, scale, device};
  }
};
using PagedCache = BasicPagedCache<void*>;
using ConstPagedCache = BasicPagedCache<const void*>;

/// Quantises rows and stores them: row i goes to slot slots[i]; a slot < 0 or >= num_slots() writes nothing.
///
/// Values are rounded to bf16 first where the layout is quantised (S-5.1). Scales are powers of two, the smallest that
/// brings the tile's largest magnitude within the codes. Tiles and floors: kFp8Mla584 64, kIndexerFp8 128, largest
/// magnitude at least 1e-4; kFp8Mla656 128, scale at least 1e-4 (so 2^-13); kIndexerMxfp4 32, largest magnitude at
/// least 6 * 2^-126. NaN stays NaN (kIndexerMxfp4: becomes the largest code) and does not count towards its tile's
/// scale.
/// @param rows   [n, head_dim] fp32 or bf16; last dimension contiguous.
/// @param slots  [n] int32 or int64.
/// The cache may have any alignment and any page stride that holds the page's entries. Bytes of other slots and between
/// pages are left alone. Does not allocate; runs on the calling thread. Rows of one call must go to distinct slots.
/// @throws Error kInvalidArgument on shape, dtype or layout mismatch. Definition: src/ops/reference.hpp.
void cache_write(ConstTensorView rows, ConstTensorView slots, const PagedCache& cache);

/// Reads entries back as numbers: row i comes from slots[i]; a slot < 0 or >= num_slots() gives zeros.
/// @param slots  [n] int32 or int64.
/// @param rows   [n, head_dim] fp32 or bf16, out; last dimension contiguous. fp32 is exact where scales are powers
///               of two, as cache_write() makes them; other scales are one fp32 product. bf16 rounds to nearest even.
/// Does not allocate; runs on the calling thread.
/// @throws Error kInvalidArgument on shape, dtype or layout mismatch.
void cache_read(const ConstPagedCache& cache, ConstTensorView slots, TensorView rows);

}  // namespace tamis
