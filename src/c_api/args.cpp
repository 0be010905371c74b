#include "c_api/args.hpp"

#include <initializer_list>

namespace tamis::c_api {
namespace {

// The enumerators of tamis.h are numbers; these lines hold them to the C++ ones.
template <typename Enum>
constexpr bool same(std::int32_t number, Enum value) {
  return number == static_cast<std::int32_t>(value);
}
static_assert(same(TAMIS_DTYPE_FLOAT32, DType::kFloat32) && same(TAMIS_DTYPE_BFLOAT16, DType::kBFloat16) &&
              same(TAMIS_DTYPE_FLOAT16, DType::kFloat16) && same(TAMIS_DTYPE_FLOAT8_E4M3, DType::kFloat8E4M3) &&
              same(TAMIS_DTYPE_UINT8, DType::kUInt8) && same(TAMIS_DTYPE_INT32, DType::kInt32) &&
              same(TAMIS_DTYPE_INT64, DType::kInt64));
static_assert(same(TAMIS_DEVICE_CPU, Device::Kind::kCpu) && same(TAMIS_DEVICE_CUDA, Device::Kind::kCuda));
static_assert(same(TAMIS_CACHE_FLOAT32, CacheLayout::kFloat32) && same(TAMIS_CACHE_BFLOAT16, CacheLayout::kBFloat16) &&
              same(TAMIS_CACHE_FP8_PER_TENSOR, CacheLayout::kFp8PerTensor) &&
              same(TAMIS_CACHE_FP8_MLA_584, CacheLayout::kFp8Mla584) &&
              same(TAMIS_CACHE_FP8_MLA_656, CacheLayout::kFp8Mla656) &&
              same(TAMIS_CACHE_INDEXER_FP8, CacheLayout::kIndexerFp8) &&
              same(TAMIS_CACHE_INDEXER_MXFP4, CacheLayout::kIndexerMxfp4));
static_assert(TAMIS_MAX_RANK == kMaxRank);

// |value| as unsigned, so that the most negative number has one too.
std::uint64_t magnitude(std::int64_t value) {
  return value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
}

constexpr auto kMaxBytes = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// total = factor0 * factor1 * ..., each taken as at least 1: a zero extent must not hide an overflow before it.
bool product_fits(std::initializer_list<std::int64_t> factors, std::uint64_t& total) {
  total = 1;
  for (std::int64_t factor : factors) {
    if (__builtin_mul_overflow(total, std::max<std::uint64_t>(magnitude(factor), 1), &total)) return false;
  }
  return total <= kMaxBytes;
}

bool span_fits(const tamis_tensor& from, std::int64_t element_bytes) {
  std::uint64_t numel = 1, span = 0;
  for (int d = 0; d < from.rank; ++d) {
    const std::uint64_t extent = std::max<std::uint64_t>(magnitude(from.shape[d]), 1);
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(numel, extent, &numel)) return false;
    if (__builtin_mul_overflow(extent, magnitude(from.strides[d]), &reach)) return false;
    if (__builtin_add_overflow(span, reach, &span)) return false;
  }
  const auto limit = kMaxBytes / static_cast<std::uint64_t>(element_bytes);
  return numel <= limit && span <= limit;
}

std::string shape_text(const tamis_tensor& from) {
  std::string text = "[";
  for (int d = 0; d < from.rank; ++d) text += core::concat(d == 0 ? "" : ", ", from.shape[d]);
  text += "] with strides [";
  for (int d = 0; d < from.rank; ++d) text += core::concat(d == 0 ? "" : ", ", from.strides[d]);
  return text + "]";
}

}  // namespace

Device device(Origin origin, const tamis_device& from) {
  TAMIS_CHECK((from.kind == TAMIS_DEVICE_CPU || from.kind == TAMIS_DEVICE_CUDA) && from.index >= 0,
              Status::kInvalidArgument, origin.op, ": ", origin.argument, " is on device kind ", from.kind, " index ",
              from.index, ", must be TAMIS_DEVICE_CPU (0) or TAMIS_DEVICE_CUDA (1) and an index >= 0");
  return {static_cast<Device::Kind>(from.kind), from.index};
}

TensorView tensor(Origin origin, const tamis_tensor& from) {
  if (from.rank == 0) return {};
  TAMIS_CHECK(from.rank > 0 && from.rank <= kMaxRank, Status::kInvalidArgument, origin.op, ": ", origin.argument,
              " has rank ", from.rank, ", must be in [0, ", kMaxRank, "]");
  TAMIS_CHECK(from.dtype >= 0 && from.dtype <= TAMIS_DTYPE_INT64, Status::kInvalidArgument, origin.op, ": ",
              origin.argument, " has dtype ", from.dtype, ", must be in [0, ", TAMIS_DTYPE_INT64, "]");
  const auto dtype = static_cast<DType>(from.dtype);
  const Device where = device(origin, from.device);
  TAMIS_CHECK(span_fits(from, dtype_bytes(dtype)), Status::kInvalidArgument, origin.op, ": ", origin.argument, " is ",
              shape_text(from), ", more bytes than 63 bits count");
  const std::int64_t* n = from.shape;
  const std::int64_t* s = from.strides;
  switch (from.rank) {
    case 1: return {from.data, dtype, {n[0]}, {s[0]}, where};
    case 2: return {from.data, dtype, {n[0], n[1]}, {s[0], s[1]}, where};
    case 3: return {from.data, dtype, {n[0], n[1], n[2]}, {s[0], s[1], s[2]}, where};
    default: return {from.data, dtype, {n[0], n[1], n[2], n[3]}, {s[0], s[1], s[2], s[3]}, where};
  }
}

PagedCache paged_cache(Origin origin, const tamis_paged_cache& from) {
  if (from.page_size == 0) return {};
  TAMIS_CHECK(from.layout >= 0 && from.layout <= TAMIS_CACHE_INDEXER_MXFP4, Status::kInvalidArgument, origin.op, ": ",
              origin.argument, " has layout ", from.layout, ", must be in [0, ", TAMIS_CACHE_INDEXER_MXFP4, "]");
  std::uint64_t slots = 0, bytes = 0;
  TAMIS_CHECK(product_fits({from.num_pages, from.page_size}, slots) &&
                  product_fits({from.num_pages, from.page_stride_bytes}, bytes),
              Status::kInvalidArgument, origin.op, ": ", origin.argument, " has ", from.num_pages, " pages of ",
              from.page_size, " entries, ", from.page_stride_bytes, " bytes apart: more than 63 bits count");
  PagedCache cache;
  cache.data = from.data;
  cache.layout = static_cast<CacheLayout>(from.layout);
  cache.head_dim = from.head_dim;
  cache.num_pages = from.num_pages;
  cache.page_size = from.page_size;
  cache.page_stride_bytes = from.page_stride_bytes;
  cache.scale = from.scale == 0.0F ? 1.0F : from.scale;
  cache.device = device(origin, from.device);
  return cache;
}

void require(Origin origin, const void* pointer) {
  TAMIS_CHECK(pointer != nullptr, Status::kInvalidArgument, origin.op, ": ", origin.argument, " is null");
}

}  // namespace tamis::c_api
