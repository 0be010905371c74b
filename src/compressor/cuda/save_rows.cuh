#pragma once

// Saves the rows of the step: row = value, then gate + bias, rounded to the state's dtype.
// Work split: a warp for kSavePart channels of a run of tokens, dealt to blocks in turn, then to warps.
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

/// A part of a row: 4 neighbouring channels a lane, kChunks times.
template <typename TInput>
struct SavePart {
  static constexpr int kChunks = kSavePart / 128;
  Raw<TInput, 4> values[kChunks], gates[kChunks];
  Raw<float, 4> biases[kChunks];

  __device__ void load(const TInput* value, const TInput* gate, const float* bias, std::int64_t begin, std::int64_t end,
                       int lane) {
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      const std::int64_t c = begin + u * 128 + 4 * lane;
      if (c >= end) break;
      values[u] = load_raw<4>(value + c);
      gates[u] = load_raw<4>(gate + c);
      biases[u] = load_raw<4>(bias + c);
    }
  }
  template <typename TState>
  __device__ void store(TState* row, std::int64_t width, std::int64_t begin, std::int64_t end, int lane) const {
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
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  const int parts = static_cast<int>(save_parts(p.head_dim)), parts_of_row = static_cast<int>(p.coff) * parts;
  const auto* values = reinterpret_cast<const TInput*>(p.kv);
  const auto* gates = reinterpret_cast<const TInput*>(p.gate);
  const auto bias_of = [&](std::int64_t position) {
    return p.ape + core::remainder(position < 0 ? 0 : position, p.ratio) * p.ape_stride;
  };
  const std::int64_t items = core::quotient(p.tokens + step.save_run - 1, step.save_run) * parts_of_row;
  for (std::int64_t item = index * warps + threadIdx.x / 32; item < items; item += blocks * warps) {
    const std::int64_t run = core::quotient(item, parts_of_row), first = run * step.save_run;
    const int part = static_cast<int>(item - run * parts_of_row), half = part >= parts ? 1 : 0;
    const std::int64_t begin = half * p.head_dim + (part - half * parts) * kSavePart;
    const std::int64_t end = min(begin + kSavePart, (half + 1) * p.head_dim);
    // The first token's numbers are read before it is known whether and where they are saved: it may be the only one.
    SavePart<TInput> read;
    if constexpr (kAligned) {
      read.load(values + first * p.kv_stride, gates + first * p.gate_stride, bias_of(p.positions[first]), begin, end,
                lane);
    }
    // A lane looks where the row of a token goes.
    std::byte* row = nullptr;
    const std::int64_t mine = first + lane;
    if (lane < step.save_run && mine < p.tokens) {
      const std::int64_t slot = save_slot(p, mine);
      const TokenPlace place = place_token(p, mine);
      if (place.valid) row = find_save_row(p, place, mine, slot);
      if (row != nullptr && step.pool && may_replace_pooled_rows(p, place) && is_saved_by_entry(p, place, half)) {
        row = nullptr;
      }
    }
    // The rows found, one after the other by the whole warp.
    for (std::uint32_t left = __ballot_sync(~0U, row != nullptr); left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      const std::int64_t token = first + from;
      auto* to = reinterpret_cast<std::byte*>(__shfl_sync(~0U, reinterpret_cast<unsigned long long>(row), from));
      const TInput *value = values + token * p.kv_stride, *gate = gates + token * p.gate_stride;
      if constexpr (kAligned) {
        if (from > 0) read.load(value, gate, bias_of(p.positions[token]), begin, end, lane);
        read.store(reinterpret_cast<TState*>(to), p.width(), begin, end, lane);
      } else {
        save_channels<TInput, TState>(p, value, gate, bias_of(p.positions[token]), to, begin, end, lane);
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
