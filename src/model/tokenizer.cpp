#include "model/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include "core/check.hpp"
#include "model/byte_pair_merge.hpp"
#include "model/json_file.hpp"
#include "model/pre_tokenizer.hpp"
#include "model/utf8.hpp"

namespace tamis::model {
namespace {

constexpr std::uint64_t kMaxTokenizerBytes = 256U << 20;
constexpr std::uint64_t kMaxTokenizerConfigBytes = 16U << 20;
// Ids index an array, so they must be dense: below twice the number of tokens plus this.
constexpr std::size_t kIdSlack = 4096;
// Bounds what looking for added tokens takes at each byte of a text. Theirs have some dozens of bytes.
constexpr std::size_t kMaxAddedBytes = 1024;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

template <typename... Parts>
[[noreturn]] void fail_data(const Parts&... parts) {
  core::fail(Status::kDataError, parts...);
}
template <typename... Parts>
[[noreturn]] void fail_unsupported(const Parts&... parts) {
  core::fail(Status::kUnsupported, parts...);
}

// The byte-level alphabet: printable Latin-1 characters stand for themselves, the other bytes in ascending order for
// U+0100, U+0101, ...
struct ByteAlphabet {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, 512> byte{};  ///< -1: not in the alphabet

  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[b] = printable ? static_cast<char32_t>(b) : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet kAlphabet;
  return kAlphabet;
}

// The bytes that a vocabulary entry stands for, if it is spelled in the alphabet.
std::optional<std::string> decoded_bytes(const std::string& spelled) {
  std::string bytes;
  for (std::string_view rest = spelled; !rest.empty();) {
    const Utf8Head head = utf8_head(rest);
    const bool known = head.kind == Utf8Head::Kind::kCharacter && head.character < 512;
    const std::int16_t byte = known ? alphabet().byte[head.character] : std::int16_t{-1};
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    rest.remove_prefix(head.length);
  }
  return bytes;
}

enum class TokenKind : std::uint8_t { kNone, kVocabulary, kAdded, kSpecial };

// Added tokens by their text: finds the longest that a string begins with.
class AddedTokens {
 public:
  void add(const std::string& text, std::int32_t id) { tokens_.emplace_back(text, id); }
  bool empty() const { return tokens_.empty(); }

  /// After the last add.
  void finish() {
    std::sort(tokens_.begin(), tokens_.end());
    tokens_.erase(std::unique(tokens_.begin(), tokens_.end()), tokens_.end());
    for (const Token& token : tokens_) {
      Range& range = by_first_byte_[static_cast<unsigned char>(token.first.front())];
      if (range.size == 0) range.begin = static_cast<std::size_t>(&token - tokens_.data());
      ++range.size;
    }
  }

  /// The id, or -1; `length` is set when there is one.
  std::int32_t match(std::string_view text, std::size_t& length) const {
    const Range first = by_first_byte_[static_cast<unsigned char>(text.front())];
    // Tokens in [begin, end) begin with the first n bytes of the text; sorted, so the shortest is in front.
    auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(first.begin);
    auto end = begin + static_cast<std::ptrdiff_t>(first.size);
    std::int32_t id = -1;
    for (std::size_t n = 1; begin != end; ++n) {
      if (begin->first.size() == n) {
        length = n;
        id = begin->second;
        ++begin;
      }
      if (n == text.size()) break;
      const auto next = static_cast<unsigned char>(text[n]);
      const auto byte = [n](const Token& token) { return static_cast<unsigned char>(token.first[n]); };
      begin = std::partition_point(begin, end, [&](const Token& token) { return byte(token) < next; });
      end = std::partition_point(begin, end, [&](const Token& token) { return byte(token) == next; });
    }
    return id;
  }

 private:
  using Token = std::pair<std::string, std::int32_t>;
  struct Range {
    std::size_t begin = 0, size = 0;
  };
  std::vector<Token> tokens_;  ///< Sorted by their bytes, as unsigned ones.
  std::array<Range, 256> by_first_byte_{};
};

}  // namespace

struct Tokenizer::Tables {
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using TokenIds = std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>>;

  TokenIds vocabulary;             ///< As spelled in the file, added tokens included.
  TokenIds by_bytes;               ///< Only with ignore_merges: whole pieces that are tokens.
  std::vector<std::string> bytes;  ///< By id.
  std::vector<TokenKind> kinds;    ///< By id.
  std::array<std::int32_t, 256> byte_ids{};
  MergeTable merges;
  bool ignore_merges = false;
  std::int32_t unknown_id = -1;
  bool fuse_unknown = false;
  AddedTokens raw_added;         ///< Cut out of the text first.
  AddedTokens normalized_added;  ///< Cut out of what is left. Without a normalizer the text is the same.
  PreTokenizer pre_tokenizer;
  std::vector<std::int32_t> prefix;  ///< The template's tokens before the text.
  std::vector<std::int32_t> suffix;

  void encode_cut(std::string_view text, std::size_t offset, const AddedTokens* first, const AddedTokens* second,
                  std::int64_t& steps, std::vector<std::int32_t>& ids) const;
  void encode_piece(std::string_view piece, std::size_t offset, std::vector<std::int32_t>& ids) const;
  TokenKind kind(std::int32_t id) const {
    return id < 0 || static_cast<std::size_t>(id) >= kinds.size() ? TokenKind::kNone
                                                                  : kinds[static_cast<std::size_t>(id)];
  }
};

namespace {

using Tables = Tokenizer::Tables;

// Builds the tables from the file's parts, in the order in which they depend on each other.
class Loader {
 public:
  Loader(const Json& root, const std::string& name) : root_(root), name_(name) {}

  std::shared_ptr<const Tables> load() {
    TAMIS_CHECK(root_.is_object(), Status::kDataError, name_, ": expected an object, got ", json_text(root_));
    check_normalizer();
    const Json& model = member(root_, "", "model");
    if (!model.is_object()) fail_data(name_, ": model: expected an object, got ", json_text(model));
    check_model_kind(model);
    load_tokens(model);
    load_merges(model);
    load_unknown(model);
    tables_->pre_tokenizer = PreTokenizer::parse(optional(root_, "pre_tokenizer"), name_);
    load_template(optional(root_, "post_processor"), "post_processor");
    check_decoder(optional(root_, "decoder"));
    return tables_;
  }

 private:
  const Json& member(const Json& object, const std::string& where, const char* key) const {
    const auto it = object.find(key);
    if (it == object.end()) fail_data(name_, ": ", where, key, ": missing");
    return *it;
  }
  /// A null value where the key is absent.
  static const Json& optional(const Json& object, const char* key) {
    static const Json kNull;
    const auto it = object.find(key);
    return it == object.end() ? kNull : *it;
  }
  bool flag(const Json& object, const std::string& where, const char* key, bool fallback) const {
    const Json& value = optional(object, key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) fail_data(name_, ": ", where, key, ": expected true or false, got ", json_text(value));
    return value.get<bool>();
  }
  std::string type_of(const Json& part, const std::string& where) const {
    if (!part.is_object() || !optional(part, "type").is_string()) {
      fail_data(name_, ": ", where, ": expected an object with a type, got ", json_text(part));
    }
    return part["type"].get<std::string>();
  }
  const Json& list(const Json& part, const std::string& where, const char* key) const {
    const Json& value = optional(part, key);
    if (!value.is_array()) fail_data(name_, ": ", where, ".", key, ": expected an array, got ", json_text(value));
    return value;
  }

  void check_normalizer() const {
    const Json& normalizer = optional(root_, "normalizer");
    if (normalizer.is_null()) return;
    const std::string type = type_of(normalizer, "normalizer");
    if (type == "Sequence" && list(normalizer, "normalizer", "normalizers").empty()) return;
    fail_unsupported(name_, ": normalizer: expected none, got ", quote(type));
  }

  void check_model_kind(const Json& model) const {
    const Json& type = optional(model, "type");
    if (!type.is_null() && type != "BPE") {
      fail_unsupported(name_, ": model.type: expected \"BPE\", got ", json_text(type));
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = optional(model, key);
      if (!value.is_null() && value != "")
        fail_unsupported(name_, ": model.", key, ": expected none, got ", json_text(value));
    }
    const Json& dropout = optional(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) {
      fail_unsupported(name_, ": model.dropout: expected none, got ", json_text(dropout));
    }
    if (flag(model, "model.", "byte_fallback", false)) {
      fail_unsupported(name_, ": model.byte_fallback: expected false, got true");
    }
    tables_->fuse_unknown = flag(model, "model.", "fuse_unk", false);
    tables_->ignore_merges = flag(model, "model.", "ignore_merges", false);
  }

  std::int32_t checked_id(const std::string& where, const Json& value, std::size_t limit) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= limit) {
      fail_data(name_, ": ", where, ": expected an id below ", limit, ", got ", json_text(value));
    }
    return value.get<std::int32_t>();
  }

  void load_tokens(const Json& model) {
    const Json& vocab = member(model, "model.", "vocab");
    if (!vocab.is_object()) fail_data(name_, ": model.vocab: expected an object, got ", json_text(vocab));
    const Json& added = optional(root_, "added_tokens");
    if (!added.is_null() && !added.is_array()) {
      fail_data(name_, ": added_tokens: expected an array, got ", json_text(added));
    }
    const std::size_t limit = 2 * (vocab.size() + added.size()) + kIdSlack;
    Tables& t = *tables_;
    t.vocabulary.reserve(vocab.size() + added.size());
    t.byte_ids.fill(-1);
    for (const auto& [token, value] : vocab.items()) {
      const std::int32_t id = checked_id("model.vocab: " + quote(token), value, limit);
      if (token.empty()) fail_data(name_, ": model.vocab: expected tokens that are not empty, got \"\"");
      std::optional<std::string> bytes = decoded_bytes(token);
      if (bytes && bytes->size() == 1) t.byte_ids[static_cast<unsigned char>(bytes->front())] = id;
      if (bytes && t.ignore_merges) t.by_bytes.emplace(*bytes, id);
      // Other entries (special tokens, usually) stand for their own text.
      place(token, id, bytes ? std::move(*bytes) : token, TokenKind::kVocabulary);
    }
    for (std::size_t i = 0; i < added.size(); ++i) load_added(added[i], core::concat("added_tokens[", i, "]"), limit);
    t.raw_added.finish();
    t.normalized_added.finish();
  }

  void place(const std::string& token, std::int32_t id, std::string bytes, TokenKind kind) {
    Tables& t = *tables_;
    const auto index = static_cast<std::size_t>(id);
    if (index >= t.kinds.size()) {
      t.kinds.resize(index + 1, TokenKind::kNone);
      t.bytes.resize(index + 1);
    }
    if (t.kinds[index] != TokenKind::kNone) {
      fail_data(name_, ": token ", quote(token), ": expected an id of its own, got ", id, ", which is ",
                quote(t.bytes[index]));
    }
    t.kinds[index] = kind;
    t.bytes[index] = std::move(bytes);
    t.vocabulary.emplace(token, id);
  }

  void load_added(const Json& entry, const std::string& where, std::size_t limit) {
    if (!entry.is_object()) fail_data(name_, ": ", where, ": expected an object, got ", json_text(entry));
    const Json& content = optional(entry, "content");
    if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
      fail_data(name_, ": ", where, ".content: expected a string that is not empty, got ", json_text(content));
    }
    const auto& text = content.get_ref<const std::string&>();
    if (text.size() > kMaxAddedBytes) {
      fail_data(name_, ": ", where, ".content: expected at most ", kMaxAddedBytes, " bytes, got ", text.size());
    }
    const std::int32_t id = checked_id(where + ".id", optional(entry, "id"), limit);
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (flag(entry, where + ".", key, false)) {
        fail_unsupported(name_, ": ", where, ".", key, ": expected false, got true");
      }
    }
    Tables& t = *tables_;
    const TokenKind kind = flag(entry, where + ".", "special", false) ? TokenKind::kSpecial : TokenKind::kAdded;
    const auto known = t.vocabulary.find(text);
    if (known == t.vocabulary.end()) {
      place(text, id, text, kind);
    } else {
      if (known->second != id) {
        fail_data(name_, ": ", where, ".id: expected ", known->second, " (what the vocabulary says), got ", id);
      }
      t.kinds[static_cast<std::size_t>(id)] = kind;
      t.bytes[static_cast<std::size_t>(id)] = text;
    }
    // Special tokens are matched in the raw text unless the file says otherwise.
    const bool normalized = flag(entry, where + ".", "normalized", kind != TokenKind::kSpecial);
    (normalized ? t.normalized_added : t.raw_added).add(text, id);
  }

  std::int32_t known_id(const std::string& where, const std::string& token) const {
    const auto it = tables_->vocabulary.find(token);
    if (it == tables_->vocabulary.end()) {
      fail_data(name_, ": ", where, ": expected a token of the vocabulary, got ", quote(token));
    }
    return it->second;
  }

  void load_merges(const Json& model) {
    const Json& merges = optional(model, "merges");
    if (merges.is_null()) return;
    if (!merges.is_array()) fail_data(name_, ": model.merges: expected an array, got ", json_text(merges));
    tables_->merges.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const Json& merge = merges[i];
      const auto where = [&] { return core::concat("model.merges[", i, "]"); };
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          fail_data(name_, ": ", where(), ": expected two tokens with one space between, got ", quote(text));
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else {
        fail_data(name_, ": ", where(), ": expected two tokens, got ", json_text(merge));
      }
      const std::int32_t left_id = known_id(where(), left);
      const std::int32_t right_id = known_id(where(), right);
      tables_->merges.add(left_id, right_id, known_id(where(), left + right), static_cast<std::int32_t>(i));
    }
  }

  void load_unknown(const Json& model) {
    const Json& unknown = optional(model, "unk_token");
    if (unknown.is_null()) return;
    if (!unknown.is_string()) fail_data(name_, ": model.unk_token: expected a string, got ", json_text(unknown));
    tables_->unknown_id = known_id("model.unk_token", unknown.get<std::string>());
  }

  void load_template(const Json& processor, const std::string& where) {
    if (processor.is_null()) return;
    const std::string type = type_of(processor, where);
    if (type == "ByteLevel") return;  // It only moves offsets, which are not kept here.
    if (type == "Sequence") {
      const Json& parts = list(processor, where, "processors");
      for (std::size_t i = 0; i < parts.size(); ++i) {
        load_template(parts[i], core::concat(where, ".processors[", i, "]"));
      }
      return;
    }
    if (type != "TemplateProcessing") {
      fail_unsupported(name_, ": ", where, ": expected TemplateProcessing or ByteLevel, got ", quote(type));
    }
    const Json& single = list(processor, where, "single");
    bool text_seen = false;
    for (std::size_t i = 0; i < single.size(); ++i) {
      const std::string at = core::concat(where, ".single[", i, "]");
      const Json& special = optional(single[i].is_object() ? single[i] : kEmpty, "SpecialToken");
      if (single[i].is_object() && single[i].contains("Sequence")) {
        if (text_seen) fail_data(name_, ": ", at, ": expected one Sequence, got another");
        text_seen = true;
      } else if (special.is_object() && optional(special, "id").is_string()) {
        append_special(processor, special["id"].get<std::string>(), at, text_seen ? tables_->suffix : tables_->prefix);
      } else {
        fail_data(name_, ": ", at, ": expected a Sequence or a SpecialToken, got ", json_text(single[i]));
      }
    }
    if (!text_seen) fail_data(name_, ": ", where, ".single: expected one Sequence, got none");
  }

  void append_special(const Json& processor, const std::string& token, const std::string& at,
                      std::vector<std::int32_t>& out) const {
    const Json& specials = optional(processor, "special_tokens");
    const Json& entry = optional(specials.is_object() ? specials : kEmpty, token.c_str());
    const Json& ids = optional(entry.is_object() ? entry : kEmpty, "ids");
    if (!ids.is_array()) fail_data(name_, ": ", at, ": ", quote(token), " has no ids in special_tokens");
    for (const Json& id : ids) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= tables_->kinds.size() ||
          tables_->kind(id.get<std::int32_t>()) == TokenKind::kNone) {
        fail_data(name_, ": ", at, ": ", quote(token), ": expected ids of tokens, got ", json_text(id));
      }
      out.push_back(id.get<std::int32_t>());
    }
  }

  void check_decoder(const Json& decoder) const {
    if (decoder.is_null()) return;
    const std::string type = type_of(decoder, "decoder");
    if (type == "ByteLevel") return;
    if (type == "Sequence") {
      for (const Json& part : list(decoder, "decoder", "decoders")) {
        const std::string inner = type_of(part, "decoder.decoders");
        if (inner != "ByteLevel") fail_unsupported(name_, ": decoder: expected ByteLevel, got ", quote(inner));
      }
      return;
    }
    fail_unsupported(name_, ": decoder: expected ByteLevel, got ", quote(type));
  }

  static inline const Json kEmpty = Json::object();
  const Json& root_;
  const std::string& name_;
  std::shared_ptr<Tables> tables_ = std::make_shared<Tables>();
};

}  // namespace

Tokenizer Tokenizer::parse(std::string_view text, const std::string& name) {
  const Json root = parse_json(text, name);
  return Tokenizer(Loader(root, name).load());
}

Tokenizer Tokenizer::open(const std::filesystem::path& directory) {
  const auto path = directory / "tokenizer.json";
  Tokenizer tokenizer = parse(read_text_file(path, kMaxTokenizerBytes), path.string());
  // Some models have no template and say only here that a sequence begins with a token.
  const auto config_path = directory / "tokenizer_config.json";
  if (!file_exists(config_path)) return tokenizer;
  const std::string name = config_path.string();
  const Json config = parse_json(read_text_file(config_path, kMaxTokenizerConfigBytes), name);
  if (!config.is_object()) fail_data(name, ": expected an object, got ", json_text(config));
  if (!tokenizer.tables_->prefix.empty() || config.value("add_bos_token", Json(false)) != true) return tokenizer;
  Json bos = config.value("bos_token", Json());
  if (bos.is_object()) bos = Json(bos.value("content", Json()));
  if (!bos.is_string()) fail_data(name, ": bos_token: expected a string or an object with one, got ", json_text(bos));
  const auto id = tokenizer.find(bos.get_ref<const std::string&>());
  if (!id) fail_data(name, ": bos_token: expected a token of the vocabulary, got ", json_text(bos));
  auto tables = std::make_shared<Tables>(*tokenizer.tables_);
  tables->prefix.push_back(*id);
  return Tokenizer(std::move(tables));
}

// ---- Encoding ----

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  TAMIS_CHECK(text.size() < static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()), Status::kDataError,
              "encode: text has ", text.size(), " bytes, must have fewer than 2^31 - 1");
  const std::size_t bad = find_invalid_utf8(text);
  TAMIS_CHECK(bad == std::string_view::npos, Status::kDataError, "encode: text is not UTF-8 at byte ", bad);
  std::vector<std::int32_t> ids;
  if (add_special_tokens) ids = tables_->prefix;
  std::int64_t steps = PreTokenizer::step_allowance(text.size());
  tables_->encode_cut(text, 0, &tables_->raw_added, &tables_->normalized_added, steps, ids);
  if (add_special_tokens) ids.insert(ids.end(), tables_->suffix.begin(), tables_->suffix.end());
  return ids;
}

// Cuts the tokens of `first` out, encodes what is between with those of `second` cut out, and without any at last.
// `steps` is what patterns may still take on the whole text.
void Tokenizer::Tables::encode_cut(std::string_view text, std::size_t offset, const AddedTokens* first,
                                   const AddedTokens* second, std::int64_t& steps,
                                   std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  if (first == nullptr) {
    pre_tokenizer.split(text, steps,
                        [&](std::string_view piece, std::size_t at) { encode_piece(piece, offset + at, ids); });
    return;
  }
  std::size_t begin = 0;
  if (!first->empty()) {
    for (std::size_t i = 0; i < text.size();) {
      std::size_t length = 0;
      const std::int32_t id = first->match(text.substr(i), length);
      if (id < 0) {
        ++i;
        continue;
      }
      encode_cut(text.substr(begin, i - begin), offset + begin, second, nullptr, steps, ids);
      ids.push_back(id);
      begin = i += length;
    }
  }
  encode_cut(text.substr(begin), offset + begin, second, nullptr, steps, ids);
}

void Tokenizer::Tables::encode_piece(std::string_view piece, std::size_t offset, std::vector<std::int32_t>& ids) const {
  if (ignore_merges) {
    if (const auto whole = by_bytes.find(piece); whole != by_bytes.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  const std::size_t begin = ids.size();
  bool after_unknown = false;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const std::int32_t id = byte_ids[static_cast<unsigned char>(piece[i])];
    if (id >= 0) {
      ids.push_back(id);
      after_unknown = false;
      continue;
    }
    TAMIS_CHECK(unknown_id >= 0, Status::kDataError, "encode: the vocabulary has no token for the byte ",
                static_cast<unsigned>(static_cast<unsigned char>(piece[i])), " at byte ", offset + i,
                " and no unknown token");
    if (!(fuse_unknown && after_unknown)) ids.push_back(unknown_id);
    after_unknown = true;
  }
  merges.apply(ids, begin);
}

// ---- Decoding ----

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  TAMIS_CHECK(tables_->kind(id) != TokenKind::kNone, Status::kInvalidArgument, "decode: no token has the id ", id,
              ", ids are in [0, ", vocab_size(), ")");
  return tables_->bytes[static_cast<std::size_t>(id)];
}

bool Tokenizer::has_token(std::int32_t id) const { return tables_->kind(id) != TokenKind::kNone; }
bool Tokenizer::is_special(std::int32_t id) const { return tables_->kind(id) == TokenKind::kSpecial; }

std::optional<std::int32_t> Tokenizer::find(std::string_view token) const {
  const auto it = tables_->vocabulary.find(token);
  return it == tables_->vocabulary.end() ? std::nullopt : std::optional(it->second);
}

std::int32_t Tokenizer::vocab_size() const { return static_cast<std::int32_t>(tables_->kinds.size()); }

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  StreamDecoder decoder(*this, skip_special_tokens);
  std::string text;
  for (std::int32_t id : ids) {
    token_bytes(id);  // The stream does not refuse ids without a token.
    text += decoder.push(id);
  }
  return text + decoder.finish();
}

std::string StreamDecoder::push(std::int32_t id) {
  if (skip_special_tokens_ && tokenizer_.is_special(id)) return {};
  pending_ += tokenizer_.has_token(id) ? tokenizer_.token_bytes(id) : kReplacement;
  std::string text;
  const std::size_t held_back = append_valid_utf8(pending_, text);
  pending_.erase(0, pending_.size() - held_back);
  return text;
}

std::string StreamDecoder::finish() {
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return std::string(incomplete ? kReplacement : "");
}

}  // namespace tamis::model
