#pragma once

#include <cstdint>

#include "tamis/topk.hpp"

namespace tamis {

/// Checked arguments of one topk() call, as every backend takes them. Strides in elements; absent arrays are null.
struct TopkParams {
  const void* scores = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0, width = 0, row_stride = 0;
  const void* row_starts = nullptr;  // [rows] int32
  const void* row_ends = nullptr;    // [rows] int32
  std::int64_t k = 0;

  void* indices = nullptr;
  DType index_dtype = DType::kInt32;
  std::int64_t indices_stride = 0;
  void* values = nullptr;
  std::int64_t values_stride = 0;
  void* certificate = nullptr;
  std::int64_t certificate_stride = 0;

  TopkOrder order = TopkOrder::kPosition;
  TopkMapping mapping = TopkMapping::kNone;
  const void* page_table = nullptr;  // [tables, max_pages] int32
  std::int64_t tables = 0, max_pages = 0, page_table_stride = 0, page_size = 1;
  const void* row_to_table = nullptr;    // [rows] int32
  const void* page_starts = nullptr;     // [rows] int32
  const void* ragged_offsets = nullptr;  // [rows]
  DType ragged_dtype = DType::kInt32;

  int num_threads = 0;
};

}  // namespace tamis
