#pragma once

// Saves the rows of the step: row = value, then gate + bias, rounded to the state's dtype.
// Work split: a warp a token, 16 bytes (of fp32) a lane; tokens are dealt to warps in turn.
// Bound by:   reading inputs and writing state once.
// Sync:       none. Rows of a ring that entries pool are left to those entries (ring.cuh).

#include <cstdint>

#include "compressor/cuda/arithmetic.cuh"
#include "compressor/cuda/ring.cuh"

namespace tamis::compressor_cuda {

/// Saves channels [begin, end) of a row by a warp, at any alignment.
template <typename TInput, typename TState>
__device__ void save_channels(const CompressorParams& p, const TInput* value, const TInput* gate, const float* bias,
                              std::byte* row, std::int64_t begin, std::int64_t end, int lane) {
  auto* out = reinterpret_cast<TState*>(row);
  for (std::int64_t c = begin + lane; c < end; c += 32) {
    store(to_float(value[c]), out + c);
    store(__fadd_rn(to_float(gate[c]), bias[c]), out + p.width() + c);
  }
}

/// Values and gates of a run of a row's channels: 4 a lane, kChunks times.
template <typename TInput>
struct SaveRun {
  static constexpr int kChunks = 4;  // C128 main: a whole row of 512 values is on its way at once
  static constexpr int kChannels = kChunks * 128;
  Raw<TInput, 4> values[kChunks], gates[kChunks];

  __device__ void load(const TInput* value, const TInput* gate, std::int64_t begin, std::int64_t end, int lane) {
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      const std::int64_t c = begin + u * 128 + 4 * lane;
      if (c >= end) break;
      values[u] = load_raw<4>(value + c);
      gates[u] = load_raw<4>(gate + c);
    }
  }
  template <typename TState>
  __device__ void store(const float* bias, TState* row, std::int64_t width, std::int64_t begin, std::int64_t end,
                        int lane) const {
    Raw<float, 4> biases[kChunks];
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      const std::int64_t c = begin + u * 128 + 4 * lane;
      if (c < end) biases[u] = load_raw<4>(bias + c);
    }
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      const std::int64_t c = begin + u * 128 + 4 * lane;
      if (c >= end) break;
      Numbers<4> sum = gates[u].value();
      const Numbers<4> add = biases[u].value();
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.at[i] = __fadd_rn(sum.at[i], add.at[i]);
      store_numbers(values[u].value(), row + c);
      store_numbers(sum, row + width + c);
    }
  }
};

/// The part of the blocks that save: block `index` of `blocks`.
template <typename TInput, typename TState, bool kAligned>
__device__ void save_rows(const StepParams& step, std::int64_t index, std::int64_t blocks) {
  const CompressorParams& p = step.p;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warps = blockDim.x / 32;
  for (std::int64_t token = index * warps + threadIdx.x / 32; token < p.tokens; token += blocks * warps) {
    // Values and gates are read before it is known whether and where they are saved.
    const auto* value = reinterpret_cast<const TInput*>(p.kv) + token * p.kv_stride;
    const auto* gate = reinterpret_cast<const TInput*>(p.gate) + token * p.gate_stride;
    SaveRun<TInput> run;
    if constexpr (kAligned) run.load(value, gate, 0, p.head_dim, lane);
    const std::int64_t slot = save_slot(p, token);
    const TokenPlace place = place_token(p, token);
    if (!place.valid) continue;
    std::byte* row = find_save_row(p, place, token, slot);
    if (row == nullptr) continue;
    const float* bias = p.ape + core::remainder(place.position, p.ratio) * p.ape_stride;
    for (int half = 0; half < p.coff; ++half) {
      const std::int64_t begin = half * p.head_dim, end = begin + p.head_dim;
      const bool saves = !step.pool || !is_saved_by_entry(p, place, half);
      if constexpr (kAligned) {
        for (std::int64_t c = begin; saves && c < end; c += SaveRun<TInput>::kChannels) {
          if (c > 0) run.load(value, gate, c, end, lane);
          run.store(bias, reinterpret_cast<TState*>(row), p.width(), c, end, lane);
        }
      } else if (saves) {
        save_channels<TInput, TState>(p, value, gate, bias, row, begin, end, lane);
      }
    }
  }
}

/// By the team that pooled row `row`: one channel, counted from the half that it pooled, of the token that goes there.
template <typename TInput, typename TState>
__device__ void replace_pooled_row(const CompressorParams& p, std::int64_t token, const PoolRow& row, std::int64_t half,
                                   std::int64_t c) {
  const std::int64_t column = half + c;
  const float value = to_float(reinterpret_cast<const TInput*>(p.kv)[token * p.kv_stride + column]);
  const float gate = to_float(reinterpret_cast<const TInput*>(p.gate)[token * p.gate_stride + column]);
  const float bias = p.ape[core::remainder(p.positions[token], p.ratio) * p.ape_stride + column];
  store(value, reinterpret_cast<TState*>(const_cast<std::byte*>(row.value)) + c);
  store(__fadd_rn(gate, bias), reinterpret_cast<TState*>(const_cast<std::byte*>(row.gate)) + c);
}

}  // namespace tamis::compressor_cuda
