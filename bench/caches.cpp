#include "bench/caches.hpp"

#include <algorithm>
#include <utility>

namespace tamis::bench {

RandomCache::RandomCache(CacheLayout layout, std::int64_t head_dim, std::int64_t num_pages, std::int64_t page_size,
                         RandomBits& random)
    : memory_(static_cast<std::size_t>(num_pages * cache_page_bytes(layout, head_dim, page_size))) {
  view_ = {memory_.data(), layout, head_dim, num_pages, page_size, cache_page_bytes(layout, head_dim, page_size),
           1.0F,           {}};
  constexpr std::int64_t kRows = 256;
  std::vector<float> rows(static_cast<std::size_t>(kRows * head_dim));
  std::vector<std::int64_t> slots(static_cast<std::size_t>(kRows));
  for (std::int64_t first = 0; first < view_.num_slots(); first += kRows) {
    const std::int64_t count = std::min(kRows, view_.num_slots() - first);
    for (float& value : rows) value = random.normal();
    for (std::int64_t i = 0; i < count; ++i) slots[static_cast<std::size_t>(i)] = first + i;
    cache_write(ConstTensorView(rows.data(), DType::kFloat32, {count, head_dim}),
                ConstTensorView(slots.data(), DType::kInt64, {count}), view_);
  }
}

std::vector<std::int32_t> shuffled(std::int64_t count, RandomBits& random) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  return order;
}

std::vector<std::int32_t> ascending_sample(std::int64_t count, std::int64_t bound, RandomBits& random) {
  std::vector<std::int32_t> order = shuffled(bound, random);
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace tamis::bench
