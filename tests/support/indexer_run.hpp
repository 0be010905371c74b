#pragma once

// Runs index_logits() and index_topk() into guarded, poisoned memory.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/guarded_buffer.hpp"
#include "support/indexer_cases.hpp"
#include "tamis/indexer.hpp"

namespace tamis::test {

inline constexpr std::uint8_t kLogitsPoison = 0xC3;

/// Bits of the logits matrix, [rows, max_columns]; what the call leaves alone is kLogitsPoison in every byte.
inline std::vector<std::uint32_t> run_index_logits(const IndexScoreArgs& score, int num_threads = 1,
                                                   bool clean = false) {
  const std::int64_t rows = score.index_q.size(0);
  GuardedBuffer<std::uint32_t> out(static_cast<std::size_t>(rows * score.max_columns), kLogitsPoison);
  IndexLogitsArgs args;
  args.score = score;
  args.logits = TensorView(out.data(), DType::kFloat32, {rows, score.max_columns});
  args.clean = clean;
  args.num_threads = num_threads;
  index_logits(args);
  EXPECT_TRUE(out.guards_intact());
  return out.copy();
}

/// Scratch that begins at a 64-byte boundary and is full of rubbish.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : buffer_(bytes, 0xFF) {}
  void* data() { return buffer_.data(); }
  std::size_t size() const { return buffer_.size(); }
  ::testing::AssertionResult guards_intact() const { return buffer_.guards_intact(); }

 private:
  GuardedBuffer<std::byte> buffer_;
};

}  // namespace tamis::test
