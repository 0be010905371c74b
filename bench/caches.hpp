#pragma once

// Paged caches with random contents, for the operations that read them.

#include <cstdint>
#include <vector>

#include "bench/memory.hpp"
#include "tamis/cache.hpp"

namespace tamis::bench {

/// A cache that owns its pages; entries are quantised standard normals.
class RandomCache {
 public:
  RandomCache(CacheLayout layout, std::int64_t head_dim, std::int64_t num_pages, std::int64_t page_size,
              RandomBits& random);
  const PagedCache& view() const { return view_; }

 private:
  AlignedBytes memory_;
  PagedCache view_;
};

/// 0 .. count - 1 in random order.
std::vector<std::int32_t> shuffled(std::int64_t count, RandomBits& random);

/// `count` distinct numbers below `bound` in ascending order, as a selection gives them.
std::vector<std::int32_t> ascending_sample(std::int64_t count, std::int64_t bound, RandomBits& random);

}  // namespace tamis::bench
