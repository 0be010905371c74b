#include "topk/cpu/ordering.hpp"

#include <algorithm>

namespace tamis::topk_cpu {

// The bits of a score are not a function of its key (-0, NaN payloads), so they travel by index: the candidates are in
// ascending position, and a code's low half is the index of its candidate, which breaks ties the same way.
void order_by_value(Candidates& c) {
  auto* codes = reinterpret_cast<std::uint64_t*>(c.keys_a);
  const auto count = static_cast<std::uint32_t>(c.count);
  for (std::uint32_t i = 0; i < count; ++i) codes[i] = rank_code(key_of_bits(c.bits[i], c.inf_bits), i);
  std::sort(codes, codes + count);
  // Applies the permutation in place, cycle by cycle; a finished entry is marked by its own index.
  for (std::uint32_t start = 0; start < count; ++start) {
    if (position_of_code(codes[start]) == start) continue;
    const std::uint32_t bits = c.bits[start], position = c.positions[start];
    std::uint32_t to = start;
    for (;;) {
      const std::uint32_t from = position_of_code(codes[to]);
      codes[to] = to;
      if (from == start) break;
      c.bits[to] = c.bits[from];
      c.positions[to] = c.positions[from];
      to = from;
    }
    c.bits[to] = bits;
    c.positions[to] = position;
  }
}

}  // namespace tamis::topk_cpu
