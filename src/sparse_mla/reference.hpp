#pragma once

// The definition of sparse_mla() (S-2.5, S-6.1) in double, written from the formulas, one loop after another. It reads
// cache bytes by its own description of the layouts (S-5.2 to S-5.4), so a mistake in the shared decoder shows. Tests,
// benchmarks and `tamis verify` use it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/float_formats.hpp"
#include "tamis/sparse_mla.hpp"

namespace tamis::reference {

struct SparseMlaResult {
  std::vector<double> out;         // [rows, heads, 512]
  std::vector<double> lse;         // [rows, heads]
  std::vector<double> max_logits;  // [rows, heads]
  // How sensitive a result is, for tolerances: sum_k weight_k |V_k| of every output, max_k scale * sum_i |q_i key_ki|
  // of every head, and the valid keys of every row.
  std::vector<double> out_magnitude;
  std::vector<double> logit_magnitude;
  std::vector<std::int64_t> num_keys;
};

/// Entry `slot` of a cache, decoded. The slot must be in the cache.
inline std::vector<double> sparse_mla_key(const ConstPagedCache& cache, std::int64_t slot) {
  const auto* page = static_cast<const std::uint8_t*>(cache.data) + (slot / cache.page_size) * cache.page_stride_bytes;
  const std::int64_t entry = slot % cache.page_size;
  std::vector<double> key(static_cast<std::size_t>(cache.head_dim));
  const auto bf16_at = [](const std::uint8_t* at) {
    std::uint16_t bits;
    std::memcpy(&bits, at, 2);
    return static_cast<double>(core::bf16_to_float(bits));
  };
  const auto fp32_at = [](const std::uint8_t* at) {
    float value;
    std::memcpy(&value, at, 4);
    return static_cast<double>(value);
  };
  for (std::int64_t c = 0; c < cache.head_dim; ++c) {
    double& value = key[static_cast<std::size_t>(c)];
    switch (cache.layout) {
      case CacheLayout::kFloat32: value = fp32_at(page + (entry * cache.head_dim + c) * 4); break;
      case CacheLayout::kBFloat16: value = bf16_at(page + (entry * cache.head_dim + c) * 2); break;
      case CacheLayout::kFp8Mla584: {
        const std::uint8_t* data = page + entry * 576;
        const std::uint8_t* scales = page + cache.page_size * 576 + entry * 8;
        value = c < 448 ? std::ldexp(static_cast<double>(core::e4m3_to_float(data[c])), scales[c / 64] - 127)
                        : bf16_at(data + 448 + 2 * (c - 448));
        break;
      }
      case CacheLayout::kFp8Mla656: {
        const std::uint8_t* data = page + entry * 656;
        // One fp32 product, as the format's decoded value is an fp32 number.
        value = c < 512 ? static_cast<double>(core::e4m3_to_float(data[c]) *
                                              static_cast<float>(fp32_at(data + 512 + 4 * (c / 128))))
                        : bf16_at(data + 528 + 2 * (c - 512));
        break;
      }
      default: value = std::numeric_limits<double>::quiet_NaN();
    }
  }
  return key;
}

/// Valid slots of one row of one source, in list order.
inline std::vector<std::int64_t> sparse_mla_slots(const SparseMlaSource& source, std::int64_t row) {
  std::vector<std::int64_t> slots;
  if (!source.cache.present()) return slots;
  const std::int64_t topk = source.topk_indices.size(1);
  std::int64_t len = topk;
  if (source.topk_lens.present()) {
    const auto* lens = static_cast<const std::int32_t*>(source.topk_lens.data());
    len = std::clamp<std::int64_t>(lens[row * source.topk_lens.stride(0)], 0, topk);
  }
  const auto* list = static_cast<const std::int32_t*>(source.topk_indices.data());
  for (std::int64_t lane = 0; lane < len; ++lane) {
    const std::int64_t slot = list[row * source.topk_indices.stride(0) + lane];
    if (slot >= 0 && slot < source.cache.num_slots()) slots.push_back(slot);
  }
  return slots;
}

inline SparseMlaResult sparse_mla(const SparseMlaArgs& args) {
  const std::int64_t rows = args.q.size(0), heads = args.q.size(1), d_qk = args.q.size(2), d_v = 512;
  const double scale = args.softmax_scale != 0 ? args.softmax_scale : 1.0 / std::sqrt(static_cast<double>(d_qk));
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  SparseMlaResult result;
  const auto num_pairs = static_cast<std::size_t>(rows * heads);
  result.out.assign(num_pairs * static_cast<std::size_t>(d_v), 0.0);
  result.out_magnitude = result.out;
  result.lse.assign(num_pairs, minus_infinity);
  result.max_logits = result.lse;
  result.logit_magnitude.assign(num_pairs, 0.0);

  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<std::vector<double>> keys;
    for (const SparseMlaSource* source : {&args.main, &args.extra}) {
      for (const std::int64_t slot : sparse_mla_slots(*source, row))
        keys.push_back(sparse_mla_key(source->cache, slot));
    }
    result.num_keys.push_back(static_cast<std::int64_t>(keys.size()));
    if (keys.empty()) continue;  // out 0, lse -inf, with or without a sink
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto pair = static_cast<std::size_t>(row * heads + head);
      const std::int64_t q_at = row * args.q.stride(0) + head * args.q.stride(1);
      // l_k = scale * (q . key_k)
      std::vector<double> logits;
      for (const std::vector<double>& key : keys) {
        double dot = 0, magnitude = 0;
        for (std::int64_t i = 0; i < d_qk; ++i) {
          const double q = args.q.dtype() == DType::kBFloat16
                               ? core::bf16_to_float(static_cast<const std::uint16_t*>(args.q.data())[q_at + i])
                               : static_cast<const float*>(args.q.data())[q_at + i];
          dot += q * key[static_cast<std::size_t>(i)];
          magnitude += std::abs(q * key[static_cast<std::size_t>(i)]);
        }
        logits.push_back(scale * dot);
        result.logit_magnitude[pair] = std::max(result.logit_magnitude[pair], std::abs(scale) * magnitude);
      }
      const double max = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - max);
      const double lse = max + std::log(sum);
      result.max_logits[pair] = max;
      result.lse[pair] = lse;
      // The sink adds exp(sink) to the denominator and has no value.
      double sink_factor = 1;
      if (args.attn_sink.present()) {
        const double sink = static_cast<const float*>(args.attn_sink.data())[head];
        sink_factor = 1 / (1 + std::exp(sink - lse));
      }
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const double weight = std::exp(logits[k] - lse) * sink_factor;
        for (std::int64_t c = 0; c < d_v; ++c) {
          const auto at = pair * static_cast<std::size_t>(d_v) + static_cast<std::size_t>(c);
          result.out[at] += weight * keys[k][static_cast<std::size_t>(c)];
          result.out_magnitude[at] += weight * std::abs(keys[k][static_cast<std::size_t>(c)]);
        }
      }
    }
  }
  return result;
}

}  // namespace tamis::reference
