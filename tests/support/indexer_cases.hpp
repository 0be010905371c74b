#pragma once

// Named calls of index_logits() and index_topk(): shapes, windows and page tables that tests, fuzzers and benchmarks
// share. Keys and queries are random codes of their format; every entry that no window reaches holds NaN where the
// format has one.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "core/float_formats.hpp"
#include "support/random.hpp"
#include "tamis/indexer.hpp"

namespace tamis::test {

struct IndexerShape {
  std::string name;
  std::int64_t rows = 1;
  std::int64_t heads = 8;
  std::int64_t columns = 64;
  std::int64_t page_size = 0;     // 0: gathered keys
  std::int64_t rows_a_table = 1;  // paged: consecutive rows that share a page table
  bool starts = false;            // row_starts present
  bool hostile = false;           // stale ends and starts, missing pages, tables out of range
  std::int64_t stride_pad = 0;    // extra bytes between pages
  bool full = false;              // every row sees every column
  friend std::ostream& operator<<(std::ostream& out, const IndexerShape& s) { return out << s.name; }
};

/// Small shapes around every block size: panels of 32, segments of 256, groups of 8 and chunks of 64 heads, blocks of
/// 32 rows.
inline std::vector<IndexerShape> indexer_shapes() {
  return {
      {.name = "one", .rows = 1, .heads = 1, .columns = 1},
      {.name = "no_rows", .rows = 0, .heads = 8, .columns = 100},
      {.name = "no_columns", .rows = 3, .heads = 8, .columns = 0},
      {.name = "panel_less_one", .rows = 2, .heads = 8, .columns = 31, .page_size = 64, .full = true},
      {.name = "panel", .rows = 2, .heads = 8, .columns = 32, .page_size = 64, .full = true},
      {.name = "panel_and_one", .rows = 2, .heads = 9, .columns = 33, .page_size = 64, .full = true},
      {.name = "segment_and_one", .rows = 2, .heads = 7, .columns = 257, .page_size = 64, .full = true},
      {.name = "decode_64_heads", .rows = 4, .heads = 64, .columns = 600, .page_size = 64},
      {.name = "more_heads_than_a_chunk", .rows = 3, .heads = 70, .columns = 300, .page_size = 64, .rows_a_table = 3},
      {.name = "drafts", .rows = 9, .heads = 8, .columns = 700, .page_size = 64, .rows_a_table = 3},
      {.name = "odd_pages", .rows = 5, .heads = 8, .columns = 500, .page_size = 7, .rows_a_table = 2, .stride_pad = 4},
      {.name = "page_of_one", .rows = 3, .heads = 8, .columns = 70, .page_size = 1, .rows_a_table = 2},
      {.name = "shared_pool", .rows = 4, .heads = 8, .columns = 300, .page_size = 64, .stride_pad = 4096},
      {.name = "prefill_gathered", .rows = 45, .heads = 8, .columns = 530, .starts = true},
      {.name = "prefill_paged", .rows = 70, .heads = 4, .columns = 300, .page_size = 64, .rows_a_table = 35},
      {.name = "long_chunk", .rows = 1, .heads = 8, .columns = 9000, .page_size = 64, .full = true},
      {.name = "hostile_paged",
       .rows = 16,
       .heads = 8,
       .columns = 400,
       .page_size = 16,
       .rows_a_table = 2,
       .starts = true,
       .hostile = true},
      {.name = "hostile_gathered", .rows = 16, .heads = 8, .columns = 400, .starts = true, .hostile = true},
  };
}

struct IndexerFormat {
  IndexFormat format;
  CacheLayout layout;
};

inline std::vector<IndexerFormat> indexer_formats() {
  return {{IndexFormat::kFp8, CacheLayout::kIndexerFp8},    {IndexFormat::kMxfp4, CacheLayout::kIndexerMxfp4},
          {IndexFormat::kFloat32, CacheLayout::kFloat32},   {IndexFormat::kFloat32, CacheLayout::kBFloat16},
          {IndexFormat::kBFloat16, CacheLayout::kBFloat16}, {IndexFormat::kBFloat16, CacheLayout::kFloat32}};
}

inline std::string indexer_format_text(const IndexerFormat& f) {
  const char* formats[] = {"fp32", "bf16", "fp8", "mxfp4"};
  return std::string(formats[static_cast<int>(f.format)]) + "_" + cache_layout_name(f.layout);
}

/// A call with its memory. Not movable: args points into it.
class IndexerCase {
 public:
  IndexerCase(const IndexerShape& shape_in, const IndexerFormat& format_in, Random random = Random())
      : shape(shape_in), format(format_in) {
    const std::int64_t rows = shape.rows;
    make_queries(random);
    const bool paged = shape.page_size > 0;
    // In a hostile gathered case the last columns have no key.
    const std::int64_t gathered = std::max<std::int64_t>(shape.columns - (shape.hostile ? 3 : 0), 1);
    const std::int64_t page_size = paged ? shape.page_size : gathered;
    const std::int64_t tables = paged ? (rows + shape.rows_a_table - 1) / shape.rows_a_table : 1;
    const std::int64_t pages_a_table = paged ? (shape.columns + page_size - 1) / page_size : 1;
    const std::int64_t num_pages = tables * pages_a_table + (paged ? 2 : 0);
    make_keys(random, page_size, num_pages);

    row_ends.resize(static_cast<std::size_t>(rows));
    row_starts.resize(static_cast<std::size_t>(rows));
    for (std::size_t r = 0; r < row_ends.size(); ++r) {
      row_ends[r] = static_cast<std::int32_t>(shape.full ? shape.columns : random.between(0, shape.columns));
      row_starts[r] = static_cast<std::int32_t>(shape.starts ? random.between(0, row_ends[r]) : 0);
    }
    if (paged) {
      for (std::int64_t i = 0; i < tables * pages_a_table; ++i) page_table.push_back(static_cast<std::int32_t>(i + 1));
      random.shuffle(page_table);
      for (std::int64_t r = 0; r < rows; ++r) row_to_table.push_back(static_cast<std::int32_t>(r / shape.rows_a_table));
    }
    if (shape.hostile) {
      const std::int32_t bad_ends[] = {INT32_MIN, -1, INT32_MAX, static_cast<std::int32_t>(shape.columns) + 1};
      for (std::size_t r = 0; r < 4 && r < row_ends.size(); ++r) row_ends[r] = bad_ends[r];
      if (rows > 6) row_starts[4] = -7, row_starts[5] = INT32_MAX, row_ends[6] = row_starts[6] - 1;
      if (paged) {
        for (std::size_t i = 0; i < page_table.size(); i += 3) {
          const std::int32_t bad_pages[] = {-1, INT32_MIN, INT32_MAX, static_cast<std::int32_t>(num_pages)};
          page_table[i] = bad_pages[i % 4];
        }
        if (rows > 9) row_to_table[8] = -1, row_to_table[9] = static_cast<std::int32_t>(tables);
      }
    }

    args.format = format.format;
    args.index_q = q_view();
    if (format.format == IndexFormat::kMxfp4)
      args.index_q_scale = ConstTensorView(q_scale.data(), DType::kUInt8, {rows, shape.heads, 4});
    args.index_weights = ConstTensorView(weights.data(), DType::kFloat32, {rows, shape.heads});
    args.index_k = {keys.data(), format.layout, 128, num_pages, page_size, page_stride, 1.0F, {}};
    if (paged) {
      args.page_table = ConstTensorView(page_table.data(), DType::kInt32, {tables, pages_a_table});
      if (shape.rows_a_table != 1 || shape.hostile)
        args.row_to_table = ConstTensorView(row_to_table.data(), DType::kInt32, {rows});
    }
    if (shape.starts) args.row_starts = ConstTensorView(row_starts.data(), DType::kInt32, {rows});
    args.row_ends = ConstTensorView(row_ends.data(), DType::kInt32, {rows});
    args.max_columns = shape.columns;
  }
  IndexerCase(const IndexerCase&) = delete;
  IndexerCase& operator=(const IndexerCase&) = delete;

  /// The same keys and tables for rows [begin, end) only.
  IndexScoreArgs slice(std::int64_t begin, std::int64_t end) const {
    IndexScoreArgs out = args;
    const std::int64_t rows = end - begin;
    const auto cut = [&](const ConstTensorView& view) {
      if (!view.present()) return view;
      const auto* data =
          static_cast<const std::uint8_t*>(view.data()) + begin * view.stride(0) * dtype_bytes(view.dtype());
      if (view.rank() == 1) return ConstTensorView(data, view.dtype(), {rows});
      if (view.rank() == 2) return ConstTensorView(data, view.dtype(), {rows, view.size(1)});
      return ConstTensorView(data, view.dtype(), {rows, view.size(1), view.size(2)});
    };
    out.index_q = cut(args.index_q);
    out.index_q_scale = cut(args.index_q_scale);
    out.index_weights = cut(args.index_weights);
    out.row_starts = cut(args.row_starts);
    out.row_ends = cut(args.row_ends);
    if (args.row_to_table.present()) out.row_to_table = cut(args.row_to_table);
    else if (args.page_table.present()) out.page_table = cut(args.page_table);  // row r uses table r
    return out;
  }

  IndexerShape shape;
  IndexerFormat format;
  IndexScoreArgs args;
  std::vector<std::uint8_t> q;
  std::vector<std::uint8_t> q_scale;
  std::vector<float> weights;
  std::vector<std::uint8_t> keys;
  std::int64_t page_stride = 0;
  std::vector<std::int32_t> page_table, row_to_table, row_starts, row_ends;

 private:
  static std::uint8_t e4m3_code(Random& random) {
    for (;;) {
      const auto code = static_cast<std::uint8_t>(random.bits());
      if ((code & 0x7FU) != 0x7FU) return code;
    }
  }
  template <typename T>
  static void append(std::vector<std::uint8_t>& bytes, T value) {
    std::uint8_t raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes.insert(bytes.end(), raw, raw + sizeof(T));
  }

  void make_queries(Random& random) {
    for (std::int64_t i = 0; i < shape.rows * shape.heads; ++i) {
      weights.push_back(0.1F * random.normal());
      for (int c = 0; c < 128; ++c) {
        switch (format.format) {
          case IndexFormat::kFloat32: append(q, random.normal()); break;
          case IndexFormat::kBFloat16: append(q, core::float_to_bf16(random.normal())); break;
          case IndexFormat::kFp8: q.push_back(e4m3_code(random)); break;
          case IndexFormat::kMxfp4:
            if (c % 2 == 0) q.push_back(static_cast<std::uint8_t>(random.bits()));
            if (c % 32 == 0) q_scale.push_back(static_cast<std::uint8_t>(random.between(118, 130)));
            break;
        }
      }
    }
  }

  ConstTensorView q_view() const {
    switch (format.format) {
      case IndexFormat::kFloat32: return {q.data(), DType::kFloat32, {shape.rows, shape.heads, 128}};
      case IndexFormat::kBFloat16: return {q.data(), DType::kBFloat16, {shape.rows, shape.heads, 128}};
      case IndexFormat::kFp8: return {q.data(), DType::kUInt8, {shape.rows, shape.heads, 128}};
      case IndexFormat::kMxfp4: break;
    }
    return {q.data(), DType::kUInt8, {shape.rows, shape.heads, 64}};
  }

  void make_keys(Random& random, std::int64_t page_size, std::int64_t num_pages) {
    page_stride = cache_entry_bytes(format.layout, 128) * page_size + shape.stride_pad;
    keys.assign(static_cast<std::size_t>(page_stride * num_pages), 0xFF);  // NaN in the padding and in page 0
    for (std::int64_t page = shape.page_size > 0 ? 1 : 0; page < num_pages; ++page) {
      std::vector<std::uint8_t> bytes;
      std::vector<std::uint8_t> scales;
      for (std::int64_t i = 0; i < page_size; ++i) {
        if (format.layout == CacheLayout::kIndexerFp8)
          append(scales, core::exp2_int(static_cast<int>(random.between(-9, 2))));
        for (int c = 0; c < 128; ++c) {
          switch (format.layout) {
            case CacheLayout::kFloat32: append(bytes, random.normal()); break;
            case CacheLayout::kBFloat16: append(bytes, core::float_to_bf16(random.normal())); break;
            case CacheLayout::kIndexerFp8: bytes.push_back(e4m3_code(random)); break;
            default:
              if (c % 2 == 0) bytes.push_back(static_cast<std::uint8_t>(random.bits()));
              if (c % 32 == 0) scales.push_back(static_cast<std::uint8_t>(random.between(118, 130)));
          }
        }
      }
      bytes.insert(bytes.end(), scales.begin(), scales.end());
      std::copy(bytes.begin(), bytes.end(), keys.begin() + page * page_stride);
    }
  }
};

}  // namespace tamis::test
