#include "model/byte_pair_merge.hpp"

#include <queue>
#include <tuple>

namespace tamis::model {
namespace {

// A pair of neighbours that can be merged. Entries go stale when one of the two has been merged otherwise; `left` and
// `right` say what they were.
struct Candidate {
  std::int32_t rank;
  std::int32_t position;  ///< Of the left one, by its first symbol.
  std::int32_t left, right;
  std::int32_t merged;

  /// The queue pops its largest element first.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.position) > std::tie(b.rank, b.position);
  }
};

struct Symbol {
  std::int32_t token;  ///< -1: merged into the one before.
  std::int32_t previous, next;
};

}  // namespace

void MergeTable::apply(std::vector<std::int32_t>& tokens, std::size_t begin) const {
  const auto count = static_cast<std::int32_t>(tokens.size() - begin);
  if (merges_.empty() || count < 2) return;

  std::vector<Symbol> symbols(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    symbols[static_cast<std::size_t>(i)] = {tokens[begin + static_cast<std::size_t>(i)], i - 1,
                                            i + 1 < count ? i + 1 : -1};
  }
  const auto at = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  std::priority_queue<Candidate> queue;
  const auto offer = [&](std::int32_t i) {
    if (i < 0 || at(i).next < 0) return;
    const std::int32_t left = at(i).token, right = at(at(i).next).token;
    if (const Merge* merge = find(left, right)) queue.push({merge->rank, i, left, right, merge->merged});
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) offer(i);

  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    Symbol& left = at(c.position);
    if (left.token != c.left || left.next < 0 || at(left.next).token != c.right) continue;
    Symbol& right = at(left.next);
    left.token = c.merged;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) at(left.next).previous = c.position;
    offer(left.previous);
    offer(c.position);
  }

  std::size_t out = begin;
  for (std::int32_t i = 0; i >= 0; i = at(i).next) tokens[out++] = at(i).token;
  tokens.resize(out);
}

}  // namespace tamis::model
