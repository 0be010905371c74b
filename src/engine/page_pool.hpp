#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tamis::engine {

/// Physical pages of one cache group, handed out and taken back; a page number is valid in the cache of every layer of
/// the group. A request reserves all it will need when it starts, so that a running request never finds the pool empty.
class PagePool {
 public:
  PagePool(std::string name, std::int64_t num_pages);

  const std::string& name() const { return name_; }
  std::int64_t num_pages() const { return num_pages_; }
  std::int64_t num_reserved() const { return num_reserved_; }
  std::int64_t num_taken() const { return num_pages_ - static_cast<std::int64_t>(free_.size()); }

  bool can_reserve(std::int64_t pages) const { return num_reserved_ + pages <= num_pages_; }
  void reserve(std::int64_t pages);
  void unreserve(std::int64_t pages);

  /// Lowest-numbered pages are not preferred: a page given back is the next one taken, which keeps it in cache.
  std::int32_t take();
  void give_back(std::int32_t page);

 private:
  std::string name_;
  std::int64_t num_pages_;
  std::int64_t num_reserved_ = 0;
  std::vector<std::int32_t> free_;
};

/// A request's pages in one group, by logical page: position / page_tokens. Pages below the window of a sliding group
/// go back early and read -1.
class PageList {
 public:
  PageList(PagePool& pool, std::int64_t page_tokens) : pool_(&pool), page_tokens_(page_tokens) {}

  /// Makes positions [0, end) addressable.
  void grow(std::int64_t end);
  /// Gives back pages that hold no position >= begin.
  void drop_below(std::int64_t begin);
  void release();

  std::int64_t num_logical() const { return static_cast<std::int64_t>(pages_.size()); }
  const std::vector<std::int32_t>& pages() const { return pages_; }
  /// Physical slot of a position, counted in tokens.
  std::int64_t slot(std::int64_t position) const {
    return pages_[static_cast<std::size_t>(position / page_tokens_)] * page_tokens_ + position % page_tokens_;
  }

 private:
  PagePool* pool_;
  std::int64_t page_tokens_;
  std::vector<std::int32_t> pages_;
  std::int64_t dropped_ = 0;  // logical pages [0, dropped_) are gone
};

}  // namespace tamis::engine
