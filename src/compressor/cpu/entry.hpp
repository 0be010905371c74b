#pragma once

// What happens to a pooled entry before it is in the cache (S-3.3): norm, rotation, Hadamard, quantisation.

#include <cstdint>

#include "compressor/params.hpp"
#include "ops/quantize.hpp"
#include "ops/rows.hpp"

namespace tamis::compressor {

/// @param position  The entry's own: the first of its group, jR, inside the cos/sin table.
/// @param slot      A slot that the cache has.
/// @param entry     [d], the pooled values; overwritten on the way.
inline void finish_entry(const CompressorParams& p, std::int64_t position, std::int64_t slot, float* entry) {
  ops::rmsnorm_row(entry, p.norm_weight, p.head_dim, p.rms_norm_eps, entry);
  ops::rope_row(entry + p.head_dim - ops::kRopeDims, p.cos_sin + position * p.cos_sin_stride);
  if (p.hadamard) {
    // The one rounding to bf16 lies before the rotation; what comes out of it is quantised from fp32 (S-4.2). fp32
    // entries are for parity with fp32 references, which round nowhere.
    if (p.cache.layout != CacheLayout::kFloat32) ops::round_row_to_bf16(entry, p.head_dim);
    ops::hadamard_row(entry, p.head_dim);
  }
  ops::store_entry(entry, p.cache, slot, !p.hadamard);
}

}  // namespace tamis::compressor
