#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::model {

/// A byte-level BPE tokenizer as a tokenizer.json describes it. Immutable after loading; a copy shares its tables, and
/// several threads may use one.
///
/// Encoding: added tokens are cut out of the text first (at each position the longest), the rest is split by the
/// pre-tokenizers, each piece's bytes are merged by rank, and the post-processor's template adds its special tokens.
class Tokenizer {
 public:
  /// Reads directory/tokenizer.json, and add_bos_token from tokenizer_config.json where that is present.
  /// @throws Error kDataError if a file is missing or malformed; kUnsupported for a part that byte-level BPE models do
  ///         not use (another model, normalizers, byte fallback), naming it.
  static Tokenizer open(const std::filesystem::path& directory);

  /// Reads the text of a tokenizer.json. @param name  What errors call the file.
  static Tokenizer parse(std::string_view text, const std::string& name);

  /// @param text                UTF-8.
  /// @param add_special_tokens  Add what the template says (the sequence's first token, usually).
  /// Special tokens written out in the text become those tokens.
  /// @throws Error kDataError naming the byte offset if the text is not UTF-8, or if it holds a byte that the
  ///         vocabulary has no token for and there is no unknown token, or if a pre-tokenizer's pattern takes far more
  ///         steps on it than its length explains.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;

  /// The text of tokens. Bytes that are not UTF-8 become U+FFFD, one per longest invalid prefix.
  /// @throws Error kInvalidArgument naming an id that is no token.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = true) const;

  /// The bytes of one token: of an added token its text, of any other what byte-level decoding gives.
  /// @throws Error kInvalidArgument if the id is no token.
  std::string_view token_bytes(std::int32_t id) const;
  bool has_token(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

  /// The id of a token as tokenizer.json spells it.
  std::optional<std::int32_t> find(std::string_view token) const;

  /// The largest id plus one.
  std::int32_t vocab_size() const;

  struct Tables;

 private:
  explicit Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const Tables> tables_;
};

/// Decodes tokens one at a time. What it returns, joined, is what Tokenizer::decode gives for all of them: a character
/// whose bytes are spread over tokens comes out whole, when its last byte is there.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens = true)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  /// The text that is complete now; may be empty. An id without a token, which a model may draw when its vocabulary is
  /// larger than the tokenizer's, is U+FFFD.
  std::string push(std::int32_t id);

  /// The end of the text: held-back bytes as U+FFFD. The decoder is then as new.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;  ///< At most 3 bytes: the beginning of one character.
};

}  // namespace tamis::model
