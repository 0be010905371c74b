#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/json_file.hpp"

namespace tamis::model {

/// Splits text into the pieces within which tokens merge: the pre_tokenizer of a tokenizer.json, of the kinds that
/// byte-level models use (Split, Digits, ByteLevel, and sequences of them that end in ByteLevel).
class PreTokenizer {
 public:
  /// One piece at a time: its bytes and where they begin in the text.
  using Sink = std::function<void(std::string_view piece, std::size_t offset)>;

  /// @throws Error kDataError for a malformed part; kUnsupported for a kind that byte-level BPE models do not use.
  static PreTokenizer parse(const Json& part, const std::string& name);

  /// Steps that patterns may take on a text of so many bytes, besides some hundreds at every byte.
  static std::int64_t step_allowance(std::size_t text_bytes);

  /// @param text   Valid UTF-8: a text, or a part of one.
  /// @param steps  What is left of the text's allowance; counted down.
  /// @throws Error kDataError naming the pattern if it needs more steps or memory on this text than is allowed.
  void split(std::string_view text, std::int64_t& steps, const Sink& sink) const;

  struct Split;  ///< One pattern and what becomes of its matches.

 private:
  class Run;
  void parse_part(const Json& part, const std::string& where, const std::string& name);

  std::vector<std::shared_ptr<const Split>> splits_;  ///< In order.
  bool byte_level_ = false;
  /// ByteLevel's add_prefix_space: a piece that does not begin with a space gets one, before splits_[prefix_step_].
  bool prefix_space_ = false;
  std::size_t prefix_step_ = 0;
};

}  // namespace tamis::model
