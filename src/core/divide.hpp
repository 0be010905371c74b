#pragma once

#include <bit>
#include <cstdint>

namespace tamis::core {

// Division of numbers that are not negative, by one that is positive. Almost all divisors of this library (ratios,
// pages, blocks) are powers of two and almost all numbers have 32 bits, for which it takes a fraction of the
// instructions on a GPU and of the time on many processors.

namespace divide_detail {

constexpr bool is_power_of_two(std::int64_t d) { return (d & (d - 1)) == 0; }

constexpr int log2(std::int64_t power_of_two) {
#ifdef __CUDA_ARCH__
  return __ffsll(power_of_two) - 1;
#else
  return std::countr_zero(static_cast<std::uint64_t>(power_of_two));
#endif
}

constexpr std::int64_t any_quotient(std::int64_t n, std::int64_t d) {
  if (((n | d) >> 32) == 0) return static_cast<std::uint32_t>(n) / static_cast<std::uint32_t>(d);
  return n / d;
}

}  // namespace divide_detail

constexpr std::int64_t quotient(std::int64_t n, std::int64_t d) {
  if (divide_detail::is_power_of_two(d)) return n >> divide_detail::log2(d);
  return divide_detail::any_quotient(n, d);
}
constexpr std::int64_t remainder(std::int64_t n, std::int64_t d) {
  if (divide_detail::is_power_of_two(d)) return n & (d - 1);
  return n - divide_detail::any_quotient(n, d) * d;
}

}  // namespace tamis::core
