#pragma once

// A block of kSumRows rows by a warp: neighbouring channels a lane, every row in registers.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "compressor/cuda/arithmetic.cuh"
#include "compressor/window.hpp"
#include "core/cuda/shared_address.cuh"

namespace tamis::compressor_cuda {

using compressor::kSumRows;
using compressor::PoolRow;

/// Numbers of an input or a state row; which of the two is known when they are looked at.
template <typename TInput, typename TState, int kEach>
union RawRow {
  Raw<TInput, kEach> input;
  Raw<TState, kEach> state;
};

/// @tparam kEach  Channels a lane: 1 or 4.
template <typename TInput, typename TState, int kEach>
class PoolBlock {
 public:
  /// Begins to read channels [c, c + kEach) of all rows, so that all are under way before the first is waited for.
  /// @param rows  [kSumRows] in shared memory, the same for the whole warp.
  __device__ void read(const PoolRow* rows, int c) {
    rows_ = core::shared_address(rows);
    c_ = c;
    const int mine = static_cast<int>(threadIdx.x) % kSumRows;
    inputs_ = __ballot_sync(~0U, pointer(mine, offsetof(PoolRow, bias)) != nullptr);
    const std::uint32_t there = __ballot_sync(~0U, pointer(mine, offsetof(PoolRow, value)) != nullptr);
    if (there == ~0U) {
#pragma unroll
      for (int k = 0; k < kSumRows; ++k) read_row(k);
    } else {
#pragma unroll
      for (int k = 0; k < kSumRows; ++k) {
        // A row that is left out weighs nothing.
        gates_[k].state = make_raw<TState, kEach>(-INFINITY);
        values_[k].state = make_raw<TState, kEach>(0.0F);
        if ((there >> k & 1U) != 0) read_row(k);
      }
    }
  }

  /// Turns gates into what counts, and returns the largest of each channel.
  __device__ Numbers<kEach> largest() {
    Numbers<kEach> most;
#pragma unroll
    for (int k = 0; k < kSumRows; ++k) {
      gate_[k] = number(gates_[k], k);
      // A row of the inputs is rounded as if it had been saved and read back.
      if (is_input(k)) {
        const auto* biases = reinterpret_cast<const float*>(pointer(k, offsetof(PoolRow, bias)));
        const Numbers<kEach> bias = load_raw<kEach>(biases + c_).value();
#pragma unroll
        for (int i = 0; i < kEach; ++i) gate_[k].at[i] = round_to<TState>(__fadd_rn(gate_[k].at[i], bias.at[i]));
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) most.at[i] = k == 0 ? gate_[k].at[i] : fmaxf(most.at[i], gate_[k].at[i]);
    }
    return most;
  }

  /// Adds weights, and weights times values, to sums that begin at zero. After largest().
  __device__ void sum(const Numbers<kEach>& largest, Numbers<kEach>& weights, Numbers<kEach>& sums) const {
#pragma unroll
    for (int k = 0; k < kSumRows; ++k) {
      const Numbers<kEach> value = number(values_[k], k);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float weight = exp_not_positive(__fsub_rn(gate_[k].at[i], largest.at[i]));
        weights.at[i] = __fadd_rn(weights.at[i], weight);
        sums.at[i] = __fmaf_rn(weight, round_to<TState>(value.at[i]), sums.at[i]);
      }
    }
  }

 private:
  using Row = RawRow<TInput, TState, kEach>;

  __device__ bool is_input(int k) const { return (inputs_ >> k & 1U) != 0; }

  /// A pointer of a row, where it is needed: as C++ it would be read as if it could be anywhere, and be kept.
  __device__ const std::byte* pointer(int k, std::size_t offset) const {
    std::uint64_t bits;
    asm volatile("ld.shared.u64 %0, [%1];"
                 : "=l"(bits)
                 : "r"(rows_ + static_cast<std::uint32_t>(k * sizeof(PoolRow) + offset))
                 : "memory");
    return reinterpret_cast<const std::byte*>(bits);
  }

  __device__ void read_row(int k) {
    const std::byte *gate = pointer(k, offsetof(PoolRow, gate)), *value = pointer(k, offsetof(PoolRow, value));
    if (std::is_same_v<TInput, TState> || is_input(k)) {
      gates_[k].input = load_raw<kEach>(reinterpret_cast<const TInput*>(gate) + c_);
      values_[k].input = load_raw<kEach>(reinterpret_cast<const TInput*>(value) + c_);
    } else {
      gates_[k].state = load_raw<kEach>(reinterpret_cast<const TState*>(gate) + c_);
      values_[k].state = load_raw<kEach>(reinterpret_cast<const TState*>(value) + c_);
    }
  }
  __device__ Numbers<kEach> number(const Row& raw, int k) const {
    if constexpr (std::is_same_v<TInput, TState>) return raw.input.value();
    else return is_input(k) ? raw.input.value() : raw.state.value();
  }

  std::uint32_t rows_;  // in shared memory
  int c_;
  std::uint32_t inputs_;  // bit k: row k is one of the inputs
  Row gates_[kSumRows], values_[kSumRows];
  Numbers<kEach> gate_[kSumRows];
};

}  // namespace tamis::compressor_cuda
