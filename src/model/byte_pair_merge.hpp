#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace tamis::model {

/// The merges of a BPE model: which two adjacent tokens become one, and in which order of preference.
class MergeTable {
 public:
  void reserve(std::size_t count) { merges_.reserve(count); }

  /// @param rank  Lower merges first. A pair that is added again takes the later rank, as the usual implementation
  /// does.
  void add(std::int32_t left, std::int32_t right, std::int32_t merged, std::int32_t rank) {
    merges_[key(left, right)] = {rank, merged};
  }

  /// Merges tokens[begin ..] in place until no pair of neighbours is in the table: always the pair of lowest rank, the
  /// leftmost of equals. O(n log n).
  void apply(std::vector<std::int32_t>& tokens, std::size_t begin) const;

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t merged;
  };
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const auto it = merges_.find(key(left, right));
    return it == merges_.end() ? nullptr : &it->second;
  }

  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace tamis::model
