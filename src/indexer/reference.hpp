#pragma once

// The definition of the indexer, written from S-4 and S-5.5, slow and obvious. Tests, fuzzers and `tamis verify` use
// it; nothing here shares code with the backends but the scalar number formats.
//
// index_query() is defined by its fp32 steps, so its reference gives the exact bytes. Scores are defined by real
// numbers: the reference sums in double over the decoded inputs, and tells how large the terms were, from which a bound
// on any fp32 evaluation follows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/float_formats.hpp"
#include "tamis/indexer.hpp"

namespace tamis::indexer {

template <typename T>
T reference_load(const void* base, std::int64_t byte) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + byte, sizeof(T));
  return value;
}

inline float reference_number(const ConstTensorView& view, std::int64_t element) {
  if (view.dtype() == DType::kBFloat16)
    return core::bf16_to_float(reference_load<std::uint16_t>(view.data(), 2 * element));
  return reference_load<float>(view.data(), 4 * element);
}

struct ReferenceQuery {
  std::vector<std::uint8_t> index_q;        // [tokens, heads, 512, 256, 128 or 64 bytes]
  std::vector<std::uint8_t> index_q_scale;  // kMxfp4: [tokens, heads, 4]
  std::vector<float> index_weights;         // [tokens, heads]
};

// 2^e in any range that occurs; exact.
inline float reference_power(int e) { return static_cast<float>(std::ldexp(1.0, e)); }

// Smallest e with limit * 2^e >= a, by search.
inline int reference_exponent(float a, float limit) {
  int e = -160;
  while (std::ldexp(static_cast<double>(limit), e) < static_cast<double>(a)) ++e;
  return e;
}

/// S-4.2: the 128 values of one head before quantisation.
inline std::vector<float> reference_rotated_head(const IndexQueryArgs& args, std::int64_t token, std::int64_t head) {
  std::vector<float> x(128);
  for (std::int64_t c = 0; c < 128; ++c) {
    x[static_cast<std::size_t>(c)] = reference_number(args.q, token * args.q.stride(0) + head * args.q.stride(1) + c);
  }
  std::int64_t position = reference_load<std::int64_t>(args.positions.data(), 8 * token);
  if (position < 0 || position >= args.cos_sin.size(0)) position = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const std::int64_t at = position * args.cos_sin.stride(0) + static_cast<std::int64_t>(i);
    const float c = reference_number(args.cos_sin, at);
    const float s = reference_number(args.cos_sin, at + 32);
    const float e = x[64 + 2 * i];
    const float o = x[65 + 2 * i];
    x[64 + 2 * i] = std::fma(e, c, -(o * s));
    x[65 + 2 * i] = std::fma(o, c, e * s);
  }
  if (args.format != IndexFormat::kFloat32) {
    for (float& value : x) value = core::round_to_bf16(value);
  }
  if (args.hadamard) {
    for (std::size_t stride = 64; stride >= 1; stride /= 2) {
      for (std::size_t i = 0; i < 128; ++i) {
        if ((i & stride) != 0) continue;
        const float a = x[i];
        const float b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
    for (float& value : x) value *= 0.08838834764831845F;
  }
  return x;
}

/// S-4.3, S-4.4.
inline ReferenceQuery reference_index_query(const IndexQueryArgs& args) {
  ReferenceQuery out;
  const std::int64_t heads = args.q.size(1);
  const auto head_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads)));
  for (std::int64_t token = 0; token < args.q.size(0); ++token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::vector<float> x = reference_rotated_head(args, token, head);
      const auto amax = [&](std::size_t begin, std::size_t end, float floor) {
        float largest = floor;
        for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
        return largest;
      };
      float weight = reference_number(args.weights, token * args.weights.stride(0) + head * args.weights.stride(1));
      switch (args.format) {
        case IndexFormat::kFloat32:
          for (float value : x) {
            std::uint8_t bytes[4];
            std::memcpy(bytes, &value, 4);
            out.index_q.insert(out.index_q.end(), bytes, bytes + 4);
          }
          break;
        case IndexFormat::kBFloat16:
          for (float value : x) {
            const std::uint16_t bits = core::float_to_bf16(value);
            out.index_q.push_back(static_cast<std::uint8_t>(bits & 0xFFU));
            out.index_q.push_back(static_cast<std::uint8_t>(bits >> 8));
          }
          break;
        case IndexFormat::kFp8: {
          const int e = reference_exponent(amax(0, 128, 1e-4F), 448.0F);
          for (float value : x) out.index_q.push_back(core::float_to_e4m3(value * reference_power(-e)));
          weight *= reference_power(e);
          break;
        }
        case IndexFormat::kMxfp4:
          for (std::size_t b = 0; b < 4; ++b) {
            const int e = std::clamp(reference_exponent(amax(32 * b, 32 * b + 32, 6.0F * 0x1p-126F), 6.0F), -127, 127);
            out.index_q_scale.push_back(static_cast<std::uint8_t>(e + 127));
            for (std::size_t i = 32 * b; i < 32 * b + 32; i += 2) {
              const std::uint8_t low = core::float_to_e2m1(x[i] * reference_power(-e));
              const std::uint8_t high = core::float_to_e2m1(x[i + 1] * reference_power(-e));
              out.index_q.push_back(static_cast<std::uint8_t>(low | (high << 4)));
            }
          }
          break;
      }
      out.index_weights.push_back(weight * 0.08838834764831845F * head_factor);
    }
  }
  return out;
}

struct ReferenceScore {
  double score = 0;
  // The same sum over magnitudes: |scale| * sum_h |w| * sum_c |q * k|. An fp32 evaluation in any order with n roundings
  // on the way of each term is within n * 2^-24 of it, to first order.
  double magnitude = 0;
};

// Value of a UE8M0 byte; 255 means infinity (ops/quantize.hpp).
inline double reference_ue8m0(int byte) { return byte == 255 ? HUGE_VAL : std::ldexp(1.0, byte - 127); }

/// One key as numbers, without its kIndexerFp8 scale, which is in `scale`.
struct ReferenceKey {
  std::vector<double> values;
  double scale = 1;
};

inline ReferenceKey reference_key(const ConstPagedCache& cache, std::int64_t slot) {
  ReferenceKey key;
  const std::int64_t page = slot / cache.page_size * cache.page_stride_bytes;
  const std::int64_t entry = slot % cache.page_size;
  for (std::int64_t c = 0; c < 128; ++c) {
    switch (cache.layout) {
      case CacheLayout::kFloat32:
        key.values.push_back(reference_load<float>(cache.data, page + 4 * (128 * entry + c)));
        break;
      case CacheLayout::kBFloat16:
        key.values.push_back(
            core::bf16_to_float(reference_load<std::uint16_t>(cache.data, page + 2 * (128 * entry + c))));
        break;
      case CacheLayout::kIndexerFp8:
        key.values.push_back(core::e4m3_to_float(reference_load<std::uint8_t>(cache.data, page + 128 * entry + c)));
        break;
      default: {  // kIndexerMxfp4
        const auto pair = reference_load<std::uint8_t>(cache.data, page + 64 * entry + c / 2);
        const auto code = static_cast<std::uint8_t>(c % 2 == 0 ? pair & 0xFU : pair >> 4);
        const auto scale = reference_load<std::uint8_t>(cache.data, page + cache.page_size * 64 + 4 * entry + c / 32);
        key.values.push_back(static_cast<double>(core::e2m1_to_float(code)) * reference_ue8m0(scale));
      }
    }
  }
  if (cache.layout == CacheLayout::kIndexerFp8)
    key.scale = reference_load<float>(cache.data, page + cache.page_size * 128 + 4 * entry);
  return key;
}

/// Query of one row and head as numbers.
inline std::vector<double> reference_query_head(const IndexScoreArgs& args, std::int64_t row, std::int64_t head) {
  std::vector<double> q;
  const std::int64_t at = row * args.index_q.stride(0) + head * args.index_q.stride(1);
  for (std::int64_t c = 0; c < 128; ++c) {
    switch (args.format) {
      case IndexFormat::kFloat32:
      case IndexFormat::kBFloat16: q.push_back(reference_number(args.index_q, at + c)); break;
      case IndexFormat::kFp8:
        q.push_back(core::e4m3_to_float(reference_load<std::uint8_t>(args.index_q.data(), at + c)));
        break;
      case IndexFormat::kMxfp4: {
        const auto pair = reference_load<std::uint8_t>(args.index_q.data(), at + c / 2);
        const auto code = static_cast<std::uint8_t>(c % 2 == 0 ? pair & 0xFU : pair >> 4);
        const auto scale =
            reference_load<std::uint8_t>(args.index_q_scale.data(), row * args.index_q_scale.stride(0) +
                                                                        head * args.index_q_scale.stride(1) + c / 32);
        q.push_back(static_cast<double>(core::e2m1_to_float(code)) * reference_ue8m0(scale));
      }
    }
  }
  return q;
}

/// Window of a row as the contract clamps it.
inline std::pair<std::int64_t, std::int64_t> reference_window(const IndexScoreArgs& args, std::int64_t row) {
  std::int64_t start = 0;
  if (args.row_starts.present())
    start =
        std::clamp<std::int64_t>(reference_load<std::int32_t>(args.row_starts.data(), 4 * row), 0, args.max_columns);
  const std::int64_t end =
      std::clamp<std::int64_t>(reference_load<std::int32_t>(args.row_ends.data(), 4 * row), start, args.max_columns);
  return {start, end};
}

/// Slot that holds the key of a row's column; -1 where there is none.
inline std::int64_t reference_slot(const IndexScoreArgs& args, std::int64_t row, std::int64_t column) {
  const ConstPagedCache& cache = args.index_k;
  if (!args.page_table.present()) return column < cache.num_pages * cache.page_size ? column : -1;
  std::int64_t table = row;
  if (args.row_to_table.present()) table = reference_load<std::int32_t>(args.row_to_table.data(), 4 * row);
  const std::int64_t index = column / cache.page_size;
  if (table < 0 || table >= args.page_table.size(0) || index >= args.page_table.size(1)) return -1;
  const std::int64_t page =
      reference_load<std::int32_t>(args.page_table.data(), 4 * (table * args.page_table.stride(0) + index));
  return page >= 0 && page < cache.num_pages ? page * cache.page_size + column % cache.page_size : -1;
}

/// S-4.3: scores of a row's window, element 0 being column reference_window(args, row).first.
inline std::vector<ReferenceScore> reference_index_scores(const IndexScoreArgs& args, std::int64_t row) {
  std::vector<std::vector<double>> queries;
  std::vector<double> weights;
  for (std::int64_t h = 0; h < args.index_q.size(1); ++h) {
    queries.push_back(reference_query_head(args, row, h));
    weights.push_back(reference_number(args.index_weights, row * args.index_weights.stride(0) + h));
  }
  std::vector<ReferenceScore> scores;
  const auto [start, end] = reference_window(args, row);
  for (std::int64_t column = start; column < end; ++column) {
    const std::int64_t slot = reference_slot(args, row, column);
    if (slot < 0) {
      scores.push_back({-std::numeric_limits<double>::infinity(), 0});
      continue;
    }
    const ReferenceKey key = reference_key(args.index_k, slot);
    ReferenceScore sum;
    for (std::size_t h = 0; h < queries.size(); ++h) {
      double dot = 0;
      double magnitude = 0;
      for (std::size_t c = 0; c < 128; ++c) {
        dot += queries[h][c] * key.values[c];
        magnitude += std::abs(queries[h][c] * key.values[c]);
      }
      sum.score += weights[h] * (dot < 0 ? 0 : dot);  // NaN stays NaN
      sum.magnitude += std::abs(weights[h]) * magnitude;
    }
    scores.push_back({sum.score * key.scale, sum.magnitude * std::abs(key.scale)});
  }
  return scores;
}

}  // namespace tamis::indexer
