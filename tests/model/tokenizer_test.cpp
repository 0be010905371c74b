#include "model/tokenizer.hpp"

#include <random>

#include "model/byte_pair_merge.hpp"
#include "model/json_file.hpp"
#include "model/pre_tokenizer.hpp"
#include "model/utf8.hpp"
#include "model_files.hpp"

namespace tamis::model {
namespace {

using Ids = std::vector<std::int32_t>;

// 256 bytes in order, then 35 merges, then four added tokens; the pre-tokenizer is DeepSeek's.
Json small_json() {
  return Json::parse(
      file_text(std::filesystem::path(TAMIS_SOURCE_DIR) / "tests" / "model" / "data" / "tokenizer.json"));
}
Tokenizer parse(const Json& json) { return Tokenizer::parse(json.dump(), "t"); }
std::string parse_error(const Json& json, Status status = Status::kDataError) {
  return error_text(status, [&] { parse(json); });
}

constexpr std::int32_t kBos = 291, kEos = 292;

TEST(Tokenizer, TinyModelIsBytesPlusFour) {
  const Tokenizer t = Tokenizer::open(tiny_v4());
  EXPECT_EQ(t.vocab_size(), 260);
  std::string text;
  for (char32_t c = 0; c < 0x250; ++c) append_utf8(c, text);
  Ids expected = {0};
  for (char c : text) expected.push_back(static_cast<unsigned char>(c) + 4);
  EXPECT_EQ(t.encode(text), expected);
  EXPECT_EQ(t.decode(expected), text);
  EXPECT_EQ(t.encode("a<pad></s>b<unk", false), (Ids{101, 2, 1, 102, 64, 121, 114, 111}));
  EXPECT_EQ(t.decode(Ids{0, 101, 2, 1, 102}), "ab");
  EXPECT_EQ(t.decode(Ids{0, 101, 2, 1, 102}, false), "<s>a<pad></s>b");
  EXPECT_EQ(t.encode(""), Ids{0});
  EXPECT_EQ(t.encode("", false), Ids{});
  EXPECT_EQ(t.find("</s>"), 1);
  EXPECT_EQ(t.find("no such token"), std::nullopt);
  EXPECT_TRUE(t.is_special(3));
  EXPECT_FALSE(t.is_special(4));
  EXPECT_EQ(t.token_bytes(4), std::string_view("\0", 1));
}

// Expected ids are those of the Python package tokenizers 0.23.3 with the same file.
TEST(Tokenizer, MergesLikeTheUsualImplementation) {
  const Tokenizer t = parse(small_json());
  const struct {
    const char* text;
    Ids ids;
  } cases[] = {
      {"hello world", {kBos, 259, 264}},
      {"the the  the", {kBos, 116, 256, 266, 32, 266}},
      {"hello\n\n  world 12345", {kBos, 259, 277, 32, 264, 32, 273, 52, 53}},
      {"你好, café!!", {kBos, 285, 44, 32, 99, 97, 102, 286, 288}},
      {"a<think>b<thinking>c<｜end▁of▁sentence｜>d", {kBos, 97, 293, 98, 294, 99, kEos, 100}},
      {"it's 'real'.\r\n", {kBos, 105, 116, 278, 32, 39, 114, 101, 97, 108, 39, 46, 13, 10}},
      {"aaaaaaa", {kBos, 271, 270, 97}},
      {"x\xE1\xA0\x8E y", {kBos, 120, 225, 160, 142, 32, 121}},  // U+180E is no space
      {"\xC2\xA0\xC2\xA0z", {kBos, 194, 160, 194, 160, 122}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(t.encode(c.text), c.ids) << c.text;
    EXPECT_EQ(t.decode(std::span(c.ids).subspan(1), /*skip_special_tokens=*/false), c.text);
  }
}

TEST(Tokenizer, ByteLevelWithItsOwnPattern) {
  Json json = small_json();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  const Tokenizer t = parse(json);
  EXPECT_EQ(t.encode("hello the 123", false), (Ids{32, 259, 266, 32, 273}));
  EXPECT_EQ(t.encode("it's", false), (Ids{32, 105, 116, 278}));
  EXPECT_EQ(t.encode(" world", false), Ids{264});
  json["model"]["ignore_merges"] = true;
  json["model"]["vocab"]["zzz"] = 295;
  json["pre_tokenizer"]["add_prefix_space"] = false;
  EXPECT_EQ(parse(json).encode("zzz z", false), (Ids{295, 32, 122}));
}

TEST(Tokenizer, UnknownBytes) {
  Json json = small_json();
  json["model"]["vocab"].erase("x");
  json["model"]["vocab"]["<u>"] = 120;
  EXPECT_EQ(error_text(Status::kDataError, [&] { parse(json).encode("the yx", false); }),
            "encode: the vocabulary has no token for the byte 120 at byte 5 and no unknown token");
  json["model"]["unk_token"] = "<u>";
  EXPECT_EQ(parse(json).encode("axxb", false), (Ids{97, 120, 120, 98}));
  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(parse(json).encode("axxbx", false), (Ids{97, 120, 98, 120}));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer t = parse(small_json());
  const auto error = [&](std::string_view text) { return error_text(Status::kDataError, [&] { t.encode(text); }); };
  EXPECT_EQ(error("ab\xFF"), "encode: text is not UTF-8 at byte 2");
  EXPECT_EQ(error("\xE4\xBD"), "encode: text is not UTF-8 at byte 0");
  EXPECT_EQ(error("a\xC0\x80"), "encode: text is not UTF-8 at byte 1");           // overlong
  EXPECT_EQ(error("a\xED\xA0\x80"), "encode: text is not UTF-8 at byte 1");       // surrogate
  EXPECT_EQ(error("ab\xF4\x90\x80\x80"), "encode: text is not UTF-8 at byte 2");  // past U+10FFFF
}

TEST(Tokenizer, StreamHoldsIncompleteCharactersBack) {
  const Tokenizer t = Tokenizer::open(tiny_v4());
  StreamDecoder stream(t);
  const auto push = [&](int byte) { return stream.push(byte + 4); };
  EXPECT_EQ(push('a'), "a");
  EXPECT_EQ(push(0xE4), "");
  EXPECT_EQ(push(0xBD), "");
  EXPECT_EQ(push(0xA0), "你");
  EXPECT_EQ(push(0xF0), "");
  EXPECT_EQ(push(0x9F), "");
  EXPECT_EQ(push('b'),
            "\xEF\xBF\xBD"
            "b");  // one replacement for the broken beginning
  EXPECT_EQ(push(0xFF), "\xEF\xBF\xBD");
  EXPECT_EQ(push(0xC3), "");
  EXPECT_EQ(stream.push(1), "");  // a special token in between changes nothing
  EXPECT_EQ(push(0xA9), "é");
  EXPECT_EQ(push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, StreamOfRandomBytesEqualsDecodingAtOnce) {
  const Tokenizer t = Tokenizer::open(tiny_v4());
  std::mt19937 random(20261130);
  // Bytes that lead, continue and break characters, in equal shares.
  const unsigned char kBytes[] = {'a', 0x80, 0xBF, 0xC3, 0xE0, 0xA0, 0xED, 0x9F, 0xF0, 0x90, 0xF4, 0x8F, 0xFF, 0xC0};
  for (int repeat = 0; repeat < 2000; ++repeat) {
    Ids ids;
    for (int i = 0; i < 12; ++i) ids.push_back(kBytes[random() % std::size(kBytes)] + 4);
    StreamDecoder stream(t);
    std::string joined;
    for (std::int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_EQ(find_invalid_utf8(part), std::string_view::npos);
      joined += part;
    }
    joined += stream.finish();
    EXPECT_EQ(joined, t.decode(ids));
    EXPECT_EQ(t.decode(t.encode(joined)), joined);
  }
}

TEST(Tokenizer, RefusesIdsThatAreNoTokens) {
  const Tokenizer t = Tokenizer::open(tiny_v4());
  for (std::int32_t id : {-1, 260, 2147483647, -2147483647 - 1}) {
    const std::string expected = "decode: no token has the id " + std::to_string(id) + ", ids are in [0, 260)";
    EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { t.decode(Ids{id}); }), expected);
    EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { t.token_bytes(id); }), expected);
    EXPECT_FALSE(t.is_special(id));
  }
}

TEST(StreamDecoder, IdsWithoutATokenAreReplacementCharacters) {
  Json json = small_json();
  json["added_tokens"].erase(2);  // leaves a gap: 293 has no token, 294 has
  const Tokenizer t = parse(json);
  ASSERT_FALSE(t.has_token(293));
  ASSERT_TRUE(t.has_token(294));
  EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { t.decode(Ids{293}); }),
            "decode: no token has the id 293, ids are in [0, 295)");
  StreamDecoder stream(t);
  for (std::int32_t id : {293, 295, 2147483647, -1}) EXPECT_EQ(stream.push(id), "\xEF\xBF\xBD") << id;
  EXPECT_EQ(stream.push(97), "a");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.push(293), "\xEF\xBF\xBD\xEF\xBF\xBD");  // the broken beginning, and the id
  EXPECT_EQ(stream.finish(), "");
}

// Every length from one letter on: looking each length up at each byte of the text would take the square of 1024.
TEST(Tokenizer, AddedTokensOfManyLengths) {
  Json json = small_json();
  for (int n = 2; n <= 1024; ++n) {
    json["added_tokens"].push_back({{"id", 293 + n}, {"content", std::string(static_cast<std::size_t>(n), 'q')}});
  }
  json["added_tokens"].push_back(json["added_tokens"].back());  // given twice, which changes nothing
  json["added_tokens"].push_back({{"id", 1318}, {"content", "qq\xC3\xBF"}});
  const Tokenizer t = parse(json);
  EXPECT_EQ(t.encode("qqqb", false), (Ids{296, 98}));
  EXPECT_EQ(t.encode("qqq\xC3\xBF", false)[0], 296);
  EXPECT_EQ(t.encode("qq\xC3\xBF", false), Ids{1318});
  EXPECT_EQ(t.encode(std::string("qqq\0", 4), false)[0], 296);
  EXPECT_EQ(t.encode(std::string(2048 + 5, 'q'), false), (Ids{1317, 1317, 298}));
  json["added_tokens"].push_back({{"id", 1319}, {"content", std::string(1025, 'q')}});
  EXPECT_EQ(parse_error(json), "t: added_tokens[1029].content: expected at most 1024 bytes, got 1025");
}

TEST(Tokenizer, FirstTokenFromTokenizerConfig) {
  const TemporaryFolder folder;
  Json json = small_json();
  json["post_processor"] = {{"type", "ByteLevel"}};
  folder.write("tokenizer.json", json.dump());
  const auto encode = [&] { return Tokenizer::open(folder.path()).encode("a"); };
  EXPECT_EQ(encode(), Ids{97});
  folder.write("tokenizer_config.json", R"({"add_bos_token": false, "bos_token": "<think>"})");
  EXPECT_EQ(encode(), Ids{97});
  folder.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<think>"})");
  EXPECT_EQ(encode(), (Ids{293, 97}));
  folder.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": {"content": "<think>"}})");
  EXPECT_EQ(encode(), (Ids{293, 97}));
  folder.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<x>"})");
  EXPECT_EQ(error_text(Status::kDataError, encode), (folder.path() / "tokenizer_config.json").string() +
                                                        ": bos_token: expected a token of the vocabulary, got \"<x>\"");
  // The template already adds one.
  folder.write("tokenizer.json", small_json().dump());
  EXPECT_EQ(encode(), (Ids{kBos, 97}));
  // Then too the file must be what it is called.
  const std::string name = (folder.path() / "tokenizer_config.json").string();
  folder.write("tokenizer_config.json", "{} x");
  EXPECT_TRUE(error_text(Status::kDataError, encode).starts_with(name + ": not valid JSON: "));
  folder.write("tokenizer_config.json", "[]");
  EXPECT_EQ(error_text(Status::kDataError, encode), name + ": expected an object, got an array of 0 elements");
}

// ---- Files that are not as they should be ----

struct BadPart {
  const char* pointer;
  Json value;
  const char* error;
};

TEST(Tokenizer, BadFiles) {
  const BadPart cases[] = {
      {"/model", 1, "t: model: expected an object, got 1"},
      {"/model/vocab", Json::array(), "t: model.vocab: expected an object, got an array of 0 elements"},
      {"/model/vocab/a", -1, "t: model.vocab: \"a\": expected an id below 4686, got -1"},
      {"/model/vocab/a", 2147483647, "t: model.vocab: \"a\": expected an id below 4686, got 2147483647"},
      {"/model/vocab/a", "1", "t: model.vocab: \"a\": expected an id below 4686, got \"1\""},
      {"/model/vocab/b", 97, "t: token \"b\": expected an id of its own, got 97, which is \"a\""},
      {"/model/vocab/", 4000, "t: model.vocab: expected tokens that are not empty, got \"\""},
      {"/model/merges", "x", "t: model.merges: expected an array, got \"x\""},
      {"/model/merges/0", "he", "t: model.merges[0]: expected two tokens with one space between, got \"he\""},
      {"/model/merges/0", "h e l", "t: model.merges[0]: expected two tokens with one space between, got \"h e l\""},
      {"/model/merges/0", {"h"}, "t: model.merges[0]: expected two tokens, got an array of 1 elements"},
      {"/model/merges/0", "h hello", "t: model.merges[0]: expected a token of the vocabulary, got \"hhello\""},
      {"/model/merges/0", "nope e", "t: model.merges[0]: expected a token of the vocabulary, got \"nope\""},
      {"/model/unk_token", "<unk>", "t: model.unk_token: expected a token of the vocabulary, got \"<unk>\""},
      {"/model/fuse_unk", 1, "t: model.fuse_unk: expected true or false, got 1"},
      {"/added_tokens", 1, "t: added_tokens: expected an array, got 1"},
      {"/added_tokens/0", 1, "t: added_tokens[0]: expected an object, got 1"},
      {"/added_tokens/0/content", "", "t: added_tokens[0].content: expected a string that is not empty, got \"\""},
      {"/added_tokens/0/content", "a", "t: added_tokens[0].id: expected 97 (what the vocabulary says), got 291"},
      {"/added_tokens/0/id", nullptr, "t: added_tokens[0].id: expected an id below 4686, got null"},
      {"/pre_tokenizer", 3, "t: pre_tokenizer: expected an object with a type, got 3"},
      {"/pre_tokenizer/pretokenizers", 3, "t: pre_tokenizer.pretokenizers: expected an array, got 3"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "x",
       "t: pre_tokenizer.pretokenizers[0].pattern: expected an object with Regex or String, got \"x\""},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Joined",
       "t: pre_tokenizer.pretokenizers[0].behavior: expected Removed, Isolated, MergedWithPrevious, MergedWithNext or "
       "Contiguous, got \"Joined\""},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(",
       "t: pre_tokenizer.pretokenizers[0]: pattern \"(\": missing closing parenthesis"},
      {"/post_processor/single", 1, "t: post_processor.single: expected an array, got 1"},
      {"/post_processor/single", Json::array(), "t: post_processor.single: expected one Sequence, got none"},
      {"/post_processor/single/0",
       {{"Sequence", {{"id", "A"}}}},
       "t: post_processor.single[1]: expected one Sequence, got another"},
      {"/post_processor/single/0", 1, "t: post_processor.single[0]: expected a Sequence or a SpecialToken, got 1"},
      {"/post_processor/special_tokens", Json::object(),
       "t: post_processor.single[0]: \"<｜begin▁of▁sentence｜>\" has no ids in special_tokens"},
      {"/post_processor/special_tokens/<｜begin▁of▁sentence｜>/ids/0", 999,
       "t: post_processor.single[0]: \"<｜begin▁of▁sentence｜>\": expected ids of tokens, got 999"},
  };
  for (const BadPart& bad : cases) {
    Json json = small_json();
    json[Json::json_pointer(bad.pointer)] = bad.value;
    EXPECT_EQ(parse_error(json), bad.error);
  }
  EXPECT_EQ(parse_error(Json::array()), "t: expected an object, got an array of 0 elements");
  EXPECT_EQ(parse_error(Json::object()), "t: model: missing");
}

TEST(Tokenizer, PartsThatAreNotImplemented) {
  const BadPart cases[] = {
      {"/normalizer", {{"type", "NFC"}}, "t: normalizer: expected none, got \"NFC\""},
      {"/model/type", "Unigram", "t: model.type: expected \"BPE\", got \"Unigram\""},
      {"/model/byte_fallback", true, "t: model.byte_fallback: expected false, got true"},
      {"/model/dropout", 0.1, "t: model.dropout: expected none, got 0.1"},
      {"/model/end_of_word_suffix", "</w>", "t: model.end_of_word_suffix: expected none, got \"</w>\""},
      {"/added_tokens/1/lstrip", true, "t: added_tokens[1].lstrip: expected false, got true"},
      {"/pre_tokenizer", nullptr, "t: pre_tokenizer: expected ByteLevel, or a Sequence that ends in it, got nothing"},
      {"/pre_tokenizer",
       {{"type", "Whitespace"}},
       "t: pre_tokenizer: expected Split, Digits, ByteLevel or Sequence, got \"Whitespace\""},
      {"/pre_tokenizer/pretokenizers/4",
       {{"type", "Digits"}},
       "t: pre_tokenizer.pretokenizers[4]: expected nothing after ByteLevel, got \"Digits\""},
      {"/post_processor",
       {{"type", "BertProcessing"}},
       "t: post_processor: expected TemplateProcessing or ByteLevel, got \"BertProcessing\""},
      {"/decoder", {{"type", "WordPiece"}}, "t: decoder: expected ByteLevel, got \"WordPiece\""},
  };
  for (const BadPart& bad : cases) {
    Json json = small_json();
    json[Json::json_pointer(bad.pointer)] = bad.value;
    EXPECT_EQ(parse_error(json, Status::kUnsupported), bad.error);
  }
}

// ---- Its parts ----

std::vector<std::string> pieces(const Json& split, std::string_view text) {
  const Json part = {
      {"type", "Sequence"},
      {"pretokenizers", {split, {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  std::vector<std::string> out;
  std::size_t end = 0;
  std::int64_t steps = PreTokenizer::step_allowance(text.size());
  PreTokenizer::parse(part, "t").split(text, steps, [&](std::string_view piece, std::size_t offset) {
    EXPECT_EQ(text.substr(offset, piece.size()), piece);
    EXPECT_GE(offset, end);
    end = offset + piece.size();
    out.emplace_back(piece);
  });
  return out;
}

TEST(PreTokenizer, Behaviors) {
  using Pieces = std::vector<std::string>;
  const struct {
    const char* behavior;
    bool invert;
    Pieces expected;
  } cases[] = {
      {"Removed", false, {"ab", "c"}},
      {"Removed", true, {".", ".", "."}},
      {"Isolated", false, {".", ".", "ab", ".", "c"}},
      {"Isolated", true, {".", ".", "ab", ".", "c"}},
      {"MergedWithPrevious", false, {".", ".", "ab.", "c"}},
      {"MergedWithPrevious", true, {".", ".ab", ".c"}},
      {"MergedWithNext", false, {".", ".ab", ".c"}},
      {"MergedWithNext", true, {".", ".", "ab.", "c"}},
      {"Contiguous", false, {"..", "ab", ".", "c"}},
      {"Contiguous", true, {"..", "ab", ".", "c"}},
  };
  for (const auto& c : cases) {
    const Json split = {
        {"type", "Split"}, {"pattern", {{"String", "."}}}, {"behavior", c.behavior}, {"invert", c.invert}};
    EXPECT_EQ(pieces(split, "..ab.c"), c.expected) << c.behavior << c.invert;
  }
}

TEST(PreTokenizer, DigitsAndEmptyMatches) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12Ⅷb"), (Pieces{"a", "1", "2", "Ⅷ", "b"}));
  EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", false}}, "a12Ⅷb"), (Pieces{"a", "12Ⅷ", "b"}));
  const auto regex = [](const char* pattern) {
    return Json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  };
  EXPECT_EQ(pieces(regex("x*"), "你xx好"), (Pieces{"你", "xx", "好"}));
  EXPECT_EQ(pieces(regex("[^\\S\\n]+"), "a \t\nb"), (Pieces{"a", " \t", "\nb"}));
  EXPECT_EQ(pieces(regex("[]\\s[:digit:]]+"), "a]1 b"), (Pieces{"a", "]1 ", "b"}));
  EXPECT_EQ(pieces(regex("\\S+"), "ab c"), (Pieces{"ab", " ", "c"}));
}

TEST(PreTokenizer, HostilePatternsFailInsteadOfHanging) {
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "(x+x+)+[yz]"}}}, {"behavior", "Isolated"}};
  EXPECT_EQ(error_text(Status::kDataError, [&] { pieces(split, std::string(40, 'x')); }),
            "encode: the pre-tokenizer pattern \"(x+x+)+[yz]\" takes too many steps on this text");
  // Not even when each place takes a little: the allowance is the whole text's, added tokens in it or none.
  std::string many;
  for (int i = 0; i < 2000; ++i) many += std::string(18, 'x') + "<think>";
  Json json = small_json();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(x+x+)+[yz]"}};
  EXPECT_EQ(error_text(Status::kDataError, [&] { parse(json).encode(many); }),
            "encode: the pre-tokenizer pattern \"(x+x+)+[yz]\" takes too many steps on this text");
  const Json cutting = {{"type", "Split"}, {"pattern", {{"Regex", "\\C"}}}, {"behavior", "Isolated"}};
  EXPECT_EQ(error_text(Status::kDataError, [&] { pieces(cutting, "你"); }),
            "t: pre_tokenizer.pretokenizers[0]: pattern \"\\\\C\": using \\C is disabled by the application");
}

// A pattern that needs many steps before it matches or fails gives what it gives without a limit.
TEST(PreTokenizer, PlacesThatTakeManyStepsMatchAsOthersDo) {
  using Pieces = std::vector<std::string>;
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "x*y|x+z"}}}, {"behavior", "Isolated"}};
  for (const std::size_t n : {1U, 100U, 300U, 5000U}) {
    const std::string run(n, 'x');
    EXPECT_EQ(pieces(split, "a" + run + "zb" + run + "y" + run), (Pieces{"a", run + "z", "b", run + "y", run})) << n;
  }
  const Json backtracking = {{"type", "Split"}, {"pattern", {{"Regex", "[xy]*y|[xy]+z"}}}, {"behavior", "Isolated"}};
  const std::string run(1500, 'x');
  EXPECT_EQ(pieces(backtracking, "你" + run + "z好"), (Pieces{"你", run + "z", "好"}));
  EXPECT_EQ(pieces(backtracking, "你y" + run + "好"), (Pieces{"你", "y", run + "好"}));
}

TEST(PreTokenizer, LongRunsOfSpaces) {
  const Tokenizer t = parse(small_json());
  const std::string text = std::string(200000, ' ') + "x";
  EXPECT_EQ(t.decode(t.encode(text)), text);
}

// The definition of a merge order: look for the lowest rank, leftmost first, merge, start over.
Ids merge_slowly(const std::vector<std::array<std::int32_t, 3>>& merges, Ids tokens) {
  for (;;) {
    std::size_t best_rank = merges.size(), best_at = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      for (std::size_t r = 0; r < best_rank; ++r) {
        if (merges[r][0] == tokens[i] && merges[r][1] == tokens[i + 1]) {
          best_rank = r;
          best_at = i;
        }
      }
    }
    if (best_rank == merges.size()) return tokens;
    tokens[best_at] = merges[best_rank][2];
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(BytePairMerge, EqualsTheDefinition) {
  std::mt19937 random(7);
  const auto draw = [&](int n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  for (int repeat = 0; repeat < 500; ++repeat) {
    // Three letters and up to twelve merges of what there is so far, the pairs distinct.
    std::vector<std::array<std::int32_t, 3>> merges;
    MergeTable table;
    for (std::int32_t made = 3; made < 15; ++made) {
      const std::int32_t left = draw(made), right = draw(made);
      const bool known =
          std::any_of(merges.begin(), merges.end(), [&](const auto& m) { return m[0] == left && m[1] == right; });
      if (known) continue;
      merges.push_back({left, right, made});
    }
    std::shuffle(merges.begin(), merges.end(), random);
    for (std::size_t r = 0; r < merges.size(); ++r) {
      table.add(merges[r][0], merges[r][1], merges[r][2], static_cast<std::int32_t>(r));
    }
    Ids tokens;
    for (int i = draw(40); i > 0; --i) tokens.push_back(draw(3));
    Ids with_head = {99};
    with_head.insert(with_head.end(), tokens.begin(), tokens.end());
    table.apply(with_head, 1);
    Ids expected = {99};
    for (std::int32_t id : merge_slowly(merges, tokens)) expected.push_back(id);
    EXPECT_EQ(with_head, expected);
  }
}

}  // namespace
}  // namespace tamis::model
