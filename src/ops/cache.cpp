#include "tamis/cache.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/check.hpp"
#include "core/tensor_check.hpp"
#include "ops/layouts.hpp"
#include "ops/quantize.hpp"

namespace tamis {

const char* cache_layout_name(CacheLayout layout) noexcept {
  switch (layout) {
    case CacheLayout::kFloat32: return "fp32";
    case CacheLayout::kBFloat16: return "bf16";
    case CacheLayout::kFp8PerTensor: return "fp8_tensor";
    case CacheLayout::kFp8Mla584: return "fp8_mla584";
    case CacheLayout::kFp8Mla656: return "fp8_mla656";
    case CacheLayout::kIndexerFp8: return "indexer_fp8";
    case CacheLayout::kIndexerMxfp4: return "indexer_mxfp4";
  }
  return "unknown layout";
}

namespace {

// A head_dim or page_size beyond this is a mistake, and products of two of them stay far inside 64 bits.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;

void check_head_dim(CacheLayout layout, std::int64_t head_dim, std::string_view op, std::string_view name) {
  const std::int64_t only = ops::layout_head_dim(layout);
  TAMIS_CHECK(ops::entry_data_bytes(layout, 1) > 0, Status::kInvalidArgument, op, ": ", name, " is layout number ",
              static_cast<int>(layout), ", which does not exist");
  TAMIS_CHECK(only == 0 || head_dim == only, Status::kInvalidArgument, op, ": ", name, " has head_dim ", head_dim,
              ", layout ", cache_layout_name(layout), " has ", only);
  TAMIS_CHECK(head_dim >= 1 && head_dim <= kMaxExtent, Status::kInvalidArgument, op, ": ", name, " has head_dim ",
              head_dim, ", must be in [1, 2^31]");
}

}  // namespace

std::int64_t cache_entry_bytes(CacheLayout layout, std::int64_t head_dim) {
  check_head_dim(layout, head_dim, "cache_entry_bytes", "layout");
  return ops::page_payload_bytes(layout, head_dim, 1);
}

std::int64_t cache_page_bytes(CacheLayout layout, std::int64_t head_dim, std::int64_t page_size) {
  check_head_dim(layout, head_dim, "cache_page_bytes", "layout");
  TAMIS_CHECK(page_size >= 1 && page_size <= kMaxExtent / 8, Status::kInvalidArgument,
              "cache_page_bytes: page_size is ", page_size, ", must be in [1, 2^28]");
  const std::int64_t payload = ops::page_payload_bytes(layout, head_dim, page_size);
  if (layout != CacheLayout::kFp8Mla584) return payload;
  return (payload + ops::kMla584PageMultiple - 1) / ops::kMla584PageMultiple * ops::kMla584PageMultiple;
}

void ops::check_cache(const ConstPagedCache& cache, std::string_view op, std::string_view name, Device device) {
  TAMIS_CHECK(cache.present(), Status::kInvalidArgument, op, ": ", name, " is absent (page_size ", cache.page_size,
              "), must have page_size >= 1");
  check_head_dim(cache.layout, cache.head_dim, op, name);
  TAMIS_CHECK(cache.page_size <= kMaxExtent / 8, Status::kInvalidArgument, op, ": ", name, " has page_size ",
              cache.page_size, ", must be in [1, 2^28]");
  TAMIS_CHECK(cache.num_pages >= 0, Status::kInvalidArgument, op, ": ", name, " has num_pages ", cache.num_pages,
              ", must be >= 0");
  const std::int64_t payload = page_payload_bytes(cache.layout, cache.head_dim, cache.page_size);
  // A single page has no next one, so its stride says nothing.
  TAMIS_CHECK(cache.num_pages <= 1 || cache.page_stride_bytes >= payload, Status::kInvalidArgument, op, ": ", name,
              " has page_stride_bytes ", cache.page_stride_bytes, ", must be >= ", payload, " (", cache.page_size,
              " entries of ", payload / cache.page_size, " bytes)");
  std::int64_t bytes = 0;
  TAMIS_CHECK(cache.num_pages <= 1 || !__builtin_mul_overflow(cache.num_pages, cache.page_stride_bytes, &bytes),
              Status::kInvalidArgument, op, ": ", name, " has ", cache.num_pages, " pages, ", cache.page_stride_bytes,
              " bytes apart, which 64 bits do not hold");
  TAMIS_CHECK(cache.layout != CacheLayout::kFp8PerTensor || (std::isfinite(cache.scale) && cache.scale > 0),
              Status::kInvalidArgument, op, ": ", name, " has scale ", cache.scale, ", must be finite and > 0");
  core::check_device(cache.device, op, name, device);
  TAMIS_CHECK(cache.num_pages == 0 || cache.data != nullptr, Status::kInvalidArgument, op, ": ", name, " has ",
              cache.num_pages, " pages and a null pointer");
}

namespace {

// Rows of layouts without tiles have any length; they are converted in pieces of this many elements.
constexpr std::int64_t kPiece = 512;

std::int64_t slot_at(const ConstTensorView& slots, std::int64_t i) {
  if (slots.dtype() == DType::kInt64) return static_cast<const std::int64_t*>(slots.data())[i];
  return static_cast<const std::int32_t*>(slots.data())[i];
}

// Checks rows, slots and cache against each other and returns the number of rows.
std::int64_t check_arguments(const ConstTensorView& rows, const ConstTensorView& slots, const ConstPagedCache& cache,
                             std::string_view op) {
  ops::check_cache(cache, op, "cache");
  core::check_view(rows, {op, "rows", {DType::kFloat32, DType::kBFloat16}, {core::kAnyExtent, cache.head_dim}});
  core::check_view(slots, {op, "slots", {DType::kInt32, DType::kInt64}, {rows.size(0)}});
  return rows.size(0);
}

}  // namespace

void cache_write(ConstTensorView rows, ConstTensorView slots, const PagedCache& cache) {
  const std::int64_t n = check_arguments(rows, slots, cache, "cache_write");
  const std::int64_t head_dim = cache.head_dim;
  const std::int64_t row_bytes = rows.stride(0) * dtype_bytes(rows.dtype());
  const bool tiled = ops::layout_head_dim(cache.layout) != 0;
  float values[ops::kMla656HeadDim];
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t slot = slot_at(slots, i);
    if (!ops::slot_in_cache(cache, slot)) continue;
    const auto* row = static_cast<const std::uint8_t*>(rows.data()) + i * row_bytes;
    if (tiled) {
      ops::load_row(row, rows.dtype(), head_dim, values);
      ops::store_entry(values, cache, slot);
      continue;
    }
    auto* entry = static_cast<std::uint8_t*>(cache.data) + ops::data_offset(cache, slot);
    for (std::int64_t begin = 0; begin < head_dim; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, head_dim - begin);
      ops::load_row(row + begin * dtype_bytes(rows.dtype()), rows.dtype(), count, values);
      ops::store_elements(values, count, cache.layout, cache.scale, true,
                          entry + ops::entry_data_bytes(cache.layout, begin));
    }
  }
}

void cache_read(const ConstPagedCache& cache, ConstTensorView slots, TensorView rows) {
  const std::int64_t n = check_arguments(rows, slots, cache, "cache_read");
  core::check_row_stride(rows, "cache_read", "rows");
  const std::int64_t head_dim = cache.head_dim;
  const std::int64_t row_bytes = rows.stride(0) * dtype_bytes(rows.dtype());
  const bool tiled = ops::layout_head_dim(cache.layout) != 0;
  float values[ops::kMla656HeadDim];
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t slot = slot_at(slots, i);
    auto* row = static_cast<std::uint8_t*>(rows.data()) + i * row_bytes;
    if (!ops::slot_in_cache(cache, slot)) {
      std::fill_n(row, head_dim * dtype_bytes(rows.dtype()), std::uint8_t{0});  // zero in both dtypes
      continue;
    }
    if (tiled) {
      ops::load_entry(cache, slot, values);
      ops::store_row(values, head_dim, rows.dtype(), row);
      continue;
    }
    const auto* entry = static_cast<const std::uint8_t*>(cache.data) + ops::data_offset(cache, slot);
    for (std::int64_t begin = 0; begin < head_dim; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, head_dim - begin);
      ops::load_elements(entry + ops::entry_data_bytes(cache.layout, begin), count, cache.layout, cache.scale, values);
      ops::store_row(values, count, rows.dtype(), row + begin * dtype_bytes(rows.dtype()));
    }
  }
}

}  // namespace tamis
