#pragma once

#include <cstdint>

namespace tamis::core {

// Division of numbers that are not negative, by one that is positive. Almost all of them have 32 bits, for which it
// takes a quarter of the instructions on a GPU and of the time on many processors.

constexpr std::int64_t quotient(std::int64_t n, std::int64_t d) {
  if (((n | d) >> 32) == 0) return static_cast<std::uint32_t>(n) / static_cast<std::uint32_t>(d);
  return n / d;
}
constexpr std::int64_t remainder(std::int64_t n, std::int64_t d) {
  if (((n | d) >> 32) == 0) return static_cast<std::uint32_t>(n) % static_cast<std::uint32_t>(d);
  return n % d;
}

}  // namespace tamis::core
