#pragma once

// Saves the rows of the step: row = value, then gate + bias, rounded to the state's dtype.
// Work split: a warp a token, 16 bytes (of fp32) a lane; tokens are dealt to warps in turn.
// Bound by:   reading inputs and writing state once.
// Sync:       none. Rows of a ring that entries pool are left to those entries (ring.cuh).

#include <cstdint>

#include "compressor/cuda/arithmetic.cuh"
#include "compressor/cuda/ring.cuh"

namespace tamis::compressor_cuda {

/// Saves channels [begin, end) of a token's row to `row`.
template <typename TInput, typename TState>
__device__ void save_channels(const CompressorParams& p, std::int64_t token, std::int64_t position, std::byte* row,
                              std::int64_t begin, std::int64_t end, std::int64_t rank, std::int64_t ranks) {
  const auto* value = reinterpret_cast<const TInput*>(p.kv) + token * p.kv_stride;
  const auto* gate = reinterpret_cast<const TInput*>(p.gate) + token * p.gate_stride;
  const float* bias = p.ape + (position % p.ratio) * p.ape_stride;
  auto* out = reinterpret_cast<TState*>(row);
  for (std::int64_t c = begin + rank; c < end; c += ranks) {
    store(to_float(value[c]), out + c);
    store(__fadd_rn(to_float(gate[c]), bias[c]), out + p.width() + c);
  }
}

/// The same for channels whose rows are aligned to quads; begin and end are multiples of 4.
template <typename TInput, typename TState>
__device__ void save_quads(const CompressorParams& p, std::int64_t token, std::int64_t position, std::byte* row,
                           std::int64_t begin, std::int64_t end, int lane) {
  constexpr int kUnroll = 4;  // C128 main: a whole row of 512 values is on its way at once
  const auto* value = reinterpret_cast<const TInput*>(p.kv) + token * p.kv_stride;
  const auto* gate = reinterpret_cast<const TInput*>(p.gate) + token * p.gate_stride;
  const float* bias = p.ape + (position % p.ratio) * p.ape_stride;
  auto* out = reinterpret_cast<TState*>(row);
  for (std::int64_t base = begin + 4 * lane; base < end; base += kUnroll * 128) {
    RawQuad<TInput> values[kUnroll], gates[kUnroll];
    RawQuad<float> biases[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t c = base + u * 128;
      if (c >= end) break;
      values[u] = load_quad(value + c);
      gates[u] = load_quad(gate + c);
      biases[u] = load_quad(bias + c);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t c = base + u * 128;
      if (c >= end) break;
      Quad sum = gates[u].value();
      const Quad add = biases[u].value();
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.at[i] = __fadd_rn(sum.at[i], add.at[i]);
      store_quad(values[u].value(), out + c);
      store_quad(sum, out + p.width() + c);
    }
  }
}

/// The part of the blocks that save: block `index` of `blocks`.
template <typename TInput, typename TState, bool kAligned>
__device__ void save_rows(const StepParams& step, std::int64_t index, std::int64_t blocks) {
  const CompressorParams& p = step.p;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warps = blockDim.x / 32;
  for (std::int64_t token = index * warps + threadIdx.x / 32; token < p.tokens; token += blocks * warps) {
    const TokenPlace place = place_token(p, token);
    if (!place.valid) continue;
    std::byte* row = find_save_row(p, place, token);
    if (row == nullptr) continue;
    for (int half = 0; half < p.coff; ++half) {
      if (step.pool && is_saved_by_entry(p, place, half)) continue;
      const std::int64_t begin = half * p.head_dim, end = begin + p.head_dim;
      if constexpr (kAligned) save_quads<TInput, TState>(p, token, place.position, row, begin, end, lane);
      else save_channels<TInput, TState>(p, token, place.position, row, begin, end, lane, 32);
    }
  }
}

/// By the team that pooled it: saves channels [begin, begin + channels) of the half that row k of an entry counts,
/// where a token of the step replaces it. `k` from rank / channels on, ranks / channels apart: a thread saves where it
/// read.
template <typename TInput, typename TState>
__device__ void replace_pooled_row(const CompressorParams& p, std::int64_t token, const PoolRow& row, std::int64_t half,
                                   std::int64_t c) {
  const std::int64_t column = half + c;
  const float value = to_float(reinterpret_cast<const TInput*>(p.kv)[token * p.kv_stride + column]);
  const float gate = to_float(reinterpret_cast<const TInput*>(p.gate)[token * p.gate_stride + column]);
  const float bias = p.ape[p.positions[token] % p.ratio * p.ape_stride + column];
  store(value, reinterpret_cast<TState*>(const_cast<std::byte*>(row.value)) + c);
  store(__fadd_rn(gate, bias), reinterpret_cast<TState*>(const_cast<std::byte*>(row.gate)) + c);
}

}  // namespace tamis::compressor_cuda
