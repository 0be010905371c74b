#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tamis::model {

/// What stands at the beginning of a byte string.
struct Utf8Head {
  enum class Kind {
    kCharacter,   ///< `length` bytes are one character.
    kInvalid,     ///< `length` bytes can never become one: the longest beginning of a character, or one stray byte.
    kIncomplete,  ///< All `length` bytes there are begin a character whose rest is missing.
  };
  Kind kind = Kind::kInvalid;
  std::size_t length = 0;
  char32_t character = 0;  ///< For kCharacter.
};

/// `bytes` must not be empty. Overlong forms, surrogates and values past U+10FFFF are invalid.
inline Utf8Head utf8_head(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return {Utf8Head::Kind::kCharacter, 1, first};
  // Length by the first byte, and the range of the second, which is what rules out overlong forms and surrogates.
  std::size_t length = 0;
  unsigned char lo = 0x80, hi = 0xBF;
  char32_t character = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
    character = first & 0x1FU;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    character = first & 0xFU;
    if (first == 0xE0) lo = 0xA0;
    if (first == 0xED) hi = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    character = first & 7U;
    if (first == 0xF0) lo = 0x90;
    if (first == 0xF4) hi = 0x8F;
  } else {
    return {Utf8Head::Kind::kInvalid, 1, 0};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) return {Utf8Head::Kind::kIncomplete, i, 0};
    if (at(i) < lo || at(i) > hi) return {Utf8Head::Kind::kInvalid, i, 0};
    character = character << 6 | (at(i) & 0x3FU);
    lo = 0x80;
    hi = 0xBF;
  }
  return {Utf8Head::Kind::kCharacter, length, character};
}

/// Offset of the first byte that is not part of a character; npos if all are.
inline std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Head head = utf8_head(text.substr(i));
    if (head.kind != Utf8Head::Kind::kCharacter) return i;
    i += head.length;
  }
  return std::string_view::npos;
}

inline void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0U | c >> 6);
    out += static_cast<char>(0x80U | (c & 0x3FU));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0U | c >> 12);
    out += static_cast<char>(0x80U | (c >> 6 & 0x3FU));
    out += static_cast<char>(0x80U | (c & 0x3FU));
  } else {
    out += static_cast<char>(0xF0U | c >> 18);
    out += static_cast<char>(0x80U | (c >> 12 & 0x3FU));
    out += static_cast<char>(0x80U | (c >> 6 & 0x3FU));
    out += static_cast<char>(0x80U | (c & 0x3FU));
  }
}

/// Appends `bytes` to `out`, U+FFFD for each invalid part, and returns how many bytes at the end are the beginning of a
/// character that is not complete; those are not appended.
inline std::size_t append_valid_utf8(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const Utf8Head head = utf8_head(bytes);
    if (head.kind == Utf8Head::Kind::kIncomplete) return head.length;
    if (head.kind == Utf8Head::Kind::kCharacter) out.append(bytes.substr(0, head.length));
    else out.append("\xEF\xBF\xBD");
    bytes.remove_prefix(head.length);
  }
  return 0;
}

}  // namespace tamis::model
