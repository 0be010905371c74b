#include "model/json_file.hpp"

#include <cerrno>
#include <fstream>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "core/check.hpp"

namespace tamis::model {
namespace {

constexpr std::size_t kMaxQuotedBytes = 80;

// Sees every key and bracket while the text is parsed. The parser itself keeps the last of two equal keys.
class StructureCheck {
 public:
  explicit StructureCheck(const std::string& name) : name_(name) {}

  bool operator()(int, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys_.emplace_back();
        TAMIS_CHECK(keys_.size() <= kMaxJsonDepth, Status::kDataError, name_, ": JSON nested deeper than ",
                    kMaxJsonDepth, " levels");
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end: keys_.pop_back(); break;
      case Json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        TAMIS_CHECK(keys_.back().insert(key).second, Status::kDataError, name_, ": the key ", quote(key),
                    " is given twice");
        break;
      }
      case Json::parse_event_t::value: break;
    }
    return true;
  }

 private:
  const std::string& name_;
  std::vector<std::unordered_set<std::string>> keys_;  ///< One set per open bracket.
};

}  // namespace

Json parse_json(std::string_view text, const std::string& name) {
  // The parser takes a NUL byte for the end of the text.
  const std::size_t nul = text.find('\0');
  TAMIS_CHECK(nul == std::string_view::npos, Status::kDataError, name, ": not valid JSON: a NUL byte at byte ", nul);
  StructureCheck check(name);
  try {
    return Json::parse(text.begin(), text.end(), [&check](int depth, Json::parse_event_t event, Json& value) {
      return check(depth, event, value);
    });
  } catch (const Json::exception& e) {
    // The library's text begins with its own tag in brackets and may quote much of the file.
    std::string reason = e.what();
    if (const auto tag = reason.find("] "); tag != std::string::npos) reason.erase(0, tag + 2);
    if (reason.size() > 200) reason = reason.substr(0, 200) + "...";
    for (char& c : reason) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    core::fail(Status::kDataError, name, ": not valid JSON: ", reason);
  }
}

bool file_exists(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  // A file that is not there is an answer and no error; the code is set for both.
  TAMIS_CHECK(std::filesystem::status_known(status), Status::kDataError, path.string(), ": ", error.message());
  return std::filesystem::exists(status);
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  TAMIS_CHECK(file_exists(path), Status::kDataError, path.string(), ": no such file");
  std::error_code error;
  TAMIS_CHECK(std::filesystem::is_regular_file(path, error), Status::kDataError, path.string(), ": not a regular file");
  const auto size = std::filesystem::file_size(path, error);
  TAMIS_CHECK(!error, Status::kDataError, path.string(), ": ", error.message());
  TAMIS_CHECK(size <= max_bytes, Status::kDataError, path.string(), ": expected at most ", max_bytes, " bytes, got ",
              size);
  std::ifstream stream(path, std::ios::binary);
  TAMIS_CHECK(stream.is_open(), Status::kDataError, path.string(),
              ": cannot be opened: ", std::generic_category().message(errno));
  std::string text(static_cast<std::size_t>(size), '\0');
  stream.read(text.data(), static_cast<std::streamsize>(size));
  TAMIS_CHECK(stream.gcount() == static_cast<std::streamsize>(size), Status::kDataError, path.string(),
              ": read ended after ", stream.gcount(), " of ", size, " bytes");
  return text;
}

std::string quote(std::string_view text) {
  const bool cut = text.size() > kMaxQuotedBytes;
  // "replace" turns a character that the cut went through into U+FFFD.
  std::string out = Json(std::string(text.substr(0, kMaxQuotedBytes)))
                        .dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  if (cut) out += "...";
  return out;
}

std::string json_text(const Json& value) {
  if (value.is_object()) return core::concat("an object of ", value.size(), " keys");
  if (value.is_array()) return core::concat("an array of ", value.size(), " elements");
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  return value.dump();
}

}  // namespace tamis::model
