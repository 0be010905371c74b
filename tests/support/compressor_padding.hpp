#pragma once

// Steps with padding inside the ranges of their requests, as engines leave it that round a chunk up to a fixed size.

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "support/compressor_cases.hpp"

namespace tamis::test {

/// Ways in which a token says that it is padding while it stands in the range of a request.
enum class PaddingKind : std::uint8_t {
  kMinusOne,
  kLowestPosition,
  kNoRequest,
  kRequestPastTheLast,
  kLowestRequest,
  kAnotherRequest,  // which exists, but whose range is elsewhere
};
inline constexpr PaddingKind kPaddingKinds[] = {PaddingKind::kMinusOne,      PaddingKind::kLowestPosition,
                                                PaddingKind::kNoRequest,     PaddingKind::kRequestPastTheLast,
                                                PaddingKind::kLowestRequest, PaddingKind::kAnotherRequest};

/// The step with padding added: `count(k, n)` tokens in front of token k of a chunk of n, and for k = n behind its last
/// one. The chunk's range covers them. Their inputs are NaN; what they carry beside the mark of `kind` is as misleading
/// as can be: position, request and slots of a token next to them.
template <typename Count>
CompressorStep with_padding(const CompressorStep& step, const CompressorShape& shape, PaddingKind kind,
                            const Count& count) {
  std::vector<std::int64_t> sources;  // real token, or -1 - (a token next to the padding)
  CompressorStep padded;
  padded.plan = step.plan;
  padded.num_threads = step.num_threads;
  padded.query_start_loc.push_back(0);
  const auto requests = static_cast<std::int32_t>(step.query_start_loc.size()) - 1;
  for (std::size_t r = 0; r + 1 < step.query_start_loc.size(); ++r) {
    const std::int64_t begin = step.query_start_loc[r];
    const std::int64_t n = step.query_start_loc[r + 1] - begin;
    for (std::int64_t k = 0; n > 0 && k <= n; ++k) {
      const std::int64_t neighbour = begin + (k < n ? k : n - 1);
      sources.insert(sources.end(), static_cast<std::size_t>(count(k, n)), -1 - neighbour);
      if (k < n) sources.push_back(neighbour);
    }
    padded.query_start_loc.push_back(static_cast<std::int32_t>(sources.size()));
  }
  const auto tokens = static_cast<std::int64_t>(sources.size());
  padded.kv = TypedRows(tokens, shape.width(), step.kv.stride(), shape.input);
  padded.gate = TypedRows(tokens, shape.width(), step.gate.stride(), shape.input);
  const auto row_bytes = static_cast<std::size_t>(shape.width() * dtype_bytes(shape.input));
  const auto copy_row = [&](TypedRows& to, std::size_t i, const TypedRows& from, std::size_t source) {
    const auto stride = static_cast<std::size_t>(from.stride() * dtype_bytes(shape.input));
    std::memcpy(to.data() + i * stride, from.data() + source * stride, row_bytes);
  };
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const bool real = sources[i] >= 0;
    const auto source = static_cast<std::size_t>(real ? sources[i] : -1 - sources[i]);
    std::int64_t position = step.positions[source];
    std::int32_t request = step.token_to_request[source];
    if (real) {
      copy_row(padded.kv, i, step.kv, source);
      copy_row(padded.gate, i, step.gate, source);
    } else {
      switch (kind) {
        case PaddingKind::kMinusOne: position = -1; break;
        case PaddingKind::kLowestPosition: position = std::numeric_limits<std::int64_t>::min(); break;
        case PaddingKind::kNoRequest: request = -1; break;
        case PaddingKind::kRequestPastTheLast: request = requests; break;
        case PaddingKind::kLowestRequest: request = std::numeric_limits<std::int32_t>::min(); break;
        case PaddingKind::kAnotherRequest: request = requests > 1 ? (request + 1) % requests : -1; break;
      }
    }
    padded.positions.push_back(position);
    padded.token_to_request.push_back(request);
    padded.state_slots.push_back(step.state_slots[source]);
    padded.kv_slots.push_back(step.kv_slots[source]);
  }
  return padded;
}

}  // namespace tamis::test
