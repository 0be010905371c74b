// Any bytes as a tokenizer.json; what loads then encodes a text, and the ids decode to valid UTF-8.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "model/tokenizer.hpp"
#include "model/utf8.hpp"
#include "tamis/status.hpp"

namespace {

// Short, because a hostile pattern may take its full allowance of steps at every position.
constexpr std::string_view kText = "a b 12's\n你é<s> !";

void check(const tamis::Error& e) {
  const bool expected = e.status() == tamis::Status::kDataError || e.status() == tamis::Status::kUnsupported;
  if (!expected || std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tamis::model;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Tokenizer t = Tokenizer::parse(text, "tokenizer.json");
    const auto ids = t.encode(kText);
    if (find_invalid_utf8(t.decode(ids, false)) != std::string_view::npos) std::abort();
  } catch (const tamis::Error& e) {
    check(e);
  }
  return 0;
}
