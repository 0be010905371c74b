// What sparse_mla() must not touch: pages after its inputs, gaps, and everything that 32-bit offsets would reach
// instead.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <vector>

#include "sparse_memory.hpp"
#include "sparse_mla_cases.hpp"

namespace tamis {
namespace {

using test::SlotKind;
using test::SparseMlaData;

constexpr auto kV4 = CacheLayout::kFp8Mla584;

// Bytes that end right before a page that cannot be read, after one that cannot be read either.
class FencedMemory {
 public:
  explicit FencedMemory(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inner = (bytes + page - 1) / page * page;
    size_ = inner + 2 * page;
    base_ = static_cast<std::uint8_t*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ != MAP_FAILED && inner > 0) mprotect(base_ + page, inner, PROT_READ | PROT_WRITE);
    data_ = base_ + page + inner - bytes;
  }
  FencedMemory(const void* from, std::size_t bytes) : FencedMemory(bytes) { std::memcpy(data_, from, bytes); }
  ~FencedMemory() { munmap(base_, size_); }
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;
  std::uint8_t* data() { return data_; }

 private:
  std::uint8_t *base_ = nullptr, *data_ = nullptr;
  std::size_t size_ = 0;
};

TEST(SparseMlaMemory, ReadsNothingPastItsInputs) {
  struct {
    CacheLayout layout;
    std::int64_t head_dim;
  } const kinds[] = {{kV4, 512},
                     {CacheLayout::kFp8Mla656, 576},
                     {CacheLayout::kBFloat16, 512},
                     {CacheLayout::kBFloat16, 576},
                     {CacheLayout::kFloat32, 512}};
  for (const auto& kind : kinds) {
    SCOPED_TRACE(cache_layout_name(kind.layout));
    test::SparseMlaCase c{"", 10, 3, kind.head_dim, {kind.layout, 4, 9, 36}};
    c.out_dtype = DType::kFloat32;
    SparseMlaData data(c);
    // Every slot of the pool is listed, the last included. Lengths cover every edge; the row that keeps all lanes is
    // last.
    std::vector<std::int32_t> lens = {-1, 0, 1, 35, 37, 63, 64, INT_MAX, INT_MIN, 36};
    data.args.main.topk_lens = TensorView(lens.data(), DType::kInt32, {10});
    data.run();
    const auto plain = data.out.copy();

    const PagedCache& cache = data.main.cache();
    const auto pool_bytes =
        static_cast<std::size_t>(8 * cache.page_stride_bytes + 4 * cache_entry_bytes(kind.layout, kind.head_dim));
    FencedMemory pool(cache.data, pool_bytes), indices(data.main.indices().data(), 10 * 36 * 4),
        q(data.q.data(), data.q.size());
    FencedMemory fenced_lens(lens.data(), 40), sink(data.sink.data(), 12);
    data.args.main.cache.data = pool.data();
    data.args.main.topk_indices = TensorView(indices.data(), DType::kInt32, {10, 36});
    data.args.main.topk_lens = TensorView(fenced_lens.data(), DType::kInt32, {10});
    data.args.q = TensorView(q.data(), DType::kBFloat16, {10, 3, kind.head_dim});
    data.args.attn_sink = TensorView(sink.data(), DType::kFloat32, {3});
    data.run();
    EXPECT_EQ(plain, data.out.copy());
  }
}

TEST(SparseMlaMemory, ReadsNoIndexPastTheLength) {
  // The list continues into a page that cannot be read: only the first `len` lanes exist.
  SparseMlaData data({"", 1, 3, 512, {kV4, 64, 1, 1024}});
  std::vector<std::int32_t> lens(1);
  data.args.main.topk_lens = TensorView(lens.data(), DType::kInt32, {1});
  for (const std::int32_t len : {0, 1, 63, 64, 65, 200}) {
    lens[0] = len;
    FencedMemory indices(data.main.indices().data(), static_cast<std::size_t>(len) * 4);
    data.args.main.topk_indices = TensorView(indices.data(), DType::kInt32, {1, 1024});
    data.run();
    test::expect_matches_reference(data);
  }
}

TEST(SparseMlaMemory, ReachesPagesBeyond32Bits) {
  // A pool shared by many layers: pages 1,077,120 bytes apart, entries beyond 2^31 and 2^32 bytes.
  constexpr std::int64_t kPitch = 1'077'120, kPages = 4100;
  test::SparseMemory memory(static_cast<std::size_t>(kPitch * kPages));
  if (!memory.valid()) GTEST_SKIP() << "the system does not lend 4.4 GB of address space";
  PagedCache cache{memory.data(), kV4, 512, kPages, 64, kPitch};
  test::Random random;
  std::vector<std::int32_t> indices;
  for (const std::int64_t page : {1993, 1994, 2000, 3988, 4099}) {
    for (const std::int64_t entry : {0, 1, 63}) {
      test::fill_sparse_mla_entry(cache, page * 64 + entry, random);
      indices.push_back(static_cast<std::int32_t>(page * 64 + entry));
    }
  }
  SparseMlaData data({"", 1, 5, 512, {kV4, 64, 1, 15}});
  data.args.main.cache = cache;
  data.args.main.topk_indices = TensorView(indices.data(), DType::kInt32, {1, 15});
  data.run();
  test::expect_matches_reference(data);
  EXPECT_NE(data.out_value(0), 0.0);
}

TEST(SparseMlaMemory, TakesRowStridesBeyond32Bits) {
  // Rows of q and out 2^31 elements apart (8 GiB): row 1 lies where 32-bit products would not find it.
  constexpr std::int64_t kStride = std::int64_t{1} << 31;
  test::SparseMemory q_memory(static_cast<std::size_t>(kStride * 4 + 4096 * 4)), out_memory(q_memory.size());
  if (!q_memory.valid() || !out_memory.valid()) GTEST_SKIP() << "the system does not lend 16 GiB of address space";
  test::SparseMlaCase c{"", 2, 2, 512, {kV4, 64, 1, 40}};
  c.q_dtype = c.out_dtype = DType::kFloat32;
  SparseMlaData data(c);
  data.run();
  const auto dense = data.out.copy();
  for (std::int64_t row = 0; row < 2; ++row) {
    std::memcpy(q_memory.data() + row * kStride * 4, data.q.data() + row * 4096, 4096);
  }
  data.args.q = TensorView(q_memory.data(), DType::kFloat32, {2, 2, 512}, {kStride, 512, 1});
  data.args.out = TensorView(out_memory.data(), DType::kFloat32, {2, 2, 512}, {kStride, 512, 1});
  data.run();
  for (std::int64_t row = 0; row < 2; ++row) {
    EXPECT_EQ(0, std::memcmp(out_memory.data() + row * kStride * 4, dense.data() + row * 4096, 4096));
  }
}

TEST(SparseMlaMemory, WritesEveryRowOfAHugeBatch) {
  // Past 65,535 rows, one query for all of them; every third row is padding without a length.
  constexpr std::int64_t kRows = 65'537;
  SparseMlaData data({"", 1, 1, 512, {kV4, 64, 1, 3}});
  data.run();
  const auto one = data.out.copy();
  test::GuardedBuffer<std::uint8_t> out(static_cast<std::size_t>(kRows) * 1024);
  std::vector<std::int32_t> lens(static_cast<std::size_t>(kRows), 3);
  for (std::size_t row = 2; row < lens.size(); row += 3) lens[row] = -5;
  data.args.q = TensorView(data.q.data(), DType::kBFloat16, {kRows, 1, 512}, {0, 512, 1});
  data.args.main.topk_indices = TensorView(data.main.indices().data(), DType::kInt32, {kRows, 3}, {0, 1});
  data.args.main.topk_lens = TensorView(lens.data(), DType::kInt32, {kRows});
  data.args.out = TensorView(out.data(), DType::kBFloat16, {kRows, 1, 512});
  data.args.lse = {};
  data.args.max_logits = {};
  data.run();
  const std::vector<std::uint8_t> zeros(1024, 0);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto& want = lens[static_cast<std::size_t>(row)] < 0 ? zeros : one;
    ASSERT_EQ(0, std::memcmp(out.data() + row * 1024, want.data(), 1024)) << row;
  }
  EXPECT_TRUE(out.guards_intact());
}

}  // namespace
}  // namespace tamis
