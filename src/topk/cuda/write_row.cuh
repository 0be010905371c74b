#pragma once

// From winners to the caller's memory: order, mapping, index width, values, the -1 tail, the certificate.

#include <cstdint>

#include "topk/cuda/kth_largest.cuh"
#include "topk/cuda/row.cuh"

namespace tamis::topk_cuda {

// Positions that one pass of order_by_position() covers: a bit each, and 16 bits of count a word.
inline constexpr std::uint32_t kOrderWords = 8192;
inline constexpr std::uint32_t kOrderPositions = 32 * kOrderWords;

/// Memory of order_by_position(); the candidates' place once they are winners.
struct OrderStorage {
  std::uint32_t words[kOrderWords];
  std::uint16_t before[kOrderWords];  // winners in the words before this one
};

/// TopkMapping of one row, on the device. Definition: topk/cpu/row_output.hpp.
struct RowMap {
  TopkMapping mapping;
  const std::int32_t* pages = nullptr;
  std::int64_t max_pages = 0, page_size = 1, page_start = 0, ragged_offset = 0;

  __device__ RowMap(const TopkParams& p, std::int64_t row) : mapping(p.mapping) {
    if (mapping == TopkMapping::kPageTable) {
      const std::int64_t table =
          p.row_to_table != nullptr ? static_cast<const std::int32_t*>(p.row_to_table)[row] : row;
      if (table >= 0 && table < p.tables) {
        pages = static_cast<const std::int32_t*>(p.page_table) + table * p.page_table_stride;
      }
      max_pages = p.max_pages;
      page_size = p.page_size;
      if (p.page_starts != nullptr) page_start = static_cast<const std::int32_t*>(p.page_starts)[row];
    } else if (mapping == TopkMapping::kRagged) {
      ragged_offset = p.ragged_dtype == DType::kInt64 ? static_cast<const std::int64_t*>(p.ragged_offsets)[row]
                                                      : static_cast<const std::int32_t*>(p.ragged_offsets)[row];
    }
  }

  __device__ std::int64_t operator()(std::int64_t position) const {
    if (mapping == TopkMapping::kNone) return position;
    if (mapping == TopkMapping::kRagged) {
      // Stale offsets of padding rows may be anything. A position is never negative: only one end can be passed.
      return ragged_offset > INT64_MAX - position ? -1 : position + ragged_offset;
    }
    const std::int64_t entry = position + page_start;
    if (pages == nullptr || entry < 0) return -1;
    // Both fit 32 bits in practice, where a division is several times cheaper.
    const bool small = entry <= UINT32_MAX && page_size <= UINT32_MAX;
    const std::int64_t page_index =
        small ? static_cast<std::uint32_t>(entry) / static_cast<std::uint32_t>(page_size) : entry / page_size;
    if (page_index >= max_pages) return -1;
    const std::int64_t page = pages[page_index], offset = entry - page_index * page_size;
    if (page < 0 || (page > 0 && page_size > (INT64_MAX - offset) / page)) return -1;
    return page * page_size + offset;
  }
};

/// Writes elements of one row's outputs.
template <typename T>
struct RowWriter {
  const TopkParams& p;
  std::int64_t row;
  RowWindow<T> window;
  RowMap map;

  __device__ RowWriter(const TopkParams& params, std::int64_t r, const RowWindow<T>& w)
      : p(params), row(r), window(w), map(params, r) {}

  __device__ void index(std::int64_t rank, std::int64_t value) const {
    const std::int64_t at = row * p.indices_stride + rank;
    if (p.index_dtype == DType::kInt64) {
      static_cast<std::int64_t*>(p.indices)[at] = value;
    } else {
      const auto narrow = static_cast<std::int32_t>(value);
      static_cast<std::int32_t*>(p.indices)[at] = narrow == value ? narrow : -1;
    }
  }
  __device__ void winner(std::int64_t rank, std::uint32_t position) const {
    index(rank, map(position));
    // Its bits as they stand in the scores: keys have lost the sign of zero and what kind of NaN it was.
    if (p.values != nullptr) static_cast<T*>(p.values)[row * p.values_stride + rank] = window.scores[position];
  }
  __device__ void nothing(std::int64_t rank) const {
    index(rank, -1);
    if (p.values == nullptr) return;
    if constexpr (sizeof(T) == 4) {
      static_cast<std::uint32_t*>(p.values)[row * p.values_stride + rank] = 0x7FC00000U;
    } else {
      static_cast<std::uint16_t*>(p.values)[row * p.values_stride + rank] =
          p.dtype == DType::kBFloat16 ? 0x7FC0 : 0x7E00;
    }
  }
  /// Every position wins, in ascending order.
  template <int kThreads>
  __device__ void whole_window() const {
    for (std::int64_t i = threadIdx.x; i < p.k; i += kThreads) {
      if (i < window.count) winner(i, static_cast<std::uint32_t>(i));
      else nothing(i);
    }
  }
  template <int kThreads>
  __device__ void nothing_from(std::int64_t rank) const {
    for (std::int64_t i = rank + threadIdx.x; i < p.k; i += kThreads) nothing(i);
  }
};

/// Calls f(rank, position) for every winner, ranks ascending with positions. A winner sets the bit of its position; its
/// rank is the number of bits below. Starts and ends with a barrier.
template <int kThreads, typename F>
__device__ void order_by_position(const Composite* winners, std::uint32_t count, std::uint32_t positions,
                                  OrderStorage& order, std::uint32_t* warp_totals, F f) {
  __syncthreads();
  std::uint32_t done = 0;
  for (std::uint32_t base = 0; base < positions && done < count; base += kOrderPositions) {
    const std::uint32_t words = (min(kOrderPositions, positions - base) + 31) / 32;
    const std::uint32_t owned = ((words + kThreads - 1) / kThreads + 3) / 4 * 4;  // whole 16-byte groups a thread
    for (std::uint32_t i = threadIdx.x; i < owned * kThreads / 4; i += kThreads) {
      if (4 * i < kOrderWords) reinterpret_cast<uint4*>(order.words)[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      const std::uint32_t at = position_of(winners[i]) - base;
      if (at < kOrderPositions) atomicOr(&order.words[at / 32], 1U << at % 32);
    }
    __syncthreads();
    const std::uint32_t first = threadIdx.x * owned;
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < owned; i += 4) {
      if (first + i >= kOrderWords) break;
      const uint4 four = *reinterpret_cast<const uint4*>(&order.words[first + i]);
      sum += __popc(four.x) + __popc(four.y) + __popc(four.z) + __popc(four.w);
    }
    std::uint32_t total;
    std::uint32_t before = done + sum_before<kThreads>(sum, warp_totals, total);
    for (std::uint32_t i = 0; i < owned; i += 4) {
      if (first + i >= kOrderWords) break;
      const uint4 four = *reinterpret_cast<const uint4*>(&order.words[first + i]);
      ushort4 ranks;
      ranks.x = static_cast<unsigned short>(before);
      ranks.y = static_cast<unsigned short>(before += __popc(four.x));
      ranks.z = static_cast<unsigned short>(before += __popc(four.y));
      ranks.w = static_cast<unsigned short>(before += __popc(four.z));
      before += __popc(four.w);
      *reinterpret_cast<ushort4*>(&order.before[first + i]) = ranks;
    }
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      const std::uint32_t position = position_of(winners[i]), at = position - base;
      if (at >= kOrderPositions) continue;
      f(order.before[at / 32] + __popc(order.words[at / 32] & ((1U << at % 32) - 1)), position);
    }
    done += total;
    __syncthreads();
  }
}

/// Sorts composites descending, in place. `room` is a power of two >= count; what lies past count is overwritten.
template <int kThreads>
__device__ void sort_descending(Composite* items, std::uint32_t count, std::uint32_t room) {
  for (std::uint32_t i = count + threadIdx.x; i < room; i += kThreads) items[i] = 0;  // below every composite
  __syncthreads();
  for (std::uint32_t run = 2; run <= room; run *= 2) {
    for (std::uint32_t step = run / 2; step > 0; step /= 2) {
      for (std::uint32_t i = threadIdx.x; i < room / 2; i += kThreads) {
        const std::uint32_t a = 2 * i - (i & (step - 1)), b = a + step;
        const Composite first = items[a], second = items[b];
        if ((first < second) == ((a & run) == 0)) {
          items[a] = second;
          items[b] = first;
        }
      }
      __syncthreads();
    }
  }
}

struct CertificateStorage {
  std::uint32_t min_key, num_equal, num_equal_won;
};

/// Writes the certificate of a row whose winners are given. `items` holds every score of the window that is equal to
/// the last winner. All threads call it together.
template <int kThreads, typename Winners, typename Items>
__device__ void write_certificate(const TopkParams& p, std::int64_t row, const Winners& winners,
                                  std::uint32_t num_winners, const Items& items, CertificateStorage& s) {
  if (threadIdx.x == 0) s = {~0U, 0, 0};
  __syncthreads();
  std::uint32_t min_key = ~0U;
  winners.each([&](Composite c) { min_key = min(min_key, key_of(c)); });
  atomicMin(&s.min_key, min_key);
  __syncthreads();
  min_key = s.min_key;
  std::uint32_t won = 0, equal = 0;
  winners.each([&](Composite c) { won += key_of(c) == min_key ? 1U : 0U; });
  items.each([&](Composite c) { equal += key_of(c) == min_key ? 1U : 0U; });
  atomicAdd(&s.num_equal_won, won);
  atomicAdd(&s.num_equal, equal);
  __syncthreads();
  if (threadIdx.x == 0) {
    auto* out = static_cast<std::int32_t*>(p.certificate) + row * p.certificate_stride;
    const bool any = num_winners > 0;
    out[0] = static_cast<std::int32_t>(__float_as_uint(score_of_key(any ? min_key : 0)));
    out[1] = any ? static_cast<std::int32_t>(num_winners - s.num_equal_won) : 0;
    out[2] = any ? static_cast<std::int32_t>(s.num_equal) : 0;
    out[3] = any ? static_cast<std::int32_t>(s.num_equal_won) : 0;
  }
  __syncthreads();
}

/// Every score of a window, read from where it lies.
template <typename T, int kThreads>
struct WindowItems {
  RowWindow<T> window;
  template <typename F>
  __device__ void each(F f) const {
    for (std::uint32_t i = threadIdx.x; i < window.count; i += kThreads) f(window.composite(i));
  }
};

/// Those of some items that are at least `last`.
template <typename Items>
struct AtLeast {
  const Items& items;
  Composite last;
  template <typename F>
  __device__ void each(F f) const {
    items.each([&](Composite c) {
      if (c >= last) f(c);
    });
  }
};

}  // namespace tamis::topk_cuda
