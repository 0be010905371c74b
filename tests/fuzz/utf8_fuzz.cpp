// Any bytes as a prompt for a byte-level tokenizer: valid UTF-8 comes back as it was, anything else is an error; and
// any bytes as tokens: the stream of texts is what decoding all at once gives, and valid.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "model/tokenizer.hpp"
#include "model/utf8.hpp"
#include "tamis/status.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tamis::model;
  static const Tokenizer kBytes = Tokenizer::open(std::filesystem::path(TAMIS_SOURCE_DIR) / "models" / "tiny-v4");
  static const Tokenizer kMerges =
      Tokenizer::open(std::filesystem::path(TAMIS_SOURCE_DIR) / "tests" / "model" / "data");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool valid = find_invalid_utf8(text) == std::string_view::npos;
  for (const Tokenizer* t : {&kBytes, &kMerges}) {
    try {
      const auto ids = t->encode(text, false);
      if (!valid || t->decode(ids, false) != text) std::abort();
    } catch (const tamis::Error& e) {
      if (valid || e.status() != tamis::Status::kDataError) std::abort();
    }
  }
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < size; ++i) ids.push_back(data[i] + 4);
  StreamDecoder stream(kBytes);
  std::string joined;
  for (std::int32_t id : ids) joined += stream.push(id);
  joined += stream.finish();
  if (joined != kBytes.decode(ids) || find_invalid_utf8(joined) != std::string_view::npos) std::abort();
  return 0;
}
