// Faults that were seen in the field: lengths, tables and caches at the edge of memory, offsets past 31 bits.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/float_formats.hpp"
#include "indexer/reference.hpp"
#include "support/indexer_cases.hpp"
#include "support/indexer_run.hpp"
#include "support/sparse_memory.hpp"
#include "tamis/indexer.hpp"
#include "tamis/topk.hpp"

namespace tamis {
namespace {

using test::IndexerCase;
using test::run_index_logits;
using test::Workspace;

constexpr test::IndexerFormat kFp8{IndexFormat::kFp8, CacheLayout::kIndexerFp8};

// A copy of bytes that ends right before a page that must not be touched.
class EdgeMemory {
 public:
  EdgeMemory(const void* bytes, std::size_t size) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t payload = (size + page - 1) / page * page;
    size_ = payload + page;
    base_ =
        static_cast<std::uint8_t*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    data_ = base_ + payload - size;
    if (bytes != nullptr && size > 0) std::memcpy(data_, bytes, size);
    EXPECT_EQ(mprotect(base_ + payload, page, PROT_NONE), 0);
  }
  ~EdgeMemory() { munmap(base_, size_); }
  EdgeMemory(const EdgeMemory&) = delete;
  EdgeMemory& operator=(const EdgeMemory&) = delete;
  std::uint8_t* data() const { return data_; }

 private:
  std::uint8_t* base_ = nullptr;
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

template <typename T>
EdgeMemory at_edge(const std::vector<T>& values) {
  return EdgeMemory(values.data(), values.size() * sizeof(T));
}

TEST(IndexHostile, AllZeroLengthsReadNothing) {
  for (std::int64_t next_n : {1, 2, 3}) {
    for (std::int64_t requests : {1, 32, 128}) {
      const std::int64_t rows = requests * next_n;
      // Nothing but row_ends and the table may be looked at: everything else lies in memory that cannot be read.
      const EdgeMemory nothing(nullptr, 0);
      const EdgeMemory ends = at_edge(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 0));
      const EdgeMemory starts = at_edge(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 0));
      IndexScoreArgs score;
      score.index_q = ConstTensorView(nothing.data(), DType::kUInt8, {rows, 64, 128});
      score.index_weights = ConstTensorView(nothing.data(), DType::kFloat32, {rows, 64});
      score.index_k = {nothing.data(), CacheLayout::kIndexerFp8, 128, 1000, 64, 8448, 1.0F, {}};
      score.page_table = ConstTensorView(nothing.data(), DType::kInt32, {requests, 100});
      const std::vector<std::int32_t> tables(static_cast<std::size_t>(rows), 0);
      score.row_to_table = ConstTensorView(tables.data(), DType::kInt32, {rows});
      score.row_starts = ConstTensorView(starts.data(), DType::kInt32, {rows});
      score.row_ends = ConstTensorView(ends.data(), DType::kInt32, {rows});
      score.max_columns = 300;
      for (std::uint32_t bits : run_index_logits(score)) ASSERT_EQ(bits, 0xC3C3C3C3U);
      for (std::uint32_t bits : run_index_logits(score, 1, true)) ASSERT_EQ(std::bit_cast<float>(bits), -INFINITY);

      std::vector<std::int32_t> indices(static_cast<std::size_t>(rows * 64), 7);
      IndexTopkArgs args;
      args.score = score;
      args.k = 64;
      args.indices = TensorView(indices.data(), DType::kInt32, {rows, 64});
      args.order = TopkOrder::kByValue;
      args.num_threads = 1;
      Workspace workspace(index_topk_workspace_bytes(args));
      args.workspace = workspace.data();
      args.workspace_bytes = workspace.size();
      index_topk(args);
      EXPECT_EQ(indices, std::vector<std::int32_t>(static_cast<std::size_t>(rows * 64), -1));
    }
  }
}

// Every input ends at a page that cannot be read; the results are those of ordinary memory.
TEST(IndexHostile, NothingIsReadPastAnyInput) {
  for (const test::IndexerFormat& format : test::indexer_formats()) {
    for (const char* name : {"drafts", "odd_pages", "panel_and_one", "prefill_gathered", "hostile_gathered", "one"}) {
      for (const test::IndexerShape& shape : test::indexer_shapes()) {
        if (shape.name != name) continue;
        IndexerCase c(shape, format);
        const auto expected = run_index_logits(c.args);
        const EdgeMemory q = at_edge(c.q), q_scale = at_edge(c.q_scale), weights = at_edge(c.weights);
        const EdgeMemory keys = at_edge(c.keys), table = at_edge(c.page_table), to_table = at_edge(c.row_to_table);
        const EdgeMemory starts = at_edge(c.row_starts), ends = at_edge(c.row_ends);
        const auto moved = [](const ConstTensorView& view, const EdgeMemory& memory) {
          if (view.rank() == 0) return view;
          if (view.rank() == 1) return ConstTensorView(memory.data(), view.dtype(), {view.size(0)});
          if (view.rank() == 2) return ConstTensorView(memory.data(), view.dtype(), {view.size(0), view.size(1)});
          return ConstTensorView(memory.data(), view.dtype(), {view.size(0), view.size(1), view.size(2)});
        };
        IndexScoreArgs args = c.args;
        args.index_q = moved(args.index_q, q);
        args.index_q_scale = moved(args.index_q_scale, q_scale);
        args.index_weights = moved(args.index_weights, weights);
        args.page_table = moved(args.page_table, table);
        args.row_to_table = moved(args.row_to_table, to_table);
        args.row_starts = moved(args.row_starts, starts);
        args.row_ends = moved(args.row_ends, ends);
        args.index_k.data = keys.data();
        EXPECT_EQ(run_index_logits(args), expected) << name << " " << test::indexer_format_text(format);
      }
    }
  }
}

// A pool shared by many layers: 2000 pages 1,077,120 bytes apart are 2.15 GB; the last pages lie past 2^31.
TEST(IndexHostile, PagesPast31Bits) {
  constexpr std::int64_t kPitch = 1077120;
  constexpr std::int64_t kPages = 2001;
  const test::SparseMemory pool(static_cast<std::size_t>(kPitch * kPages));
  if (!pool.valid()) GTEST_SKIP() << "the system gives no 2.2 GB of address space";
  const IndexerCase c(
      {.name = "small", .rows = 2, .heads = 8, .columns = 192, .page_size = 64, .rows_a_table = 2, .full = true}, kFp8);
  const std::int32_t far_pages[] = {1993, 1994, 2000};
  for (std::size_t i = 0; i < 3; ++i) {
    std::memcpy(pool.data() + far_pages[i] * kPitch, c.keys.data() + c.page_table[i] * c.page_stride,
                static_cast<std::size_t>(c.page_stride));
  }
  IndexScoreArgs args = c.args;
  args.index_k.data = pool.data();
  args.index_k.num_pages = kPages;
  args.index_k.page_stride_bytes = kPitch;
  args.page_table = ConstTensorView(far_pages, DType::kInt32, {1, 3});
  EXPECT_EQ(run_index_logits(args), run_index_logits(c.args));
  args.index_k.num_pages = 2000;  // the third page is then outside the pool
  const auto cut = run_index_logits(args);
  for (std::size_t j = 128; j < 192; ++j) EXPECT_EQ(std::bit_cast<float>(cut[j]), -INFINITY);
}

// [2049, 2^20] fp32 logits: row 512 begins past 2^31 bytes, row 2048 past 2^31 elements.
TEST(IndexHostile, RowsPast31BitsAreWritten) {
  constexpr std::int64_t kRows = 2049;
  constexpr std::int64_t kColumns = std::int64_t{1} << 20;
  const test::SparseMemory logits(static_cast<std::size_t>(kRows * kColumns * 4));
  const test::SparseMemory keys(static_cast<std::size_t>(kColumns * 132));
  if (!logits.valid() || !keys.valid()) GTEST_SKIP() << "the system gives no 8.6 GB of address space";
  std::vector<std::uint8_t> q(kRows * 128, 0);
  for (std::int64_t r = 0; r < kRows; ++r) q[static_cast<std::size_t>(r * 128)] = 0x38;  // 1.0
  std::vector<float> weights;
  for (std::int64_t r = 0; r < kRows; ++r) weights.push_back(static_cast<float>(r + 1));
  // The last 5 keys: 1.0 in dim 0, scale j.
  for (std::int64_t j = kColumns - 5; j < kColumns; ++j) {
    keys.data()[j * 128] = 0x38;
    const auto scale = static_cast<float>(j - (kColumns - 5) + 1);
    std::memcpy(keys.data() + kColumns * 128 + 4 * j, &scale, 4);
  }
  const std::vector<std::int32_t> starts(kRows, kColumns - 5);
  const std::vector<std::int32_t> ends(kRows, kColumns);
  IndexLogitsArgs args;
  args.score.index_q = ConstTensorView(q.data(), DType::kUInt8, {kRows, 1, 128});
  args.score.index_weights = ConstTensorView(weights.data(), DType::kFloat32, {kRows, 1});
  args.score.index_k = {keys.data(), CacheLayout::kIndexerFp8, 128, 1, kColumns, 132 * kColumns, 1.0F, {}};
  args.score.row_starts = ConstTensorView(starts.data(), DType::kInt32, {kRows});
  args.score.row_ends = ConstTensorView(ends.data(), DType::kInt32, {kRows});
  args.score.max_columns = kColumns;
  args.logits = TensorView(logits.data(), DType::kFloat32, {kRows, kColumns});
  args.num_threads = 1;
  index_logits(args);
  const auto* out = reinterpret_cast<const float*>(logits.data());
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t i = 0; i < 5; ++i)
      ASSERT_EQ(out[r * kColumns + kColumns - 5 + i], static_cast<float>((r + 1) * (i + 1))) << "row " << r;
    ASSERT_EQ(out[r * kColumns + kColumns - 6], 0.0F) << "row " << r << " wrote outside its window";
  }
}

// Raw and compressed lengths, drafts included: the ends of topk_row_ends() go straight in (S-4.5).
TEST(IndexHostile, RowEndsOfDrafts) {
  for (std::int64_t ratio : {0, 1, 4, 128}) {
    for (std::int64_t next_n : {1, 2, 3, 4}) {
      std::vector<std::int32_t> seq_lens;
      for (std::int32_t length = 0; length <= 17; ++length) seq_lens.push_back(length);
      const auto rows = static_cast<std::int64_t>(seq_lens.size()) * next_n;
      IndexerCase c(
          {.name = "drafts", .rows = rows, .heads = 1, .columns = 17, .page_size = 64, .rows_a_table = next_n}, kFp8);
      topk_row_ends(seq_lens, next_n, ratio, c.row_ends);
      const auto bits = run_index_logits(c.args);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t raw =
            std::max<std::int64_t>(0, seq_lens[static_cast<std::size_t>(row / next_n)] - next_n + 1 + row % next_n);
        std::int64_t written = 0;
        for (std::int64_t j = 0; j < 17; ++j) written += bits[static_cast<std::size_t>(row * 17 + j)] != 0xC3C3C3C3U;
        ASSERT_EQ(written, raw / std::max<std::int64_t>(ratio, 1)) << "ratio " << ratio << " row " << row;
      }
    }
  }
}

// Padding rows have no effect outside their own rows, and real rows are those of a call without padding.
TEST(IndexHostile, PaddingRowsAreInert) {
  const test::IndexerShape shape{.name = "p", .rows = 8, .heads = 8, .columns = 300, .page_size = 64};
  for (std::int64_t real : {6, 1, 0}) {
    IndexerCase c(shape, kFp8);
    const auto clean = run_index_logits(c.args);
    std::vector<std::int32_t> tables{0, 1, 2, 3, 4, 5, 6, 7};
    const std::int32_t stale_ends[] = {0, 1, -1, 999999999, INT32_MIN, INT32_MAX, 300, 17};
    const std::int32_t stale_tables[] = {-1, 8, 3, INT32_MAX, INT32_MIN, 5, 99, 0};
    for (auto r = static_cast<std::size_t>(real); r < 8; ++r) {
      c.row_ends[r] = stale_ends[r];
      tables[r] = stale_tables[r];
    }
    IndexScoreArgs args = c.args;
    args.row_to_table = ConstTensorView(tables.data(), DType::kInt32, {8});
    const auto got = run_index_logits(args);
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + real * 300, clean.begin())) << real;
  }
}

// What lies past a row's end, +inf or NaN, cannot reach a selection: index_topk() has no such columns at all, and the
// unfused pair ignores them.
TEST(IndexHostile, UninitialisedTailColumnsDoNotMatter) {
  const IndexerCase c({.name = "tail", .rows = 6, .heads = 8, .columns = 700, .page_size = 64}, kFp8);
  std::vector<std::int32_t> results[3];
  const float tails[] = {INFINITY, std::nanf(""), 0.0F};
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<float> logits(6 * 700, tails[i]);
    IndexLogitsArgs write;
    write.score = c.args;
    write.logits = TensorView(logits.data(), DType::kFloat32, {6, 700});
    write.num_threads = 1;
    index_logits(write);
    results[i].resize(6 * 64);
    TopkArgs select;
    select.scores = ConstTensorView(logits.data(), DType::kFloat32, {6, 700});
    select.row_ends = c.args.row_ends;
    select.k = 64;
    select.indices = TensorView(results[i].data(), DType::kInt32, {6, 64});
    select.num_threads = 1;
    Workspace workspace(topk_workspace_bytes(select));
    select.workspace = workspace.data();
    select.workspace_bytes = workspace.size();
    topk(select);
  }
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], results[2]);
}

}  // namespace
}  // namespace tamis
