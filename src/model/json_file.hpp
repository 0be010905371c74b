#pragma once

// JSON from files that others wrote: parsed with a depth limit and without duplicate keys, and quoted safely in errors.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tamis::model {

using Json = nlohmann::json;

/// Deeper nesting is an error: no file read here comes near it, and walking a tree recursively must not overflow a
/// stack.
inline constexpr int kMaxJsonDepth = 32;

/// @param name  What errors call the file.
/// @throws Error kDataError in one line: malformed text, a NUL byte, a key given twice, nesting beyond kMaxJsonDepth.
Json parse_json(std::string_view text, const std::string& name);

/// True if something has that name, false if nothing has.
/// @throws Error kDataError if that cannot be said: a loop of links, a folder without permission.
bool file_exists(const std::filesystem::path& path);

/// The whole file. @throws Error kDataError if it cannot be read or is larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// Text from a file as errors show it: in quotes, control characters escaped, cut after 80 bytes.
std::string quote(std::string_view text);

/// What stands in the file, for "got ...": scalars by value, containers by kind and size.
std::string json_text(const Json& value);

}  // namespace tamis::model
