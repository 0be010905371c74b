#include "bench/memory.hpp"

#include <cmath>
#include <cstring>

namespace tamis::bench {

AlignedBytes::AlignedBytes(std::size_t bytes)
    : bytes_(bytes), memory_(static_cast<std::byte*>(::operator new (bytes > 0 ? bytes : 1, std::align_val_t{64}))) {
  std::memset(memory_.get(), 0xFF, bytes);
}

std::uint64_t seed_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3ULL;
  return hash;
}

std::uint64_t RandomBits::bits() {
  std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

std::int64_t RandomBits::below(std::int64_t bound) {
  return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(bound));
}

float RandomBits::uniform(float lo, float hi) {
  return lo + static_cast<float>(static_cast<double>(bits() >> 11) * 0x1p-53) * (hi - lo);
}

float RandomBits::normal() {
  const double u = 1.0 - static_cast<double>(bits() >> 11) * 0x1p-53;  // in (0, 1]: its logarithm is finite
  const double angle = 6.283185307179586 * (static_cast<double>(bits() >> 11) * 0x1p-53);
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
}

}  // namespace tamis::bench
