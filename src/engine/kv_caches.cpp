#include "engine/kv_caches.hpp"

#include <algorithm>

#include "model/attention.hpp"

namespace tamis::engine {
namespace {

using model::kPageTokens;
using model::KvPrecision;

constexpr std::int64_t kIndexDim = 128;
constexpr std::int64_t kCacheLine = 64;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

CacheLayout key_layout(KvPrecision precision) {
  switch (precision) {
    case KvPrecision::kFloat32: return CacheLayout::kFloat32;
    case KvPrecision::kBFloat16: return CacheLayout::kBFloat16;
    case KvPrecision::kFloat8: return CacheLayout::kFp8Mla584;
  }
  return CacheLayout::kFloat32;
}

// Pages that cover `tokens` consecutive positions wherever they begin.
std::int64_t pages_of_run(std::int64_t tokens, std::int64_t page_tokens) {
  return ceil_div(tokens + page_tokens - 1, page_tokens);
}

}  // namespace

PageCounts pages_needed(std::int64_t request_tokens, std::int64_t step_tokens, const model::ModelConfig& config) {
  // A step needs the tokens it works on and, of earlier ones, those still in the window of the group.
  const auto sliding = [&](std::int64_t history, std::int64_t page_tokens) {
    return std::min(ceil_div(request_tokens, page_tokens),
                    pages_of_run(std::min(step_tokens, request_tokens) + history, page_tokens));
  };
  return {.window = sliding(config.sliding_window - 1, kWindowPageTokens),
          .compressed = ceil_div(request_tokens, kPageTokens),
          .c4_state = sliding(7, kC4StatePageTokens),
          .c128_state = sliding(127, kC128StatePageTokens)};
}

KvCaches::KvCaches(const model::ModelConfig& config, KvPrecision precision, const PageCounts& capacity)
    : capacity_(capacity),
      window_("window", capacity.window),
      compressed_("compressed", capacity.compressed),
      c4_state_("C4 state", capacity.c4_state),
      c128_state_("C128 state", capacity.c128_state) {
  const auto paged = [&](CacheLayout layout, std::int64_t head_dim, std::int64_t pages, std::int64_t page_size) {
    PagedCache cache;
    cache.layout = layout;
    cache.head_dim = head_dim;
    cache.num_pages = pages;
    cache.page_size = page_size;
    cache.page_stride_bytes = cache_page_bytes(layout, head_dim, page_size);
    cache.data = allocate(pages * cache.page_stride_bytes);
    return cache;
  };
  const auto state = [&](std::int64_t pages, std::int64_t page_tokens, std::int64_t width) {
    return TensorView(allocate(pages * page_tokens * width * 4), DType::kFloat32, {pages, page_tokens, width});
  };
  const CacheLayout keys = key_layout(precision);
  const CacheLayout index_keys = precision == KvPrecision::kFloat8 ? CacheLayout::kIndexerFp8 : keys;
  for (const model::LayerConfig& layer : config.layers) {
    model::LayerCaches& caches = layers_.emplace_back();
    caches.window = paged(keys, config.head_dim, capacity.window, kWindowPageTokens);
    if (layer.compress_ratio == 0) continue;
    caches.compressed = paged(keys, config.head_dim, capacity.compressed, kPageTokens / layer.compress_ratio);
    if (layer.compress_ratio == 4) {
      caches.state = state(capacity.c4_state, kC4StatePageTokens, 4 * config.head_dim);
      caches.index_k = paged(index_keys, kIndexDim, capacity.compressed, kPageTokens / 4);
      caches.index_state = state(capacity.c4_state, kC4StatePageTokens, 4 * kIndexDim);
    } else {
      caches.state = state(capacity.c128_state, kC128StatePageTokens, 2 * config.head_dim);
    }
  }
}

std::byte* KvCaches::allocate(std::int64_t bytes) {
  // Not cleared: nothing may depend on what an unwritten slot holds, and untouched memory costs nothing.
  auto& block =
      memory_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes + kCacheLine)));
  bytes_ += bytes;
  const auto address = reinterpret_cast<std::uintptr_t>(block.get());
  return block.get() + (kCacheLine - address % kCacheLine) % kCacheLine;
}

RequestPages KvCaches::make_request_pages() {
  return {PageList(window_, kWindowPageTokens), PageList(compressed_, kPageTokens),
          PageList(c4_state_, kC4StatePageTokens), PageList(c128_state_, kC128StatePageTokens)};
}

bool KvCaches::can_reserve(const PageCounts& need) const {
  return window_.can_reserve(need.window) && compressed_.can_reserve(need.compressed) &&
         c4_state_.can_reserve(need.c4_state) && c128_state_.can_reserve(need.c128_state);
}

void KvCaches::reserve(const PageCounts& need) {
  window_.reserve(need.window);
  compressed_.reserve(need.compressed);
  c4_state_.reserve(need.c4_state);
  c128_state_.reserve(need.c128_state);
}

void KvCaches::unreserve(const PageCounts& need) {
  window_.unreserve(need.window);
  compressed_.unreserve(need.compressed);
  c4_state_.unreserve(need.c4_state);
  c128_state_.unreserve(need.c128_state);
}

PageCounts KvCaches::taken() const {
  return {window_.num_taken(), compressed_.num_taken(), c4_state_.num_taken(), c128_state_.num_taken()};
}

}  // namespace tamis::engine
