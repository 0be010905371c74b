#include "engine/page_pool.hpp"

#include <algorithm>

#include "core/check.hpp"

namespace tamis::engine {

PagePool::PagePool(std::string name, std::int64_t num_pages) : name_(std::move(name)), num_pages_(num_pages) {
  free_.reserve(static_cast<std::size_t>(num_pages));
  for (std::int64_t page = num_pages; page-- > 0;) free_.push_back(static_cast<std::int32_t>(page));
}

void PagePool::reserve(std::int64_t pages) {
  TAMIS_CHECK(can_reserve(pages), Status::kInternal, "pool ", name_, ": reserving ", pages, " pages, ", num_reserved_,
              " of ", num_pages_, " are reserved");
  num_reserved_ += pages;
}

void PagePool::unreserve(std::int64_t pages) { num_reserved_ -= pages; }

std::int32_t PagePool::take() {
  TAMIS_CHECK(!free_.empty(), Status::kInternal, "pool ", name_, ": all ", num_pages_,
              " pages are taken; a request took more than it reserved");
  const std::int32_t page = free_.back();
  free_.pop_back();
  return page;
}

void PagePool::give_back(std::int32_t page) { free_.push_back(page); }

void PageList::grow(std::int64_t end) {
  while (num_logical() * page_tokens_ < end) pages_.push_back(pool_->take());
}

void PageList::drop_below(std::int64_t begin) {
  const std::int64_t keep = std::min(begin / page_tokens_, num_logical());
  for (; dropped_ < keep; ++dropped_) {
    std::int32_t& page = pages_[static_cast<std::size_t>(dropped_)];
    pool_->give_back(page);
    page = -1;
  }
}

void PageList::release() {
  drop_below(num_logical() * page_tokens_);
  pages_.clear();
  dropped_ = 0;
}

}  // namespace tamis::engine
