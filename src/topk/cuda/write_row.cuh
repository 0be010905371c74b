#pragma once

// From winners to the caller's memory: order, mapping, index width, values, the -1 tail, the certificate.

#include <cstdint>

#include "topk/cuda/kth_best.cuh"
#include "topk/cuda/row.cuh"

namespace tamis::topk_cuda {

/// TopkMapping of one row, on the device. Definition: topk/cpu/row_output.hpp.
struct RowMap {
  const TopkParams& p;
  const std::int32_t* pages = nullptr;
  std::int64_t offset = 0;  // page_starts or ragged_offsets

  __device__ RowMap(const TopkParams& params, std::int64_t row) : p(params) {
    if (p.mapping == TopkMapping::kPageTable) {
      const std::int64_t table =
          p.row_to_table != nullptr ? static_cast<const std::int32_t*>(p.row_to_table)[row] : row;
      if (table >= 0 && table < p.tables) {
        pages = static_cast<const std::int32_t*>(p.page_table) + table * p.page_table_stride;
      }
      if (p.page_starts != nullptr) offset = static_cast<const std::int32_t*>(p.page_starts)[row];
    } else if (p.mapping == TopkMapping::kRagged) {
      offset = p.ragged_dtype == DType::kInt64 ? static_cast<const std::int64_t*>(p.ragged_offsets)[row]
                                               : static_cast<const std::int32_t*>(p.ragged_offsets)[row];
    }
  }

  __device__ std::int64_t operator()(std::uint32_t position) const {
    if (p.mapping == TopkMapping::kNone) return position;
    if (p.mapping == TopkMapping::kPageTable) return slot(pages, p.max_pages, p.page_size, position + offset);
    // Stale offsets of padding rows may be anything. A position is never negative: only one end can be passed.
    return offset > INT64_MAX - position ? -1 : position + offset;
  }

 private:
  // Apart, so that its divisions do not fill the instruction cache of calls without a page table.
  __device__ __noinline__ static std::int64_t slot(const std::int32_t* pages, std::int64_t max_pages,
                                                   std::int64_t page_size, std::int64_t entry) {
    if (pages == nullptr || entry < 0) return -1;
    // Both fit 32 bits in practice, where a division is several times cheaper.
    const bool small = entry <= UINT32_MAX && page_size <= UINT32_MAX;
    const std::int64_t page_index =
        small ? static_cast<std::uint32_t>(entry) / static_cast<std::uint32_t>(page_size) : entry / page_size;
    if (page_index >= max_pages) return -1;
    const std::int64_t page = pages[page_index], in_page = entry - page_index * page_size;
    if (page < 0) return -1;
    if (page > 0 && !small && page_size > (INT64_MAX - in_page) / page) return -1;
    return page * page_size + in_page;
  }
};

/// A winner and where it goes.
struct Placed {
  std::uint32_t rank, position;
};

/// Writes a whole row of the outputs: placed(i) for all i below `count`, and -1 behind them. One place for all kernels,
/// since every copy of the mapping costs instruction cache.
template <typename T, int kThreads, typename PlacedAt>
__device__ void write_winners(const TopkParams& p, std::int64_t row, const RowWindow<T>& window, std::uint32_t count,
                              PlacedAt placed) {
  const RowMap map(p, row);
  for (std::int64_t i = threadIdx.x; i < p.k; i += kThreads) {
    const bool won = i < count;
    const Placed winner = won ? placed(static_cast<std::uint32_t>(i)) : Placed{0, 0};
    const std::int64_t rank = won ? winner.rank : i, value = won ? map(winner.position) : -1;
    const std::int64_t at = row * p.indices_stride + rank;
    if (p.index_dtype == DType::kInt64) {
      static_cast<std::int64_t*>(p.indices)[at] = value;
    } else {
      const auto narrow = static_cast<std::int32_t>(value);
      static_cast<std::int32_t*>(p.indices)[at] = narrow == value ? narrow : -1;
    }
    if (p.values == nullptr) continue;
    // Its bits as they stand in the scores: keys have lost the sign of zero and what kind of NaN it was.
    T* to = static_cast<T*>(p.values) + row * p.values_stride + rank;
    if (won) {
      *to = window.scores[winner.position];
    } else if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<std::uint32_t*>(to) = 0x7FC00000U;
    } else {
      *reinterpret_cast<std::uint16_t*>(to) = p.dtype == DType::kBFloat16 ? 0x7FC0 : 0x7E00;
    }
  }
}

/// Every position wins, in ascending order.
template <typename T, int kThreads>
__device__ __noinline__ void write_whole_window(const TopkParams& p, std::int64_t row, const RowWindow<T>& window) {
  write_winners<T, kThreads>(p, row, window, window.count, [](std::uint32_t i) { return Placed{i, i}; });
}

/// Sorts composites descending, in place. `room` is a power of two >= count; what lies past count is overwritten.
template <int kThreads>
__device__ __noinline__ void sort_descending(Composite* items, std::uint32_t count, std::uint32_t room) {
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
  winners.each([&](std::uint32_t key, std::uint32_t) { min_key = min(min_key, key); });
  atomicMin(&s.min_key, min_key);
  __syncthreads();
  min_key = s.min_key;
  std::uint32_t won = 0, equal = 0;
  winners.each([&](std::uint32_t key, std::uint32_t) { won += key == min_key ? 1U : 0U; });
  items.each([&](std::uint32_t key, std::uint32_t) { equal += key == min_key ? 1U : 0U; });
  atomicAdd(&s.num_equal_won, won);
  atomicAdd(&s.num_equal, equal);
  __syncthreads();
  if (threadIdx.x == 0) {
    auto* out = static_cast<std::int32_t*>(p.certificate) + row * p.certificate_stride;
    const bool any = num_winners > 0;
    out[0] = static_cast<std::int32_t>(__float_as_uint(score_of_key(any ? min_key : kNanKey)));
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
    for (std::uint32_t i = threadIdx.x; i < window.count; i += kThreads) f(window.key(i), i);
  }
};

}  // namespace tamis::topk_cuda
