#pragma once

// Where the bytes of a cache entry lie (S-5, docs/layouts.md). Every writer and reader of a cache gets its addresses
// here, so there is one description of each layout. All products are 64-bit: a pool shared by many layers has pages
// far beyond 2^31 bytes.

#include <cstdint>
#include <string_view>

#include "core/check.hpp"
#include "core/divide.hpp"
#include "tamis/cache.hpp"

namespace tamis::ops {

inline constexpr std::int64_t kRopeDims = 64;

// V4 main attention, 584 bytes an entry: 448 e4m3 and 64 bf16 per entry, then all scales at the end of the page.
inline constexpr std::int64_t kMla584HeadDim = 512;
inline constexpr std::int64_t kMla584NopeDims = 448;
inline constexpr std::int64_t kMla584Tile = 64;
inline constexpr std::int64_t kMla584Tiles = kMla584NopeDims / kMla584Tile;        // 7
inline constexpr std::int64_t kMla584DataBytes = kMla584NopeDims + 2 * kRopeDims;  // 576
inline constexpr std::int64_t kMla584ScaleBytes = 8;                               // 7 and a zero
inline constexpr std::int64_t kMla584PageMultiple = 576;

// V3.2, 656 bytes an entry, everything of an entry together: 512 e4m3, 4 fp32 scales, 64 bf16.
inline constexpr std::int64_t kMla656HeadDim = 576;
inline constexpr std::int64_t kMla656NopeDims = 512;
inline constexpr std::int64_t kMla656Tile = 128;
inline constexpr std::int64_t kMla656Tiles = kMla656NopeDims / kMla656Tile;               // 4
inline constexpr std::int64_t kMla656ScaleOffset = kMla656NopeDims;                       // 512
inline constexpr std::int64_t kMla656RopeOffset = kMla656ScaleOffset + 4 * kMla656Tiles;  // 528
inline constexpr std::int64_t kMla656DataBytes = kMla656RopeOffset + 2 * kRopeDims;       // 656

// Indexer keys: 128 dims, scales at the end of the page.
inline constexpr std::int64_t kIndexerHeadDim = 128;
inline constexpr std::int64_t kIndexerFp8ScaleBytes = 4;  // one fp32
inline constexpr std::int64_t kMxfp4Block = 32;
inline constexpr std::int64_t kMxfp4Blocks = kIndexerHeadDim / kMxfp4Block;  // 4, one UE8M0 byte each
inline constexpr std::int64_t kIndexerMxfp4DataBytes = kIndexerHeadDim / 2;

// Floors on the largest magnitude of a tile (S-5.6): they keep the scale of an all-zero tile finite.
inline constexpr float kFp8AmaxFloor = 1e-4F;
// The V3.2 format puts its floor of 1e-4 on the scale. The scale is a power of two, so that is 2^-13 or more, which is
// the same as a largest magnitude of at least 448 * 2^-13.
inline constexpr float kMla656AmaxFloor = 448.0F * 0x1p-13F;
inline constexpr float kMxfp4AmaxFloor = 6.0F * 0x1p-126F;

/// The only head_dim of a layout; 0 where any positive one will do.
constexpr std::int64_t layout_head_dim(CacheLayout layout) {
  switch (layout) {
    case CacheLayout::kFp8Mla584: return kMla584HeadDim;
    case CacheLayout::kFp8Mla656: return kMla656HeadDim;
    case CacheLayout::kIndexerFp8:
    case CacheLayout::kIndexerMxfp4: return kIndexerHeadDim;
    case CacheLayout::kFloat32:
    case CacheLayout::kBFloat16:
    case CacheLayout::kFp8PerTensor: return 0;
  }
  return 0;
}

/// Bytes from one entry of a page to the next.
constexpr std::int64_t entry_data_bytes(CacheLayout layout, std::int64_t head_dim) {
  switch (layout) {
    case CacheLayout::kFloat32: return 4 * head_dim;
    case CacheLayout::kBFloat16: return 2 * head_dim;
    case CacheLayout::kFp8PerTensor: return head_dim;
    case CacheLayout::kFp8Mla584: return kMla584DataBytes;
    case CacheLayout::kFp8Mla656: return kMla656DataBytes;
    case CacheLayout::kIndexerFp8: return kIndexerHeadDim;
    case CacheLayout::kIndexerMxfp4: return kIndexerMxfp4DataBytes;
  }
  return 0;
}

/// Bytes from the scales of one entry to the next, in the block of scales at the end of a page; 0 without such a block.
constexpr std::int64_t entry_scale_bytes(CacheLayout layout) {
  switch (layout) {
    case CacheLayout::kFp8Mla584: return kMla584ScaleBytes;
    case CacheLayout::kIndexerFp8: return kIndexerFp8ScaleBytes;
    case CacheLayout::kIndexerMxfp4: return kMxfp4Blocks;
    case CacheLayout::kFloat32:
    case CacheLayout::kBFloat16:
    case CacheLayout::kFp8PerTensor:
    case CacheLayout::kFp8Mla656: return 0;
  }
  return 0;
}

/// Bytes of a page that hold entries; page_stride_bytes must be at least this.
constexpr std::int64_t page_payload_bytes(CacheLayout layout, std::int64_t head_dim, std::int64_t page_size) {
  return page_size * (entry_data_bytes(layout, head_dim) + entry_scale_bytes(layout));
}

/// Byte offset of a slot's data from the start of the cache. The slot must be in [0, num_slots).
template <typename Pointer>
constexpr std::int64_t data_offset(const BasicPagedCache<Pointer>& cache, std::int64_t slot) {
  const std::int64_t page = core::quotient(slot, cache.page_size);
  const std::int64_t entry = slot - page * cache.page_size;
  return page * cache.page_stride_bytes + entry * entry_data_bytes(cache.layout, cache.head_dim);
}

/// Byte offset of a slot's scales; meaningful only where entry_scale_bytes() > 0 or for kFp8Mla656.
template <typename Pointer>
constexpr std::int64_t scale_offset(const BasicPagedCache<Pointer>& cache, std::int64_t slot) {
  if (cache.layout == CacheLayout::kFp8Mla656) return data_offset(cache, slot) + kMla656ScaleOffset;
  const std::int64_t page = core::quotient(slot, cache.page_size);
  const std::int64_t entry = slot - page * cache.page_size;
  return page * cache.page_stride_bytes + cache.page_size * entry_data_bytes(cache.layout, cache.head_dim) +
         entry * entry_scale_bytes(cache.layout);
}

/// True for a slot that the cache has; all others are padding and are neither read nor written.
template <typename Pointer>
constexpr bool slot_in_cache(const BasicPagedCache<Pointer>& cache, std::int64_t slot) {
  return slot >= 0 && slot < cache.num_slots();
}

/// Throws kInvalidArgument unless the cache can be addressed: present, with the layout's head_dim, sizes that are not
/// negative, pages that do not overlap, a size that 64 bits hold, a pointer where there are slots, a positive finite
/// scale for kFp8PerTensor, and on the expected device. Any alignment of data and stride is fine.
/// @param op    Operation as it stands at the front of the text, e.g. "cache_write".
/// @param name  Argument as the caller knows it, e.g. "cache".
void check_cache(const ConstPagedCache& cache, std::string_view op, std::string_view name, Device device = {});

}  // namespace tamis::ops
