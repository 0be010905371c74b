#pragma once

// Caches that every operation with a cache is tested on: each layout, with pages of odd sizes and strides beyond the
// payload. Tests, fuzzers and benchmarks share this list.

#include <cstdint>
#include <ostream>
#include <vector>

#include "support/guarded_buffer.hpp"
#include "tamis/cache.hpp"

namespace tamis::test {

struct CacheCase {
  CacheLayout layout;
  std::int64_t head_dim;
  std::int64_t page_size;
  std::int64_t num_pages;
  std::int64_t extra_stride_bytes;  // past cache_page_bytes()
  friend std::ostream& operator<<(std::ostream& out, const CacheCase& c) {
    return out << cache_layout_name(c.layout) << "_dim" << c.head_dim << "_page" << c.page_size << "x" << c.num_pages
               << "_extra" << c.extra_stride_bytes;
  }
};

inline std::vector<CacheCase> cache_cases() {
  std::vector<CacheCase> cases;
  const auto add = [&](CacheLayout layout, std::int64_t head_dim) {
    cases.push_back({layout, head_dim, 64, 3, 0});
    cases.push_back({layout, head_dim, 2, 9, 0});        // C128 pages
    cases.push_back({layout, head_dim, 1, 4, 3});        // odd stride: no number of the second page is aligned
    cases.push_back({layout, head_dim, 256, 2, 40960});  // other layers between the pages
  };
  add(CacheLayout::kFp8Mla584, 512);
  add(CacheLayout::kFp8Mla656, 576);
  add(CacheLayout::kIndexerFp8, 128);
  add(CacheLayout::kIndexerMxfp4, 128);
  for (const auto layout : {CacheLayout::kFloat32, CacheLayout::kBFloat16, CacheLayout::kFp8PerTensor}) {
    add(layout, 512);
    add(layout, 128);
    cases.push_back({layout, 1, 5, 3, 1});
    cases.push_back({layout, 7, 5, 3, 2});     // below every register
    cases.push_back({layout, 1027, 3, 2, 5});  // past the pieces that long rows are walked in
  }
  return cases;
}

/// Memory of a case behind guard bytes, filled with `poison`.
class TestCache {
 public:
  explicit TestCache(const CacheCase& c, std::uint8_t poison = 0xFF, std::size_t misaligned = 0)
      : case_(c),
        stride_(cache_page_bytes(c.layout, c.head_dim, c.page_size) + c.extra_stride_bytes),
        memory_(static_cast<std::size_t>(c.num_pages * stride_), poison, misaligned) {}

  PagedCache view() {
    PagedCache cache;
    cache.data = memory_.data();
    cache.layout = case_.layout;
    cache.head_dim = case_.head_dim;
    cache.num_pages = case_.num_pages;
    cache.page_size = case_.page_size;
    cache.page_stride_bytes = stride_;
    cache.scale = case_.layout == CacheLayout::kFp8PerTensor ? 0.0371F : 1.0F;
    return cache;
  }
  GuardedBuffer<std::uint8_t>& memory() { return memory_; }

 private:
  CacheCase case_;
  std::int64_t stride_;
  GuardedBuffer<std::uint8_t> memory_;
};

}  // namespace tamis::test
