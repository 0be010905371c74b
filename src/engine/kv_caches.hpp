#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/page_pool.hpp"
#include "model/config.hpp"
#include "model/step.hpp"

namespace tamis::engine {

/// Pages that a request or a pool has in each cache group.
struct PageCounts {
  std::int64_t window = 0;      ///< raw keys, 64 tokens a page, a sliding window
  std::int64_t compressed = 0;  ///< compressed keys and indexer keys, 256 tokens a page
  std::int64_t c4_state = 0;    ///< 4 tokens a page, a sliding window of 8
  std::int64_t c128_state = 0;  ///< 8 tokens a page, a sliding window of 128
};

/// Most pages that a request of this many tokens holds at once when a step takes at most `step_tokens` of them.
PageCounts pages_needed(std::int64_t request_tokens, std::int64_t step_tokens, const model::ModelConfig& config);

/// A request's pages in every group.
struct RequestPages {
  PageList window, compressed, c4_state, c128_state;
};

/// Cache memory of all layers, in pages, and the pools that hand the pages out (S-3.6, S-5, S-7.1).
class KvCaches {
 public:
  KvCaches(const model::ModelConfig& config, model::KvPrecision precision, const PageCounts& capacity);

  std::span<const model::LayerCaches> layers() const { return layers_; }
  std::int64_t bytes() const { return bytes_; }
  const PageCounts& capacity() const { return capacity_; }

  RequestPages make_request_pages();
  /// True if the pages can be promised now.
  bool can_reserve(const PageCounts& need) const;
  void reserve(const PageCounts& need);
  void unreserve(const PageCounts& need);
  /// Pages in use, in every group.
  PageCounts taken() const;

 private:
  std::byte* allocate(std::int64_t bytes);

  PageCounts capacity_;
  PagePool window_, compressed_, c4_state_, c128_state_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::int64_t bytes_ = 0;
  std::vector<model::LayerCaches> layers_;
};

inline constexpr std::int64_t kWindowPageTokens = 64;
inline constexpr std::int64_t kC4StatePageTokens = 4;
inline constexpr std::int64_t kC128StatePageTokens = 8;

}  // namespace tamis::engine
