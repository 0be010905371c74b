// Any bytes as a safetensors file. What the reader accepts is then opened as a checkpoint and every tensor is read.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "model/checkpoint.hpp"
#include "model/safetensors.hpp"
#include "tamis/status.hpp"

namespace {

void check(const tamis::Error& e) {
  const bool one_line = std::string_view(e.what()).find('\n') == std::string_view::npos;
  if (e.status() != tamis::Status::kDataError || !one_line) std::abort();
}

// In memory where the machine has such a folder; one for the whole run.
const std::filesystem::path& folder() {
  static const auto* const kPath = [] {  // Never destroyed: the exit handler uses it.
    std::string name = std::filesystem::exists("/dev/shm") ? "/dev/shm/tamis_fuzz_XXXXXX" : "/tmp/tamis_fuzz_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all(folder(), ignored);
    });
    return new std::filesystem::path(name);
  }();
  return *kPath;
}

void read_all(const tamis::model::Checkpoint& checkpoint) {
  for (const std::string& name : checkpoint.names()) {
    try {
      const auto info = checkpoint.info(name);
      checkpoint.raw(name);
      checkpoint.read_fp32(name, info.shape);
    } catch (const tamis::Error& e) {
      check(e);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto image = std::as_bytes(std::span(data, size));
  try {
    tamis::model::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "index");
  } catch (const tamis::Error& e) {
    check(e);
  }
  try {
    std::size_t bytes = 0;
    for (const auto& [name, tensor] : tamis::model::parse_safetensors(image, "file")) bytes += tensor.bytes.size();
    if (bytes > size) std::abort();  // Tensors overlap or reach past the file.
    tamis::model::write_file(folder() / "model.safetensors", image);
    read_all(tamis::model::Checkpoint::open(folder()));
  } catch (const tamis::Error& e) {
    check(e);
  }
  return 0;
}
