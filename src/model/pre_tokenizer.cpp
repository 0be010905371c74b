#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/pre_tokenizer.hpp"

#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "core/check.hpp"
#include "model/utf8.hpp"

namespace tamis::model {
namespace {

constexpr std::size_t kMaxPatternBytes = 64U << 10;
constexpr std::size_t kMaxSplits = 64;
constexpr std::uint32_t kMatchHeapKib = 256U << 10;  // PCRE2's own default is 20 GB.
// PCRE2 counts steps (places to come back to) anew for every place where a match may begin. Ordinary patterns take some
// dozens; what takes more than kFreeSteps is tried with limits that grow fourfold, each charged to the text's
// allowance.
constexpr std::uint32_t kFreeSteps = 256;
constexpr std::uint32_t kMaxSteps = 1U << 30;       // At one place, whatever the allowance.
constexpr std::int64_t kStepsPerText = 10'000'000;  // PCRE2's own default for one place.
constexpr std::int64_t kStepsPerByte = 256;         // A run of n spaces may take some n steps where it begins.

// GPT-2's split, which ByteLevel applies unless use_regex is false.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class Behavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct BehaviorName {
  const char* name;
  Behavior behavior;
};
constexpr BehaviorName kBehaviors[] = {{"Removed", Behavior::kRemoved},
                                       {"Isolated", Behavior::kIsolated},
                                       {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                       {"MergedWithNext", Behavior::kMergedWithNext},
                                       {"Contiguous", Behavior::kContiguous}};

// Unicode's White_Space, which is what \s means where these patterns come from. PCRE2's own \s also matches U+180E.
constexpr std::string_view kSpaces =
    R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// The other characters, for \S inside a class. Surrogates are no characters.
constexpr std::string_view kNonSpaces =
    R"(\x00-\x08\x0E-\x1F\x21-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E})"
    R"(\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{D7FF}\x{E000}-\x{10FFFF})";

// Writes \s and \S out as the characters they stand for.
std::string with_unicode_spaces(std::string_view pattern) {
  if (pattern.find("\\Q") != std::string_view::npos) return std::string(pattern);  // Quoted text has no escapes.
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's' || escaped == 'S') {
        if (!in_class) out += escaped == 's' ? "[" : "[^";
        out += in_class && escaped == 'S' ? kNonSpaces : kSpaces;
        if (!in_class) out += ']';
      } else {
        out += c;
        out += escaped;
      }
      continue;
    }
    out += c;
    if (!in_class && c == '[') {
      in_class = true;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];  // A first ] is a member.
    } else if (in_class && c == '[' && i + 1 < pattern.size() && pattern[i + 1] == ':') {
      const std::size_t end = pattern.find(":]", i + 2);
      if (end == std::string_view::npos) continue;
      out += pattern.substr(i + 1, end + 1 - i);
      i = end + 1;
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return out;
}

struct CodeFree {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};

std::string pcre2_text(int error) {
  PCRE2_UCHAR buffer[160];
  const int n = pcre2_get_error_message(error, buffer, sizeof buffer);
  return n < 0 ? "error " + std::to_string(error) : std::string(reinterpret_cast<const char*>(buffer));
}

// Part of a text, and whether the pattern matched it.
struct Span {
  std::size_t begin, end;
  bool match;
};

// Joins and drops spans as the behavior says; what is left covers the pieces.
void apply_behavior(Behavior behavior, std::vector<Span>& spans) {
  std::vector<Span> out;
  switch (behavior) {
    case Behavior::kIsolated: return;
    case Behavior::kRemoved:
      std::copy_if(spans.begin(), spans.end(), std::back_inserter(out), [](const Span& s) { return !s.match; });
      break;
    case Behavior::kContiguous:
      for (const Span& s : spans) {
        if (!out.empty() && out.back().match == s.match) out.back().end = s.end;
        else out.push_back(s);
      }
      break;
    case Behavior::kMergedWithPrevious: {
      bool previous_match = false;
      for (const Span& s : spans) {
        if (s.match && !previous_match && !out.empty()) out.back().end = s.end;
        else out.push_back(s);
        previous_match = s.match;
      }
      break;
    }
    case Behavior::kMergedWithNext: {
      bool next_match = false;
      for (auto s = spans.rbegin(); s != spans.rend(); ++s) {
        if (s->match && !next_match && !out.empty()) out.back().begin = s->begin;
        else out.push_back(*s);
        next_match = s->match;
      }
      std::reverse(out.begin(), out.end());
      break;
    }
  }
  spans = std::move(out);
}

}  // namespace

struct PreTokenizer::Split {
  std::unique_ptr<pcre2_code, CodeFree> code;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
  std::string quoted;  ///< The pattern as errors show it.

  Split(std::string_view pattern, bool literal, Behavior what, bool inverted, const std::string& where)
      : behavior(what), invert(inverted), quoted(quote(pattern)) {
    TAMIS_CHECK(pattern.size() <= kMaxPatternBytes, Status::kDataError, where, ": expected at most ", kMaxPatternBytes,
                " bytes of pattern, got ", pattern.size());
    // \C would cut characters in two. In literal mode the other options are not allowed.
    const std::uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    int error = 0;
    PCRE2_SIZE at = 0;
    const std::string text = literal ? std::string(pattern) : with_unicode_spaces(pattern);
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &at, nullptr));
    TAMIS_CHECK(code != nullptr, Status::kDataError, where, ": pattern ", quoted, ": ", pcre2_text(error));
  }
};

// One text's way through the splits.
class PreTokenizer::Run {
 public:
  Run(const PreTokenizer& owner, std::int64_t& steps, const Sink& sink)
      : owner_(owner),
        steps_(steps),
        sink_(sink),
        // Room for the whole match only; groups are not looked at.
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    TAMIS_CHECK(data_ != nullptr && context_ != nullptr, Status::kResourceExhausted, "encode: out of memory");
    pcre2_set_heap_limit(context_.get(), kMatchHeapKib);
  }

  void from(std::size_t step, std::string_view text, std::size_t offset) {
    if (text.empty()) return;
    if (owner_.prefix_space_ && step == owner_.prefix_step_ && text.front() != ' ') {
      const std::string spaced = " " + std::string(text);
      split_or_emit(step, spaced, offset);  // Offsets, for messages only, are then one too large inside this piece.
      return;
    }
    split_or_emit(step, text, offset);
  }

 private:
  void split_or_emit(std::size_t step, std::string_view text, std::size_t offset) {
    if (step == owner_.splits_.size()) {
      sink_(text, offset);
      return;
    }
    for (const Span& s : spans(*owner_.splits_[step], text)) {
      from(step + 1, text.substr(s.begin, s.end - s.begin), offset + s.begin);
    }
  }

  int match(const Split& split, std::string_view text, std::size_t at, std::uint32_t options, std::uint32_t limit) {
    pcre2_set_match_limit(context_.get(), limit);
    const int rc = pcre2_match(split.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                               PCRE2_NO_UTF_CHECK | options, data_.get(), context_.get());
    TAMIS_CHECK(rc >= 0 || rc == PCRE2_ERROR_NOMATCH || rc == PCRE2_ERROR_MATCHLIMIT, Status::kDataError,
                "encode: the pre-tokenizer pattern ", split.quoted, " failed on this text: ", pcre2_text(rc));
    return rc;
  }

  // A match that begins exactly at `at`, in as many steps as the text has left.
  bool find_at(const Split& split, std::string_view text, std::size_t at) {
    std::uint32_t limit = kFreeSteps;
    for (;;) {
      const int rc = match(split, text, at, PCRE2_ANCHORED, limit);
      if (rc != PCRE2_ERROR_MATCHLIMIT) return rc >= 0;
      limit *= 4;
      steps_ -= limit;
      TAMIS_CHECK(steps_ >= 0 && limit <= kMaxSteps, Status::kDataError, "encode: the pre-tokenizer pattern ",
                  split.quoted, " takes too many steps on this text");
    }
  }

  // The first match that begins at `from` or after, as PCRE2 leaves it in data_. Every place of the text is tried at
  // most twice with the free steps, so these are bounded by its length.
  bool find(const Split& split, std::string_view text, std::size_t from) {
    const int rc = match(split, text, from, 0, kFreeSteps);
    if (rc != PCRE2_ERROR_MATCHLIMIT) return rc >= 0;
    // One place takes more than that, and it is not known which.
    for (std::size_t at = from;;) {
      if (find_at(split, text, at)) return true;
      if (at >= text.size()) return false;
      at += utf8_head(text.substr(at)).length;
    }
  }

  std::vector<Span> spans(const Split& split, std::string_view text) {
    std::vector<Span> out;
    std::size_t done = 0;  // Everything before is in `out`.
    std::size_t from = 0;
    while (from <= text.size()) {
      if (!find(split, text, from)) break;
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_.get());
      const std::size_t begin = range[0], end = range[1];
      // \K and lookarounds could move a match's begin behind what is done or past its end.
      TAMIS_CHECK(begin >= done && begin <= end, Status::kDataError, "encode: the pre-tokenizer pattern ", split.quoted,
                  " gives overlapping matches on this text");
      if (begin > done) out.push_back({done, begin, split.invert});
      if (end > begin) out.push_back({begin, end, !split.invert});
      done = end;
      from = end;
      if (begin == end) {  // Past the next character, or the same empty match would come for ever.
        if (from >= text.size()) break;
        from += utf8_head(text.substr(from)).length;
      }
    }
    if (done < text.size()) out.push_back({done, text.size(), split.invert});
    apply_behavior(split.behavior, out);
    return out;
  }

  const PreTokenizer& owner_;
  std::int64_t& steps_;
  const Sink& sink_;
  std::unique_ptr<pcre2_match_data, MatchDataFree> data_;
  std::unique_ptr<pcre2_match_context, MatchContextFree> context_;
};

std::int64_t PreTokenizer::step_allowance(std::size_t text_bytes) {
  return kStepsPerText + kStepsPerByte * static_cast<std::int64_t>(text_bytes);
}

void PreTokenizer::split(std::string_view text, std::int64_t& steps, const Sink& sink) const {
  Run(*this, steps, sink).from(0, text, 0);
}

namespace {

bool flag(const Json& part, const std::string& where, const std::string& name, const char* key, bool fallback) {
  const auto it = part.find(key);
  if (it == part.end() || it->is_null()) return fallback;
  TAMIS_CHECK(it->is_boolean(), Status::kDataError, name, ": ", where, ".", key, ": expected true or false, got ",
              json_text(*it));
  return it->get<bool>();
}

}  // namespace

void PreTokenizer::parse_part(const Json& part, const std::string& where, const std::string& name) {
  TAMIS_CHECK(part.is_object() && part.contains("type") && part["type"].is_string(), Status::kDataError, name, ": ",
              where, ": expected an object with a type, got ", json_text(part));
  const auto& type = part["type"].get_ref<const std::string&>();
  if (type == "Sequence") {
    const Json list = part.value("pretokenizers", Json());
    TAMIS_CHECK(list.is_array(), Status::kDataError, name, ": ", where, ".pretokenizers: expected an array, got ",
                json_text(list));
    for (std::size_t i = 0; i < list.size(); ++i) {
      parse_part(list[i], core::concat(where, ".pretokenizers[", i, "]"), name);
    }
    return;
  }
  TAMIS_CHECK(!byte_level_, Status::kUnsupported, name, ": ", where, ": expected nothing after ByteLevel, got ",
              quote(type));
  TAMIS_CHECK(splits_.size() < kMaxSplits, Status::kDataError, name, ": ", where, ": expected at most ", kMaxSplits,
              " splits");
  if (type == "ByteLevel") {
    byte_level_ = true;
    prefix_space_ = flag(part, where, name, "add_prefix_space", true);
    prefix_step_ = splits_.size();
    if (flag(part, where, name, "use_regex", true)) {
      splits_.push_back(std::make_shared<Split>(kByteLevelPattern, false, Behavior::kIsolated, false, where));
    }
    return;
  }
  if (type == "Digits") {
    const bool single = flag(part, where, name, "individual_digits", false);
    splits_.push_back(
        std::make_shared<Split>("\\p{N}", false, single ? Behavior::kIsolated : Behavior::kContiguous, false, where));
    return;
  }
  TAMIS_CHECK(type == "Split", Status::kUnsupported, name, ": ", where,
              ": expected Split, Digits, ByteLevel or Sequence, got ", quote(type));
  const Json pattern = part.value("pattern", Json());
  const bool literal = pattern.is_object() && pattern.contains("String");
  const Json text = pattern.is_object() ? pattern.value(literal ? "String" : "Regex", Json()) : Json();
  TAMIS_CHECK(text.is_string(), Status::kDataError, name, ": ", where,
              ".pattern: expected an object with Regex or String, got ", json_text(pattern));
  const Json behavior = part.value("behavior", Json());
  const auto* row = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                 [&](const BehaviorName& b) { return behavior == b.name; });
  TAMIS_CHECK(row != std::end(kBehaviors), Status::kDataError, name, ": ", where,
              ".behavior: expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, got ",
              json_text(behavior));
  splits_.push_back(std::make_shared<Split>(text.get_ref<const std::string&>(), literal, row->behavior,
                                            flag(part, where, name, "invert", false), name + ": " + where));
}

PreTokenizer PreTokenizer::parse(const Json& part, const std::string& name) {
  PreTokenizer result;
  if (!part.is_null()) result.parse_part(part, "pre_tokenizer", name);
  TAMIS_CHECK(result.byte_level_, Status::kUnsupported, name,
              ": pre_tokenizer: expected ByteLevel, or a Sequence that ends in it, got ",
              part.is_null() ? "nothing" : "none");
  return result;
}

}  // namespace tamis::model
