#include "engine/batch_builder.hpp"

#include <algorithm>

#include "model/attention.hpp"
#include "tamis/compressor.hpp"

namespace tamis::engine {
namespace {

// Writes one group's page lists as a table, padded with -1.
void fill_table(model::PageTable& table, const std::vector<const RequestPages*>& requests,
                PageList RequestPages::*group) {
  table.max_pages = 1;
  for (const RequestPages* pages : requests) table.max_pages = std::max(table.max_pages, (pages->*group).num_logical());
  table.pages.assign(requests.size() * static_cast<std::size_t>(table.max_pages), -1);
  auto row = table.pages.begin();
  for (const RequestPages* pages : requests) {
    const auto& list = (pages->*group).pages();
    std::copy(list.begin(), list.end(), row);
    row += table.max_pages;
  }
}

}  // namespace

void BatchBuilder::add(RequestPages& pages, std::int64_t start, std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t end = start + count;
  pages.window.drop_below(std::max<std::int64_t>(start - window_tokens_ + 1, 0));
  pages.c4_state.drop_below(compress_state_begin(start, 4, true));
  pages.c128_state.drop_below(compress_state_begin(start, 128, false));
  pages.window.grow(end);
  pages.compressed.grow(end);
  pages.c4_state.grow(end);
  pages.c128_state.grow(end);

  const auto request = static_cast<std::int32_t>(starts_.size());
  if (batch_.query_start_loc.empty()) batch_.query_start_loc.push_back(0);
  for (std::int64_t p = start; p < end; ++p) {
    batch_.tokens.push_back(tokens[static_cast<std::size_t>(p - start)]);
    batch_.positions.push_back(p);
    batch_.token_to_request.push_back(request);
    batch_.window_slots.push_back(pages.window.slot(p));
    batch_.c4.state_slots.push_back(pages.c4_state.slot(p));
    batch_.c128.state_slots.push_back(pages.c128_state.slot(p));
    // Entry j of ratio R is completed by position jR + R - 1. A page covers the same tokens at both ratios, so an
    // entry's slot is its token's slot divided by R.
    const std::int64_t slot = pages.compressed.slot(p);
    batch_.c4.kv_slots.push_back((p + 1) % 4 == 0 ? slot / 4 : -1);
    batch_.c128.kv_slots.push_back((p + 1) % 128 == 0 ? slot / 128 : -1);
  }
  batch_.query_start_loc.push_back(static_cast<std::int32_t>(batch_.tokens.size()));
  pages_.push_back(&pages);
  starts_.push_back(start);
  lengths_.push_back(count);
}

std::int64_t BatchBuilder::want_logits(std::int64_t back) {
  batch_.logit_rows.push_back(batch_.num_tokens() - 1 - back);
  return static_cast<std::int64_t>(batch_.logit_rows.size()) - 1;
}

const model::StepBatch& BatchBuilder::finish() {
  fill_table(batch_.window_pages, pages_, &RequestPages::window);
  fill_table(batch_.compressed_pages, pages_, &RequestPages::compressed);
  fill_table(batch_.c4.state_pages, pages_, &RequestPages::c4_state);
  fill_table(batch_.c128.state_pages, pages_, &RequestPages::c128_state);
  batch_.c4.plan = compress_plan(starts_, lengths_, 4);
  batch_.c128.plan = compress_plan(starts_, lengths_, 128);
  return batch_;
}

void BatchBuilder::clear() {
  batch_ = {};
  pages_.clear();
  starts_.clear();
  lengths_.clear();
}

}  // namespace tamis::engine
