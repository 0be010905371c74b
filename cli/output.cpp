#include "output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/check.hpp"

namespace tamis::cli {
namespace {

void check_written(bool written) {
  const int error = errno;
  TAMIS_CHECK(written, Status::kResourceExhausted,
              "stdout: cannot be written: ", std::generic_category().message(error));
}

}  // namespace

void reserve_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    // open() takes the lowest free number, which is this one; read only, so that writing still fails.
    if (fcntl(descriptor, F_GETFD) == -1) (void)!open("/dev/null", O_RDONLY);
  }
}

void write_out(std::string_view text) {
  check_written(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void flush_out() {
  errno = EIO;  // what a failure of an earlier write is called; fflush names its own
  check_written(std::fflush(stdout) == 0 && std::ferror(stdout) == 0);
}

void write_err(std::string_view text) noexcept {
  (void)!std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n') line += "\\n";
    else if (code < 0x20 || code == 0x7F) line += fmt::format("\\x{:02x}", code);
    else line += c;
  }
  return line;
}

}  // namespace tamis::cli
