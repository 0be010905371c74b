#pragma once

// What commands print. A failed write to stdout is an error, since a result that nobody got is no success; a failed
// write to stderr is not: there is nowhere left to say so.

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace tamis::cli {

/// Gives descriptors 0 to 2 that the caller closed something that refuses to be written to. Without it the next file
/// that is opened would become stdout or stderr, and text would land in it.
void reserve_standard_streams();

/// @throws Error kResourceExhausted if stdout cannot be written.
void write_out(std::string_view text);
/// Also passes on what was written before, and what CLI11 or the C++ streams wrote.
/// @throws Error kResourceExhausted if stdout cannot be written.
void flush_out();
void write_err(std::string_view text) noexcept;

/// Control characters escaped, so that an error stays one line whatever a file or argument holds.
std::string one_line(std::string_view text);

template <typename... Args>
void print_out(fmt::format_string<Args...> text, Args&&... args) {
  write_out(fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void print_err(fmt::format_string<Args...> text, Args&&... args) {
  write_err(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace tamis::cli
