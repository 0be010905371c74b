// Every cache layout against the definition, byte by byte, and against what went wrong elsewhere: geometry, padding
// slots, offsets past 2^31, scales that are not powers of two.
#include "tamis/cache.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>
#include <vector>

#include "core/float_formats.hpp"
#include "ops/layouts.hpp"
#include "ops/quantize.hpp"
#include "ops/reference.hpp"
#include "support/allocation_counter.hpp"
#include "support/cache_cases.hpp"
#include "support/expect_error.hpp"
#include "support/guarded_buffer.hpp"
#include "support/random.hpp"
#include "support/simd_targets.hpp"
#include "support/sparse_memory.hpp"

namespace tamis {
namespace {

namespace reference = ops::reference;
using test::CacheCase;
using test::GuardedBuffer;
using test::TestCache;
using test::throws;

// Rows whose tiles have sizes of their own, so that a scale read from the wrong tile or entry shows.
std::vector<float> make_rows(test::Random& random, std::int64_t n, std::int64_t head_dim) {
  std::vector<float> rows(static_cast<std::size_t>(n * head_dim));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto tile = static_cast<int>(i / 32 % 29);
    rows[i] = std::ldexp(random.normal(), tile - 18);
  }
  return rows;
}

ConstTensorView row_view(const std::vector<float>& rows, std::int64_t n) {
  return {rows.data(), DType::kFloat32, {n, static_cast<std::int64_t>(rows.size()) / n}};
}

TEST(CacheLayout, NamesAndSizes) {
  EXPECT_STREQ(cache_layout_name(CacheLayout::kFloat32), "fp32");
  EXPECT_STREQ(cache_layout_name(CacheLayout::kBFloat16), "bf16");
  EXPECT_STREQ(cache_layout_name(CacheLayout::kFp8PerTensor), "fp8_tensor");
  EXPECT_STREQ(cache_layout_name(CacheLayout::kFp8Mla584), "fp8_mla584");
  EXPECT_STREQ(cache_layout_name(CacheLayout::kFp8Mla656), "fp8_mla656");
  EXPECT_STREQ(cache_layout_name(CacheLayout::kIndexerFp8), "indexer_fp8");
  EXPECT_STREQ(cache_layout_name(CacheLayout::kIndexerMxfp4), "indexer_mxfp4");
  EXPECT_STREQ(cache_layout_name(static_cast<CacheLayout>(99)), "unknown layout");
  EXPECT_EQ(cache_entry_bytes(CacheLayout::kFloat32, 512), 2048);
  EXPECT_EQ(cache_entry_bytes(CacheLayout::kBFloat16, 512), 1024);
  EXPECT_EQ(cache_entry_bytes(CacheLayout::kFp8PerTensor, 512), 512);
  EXPECT_EQ(cache_entry_bytes(CacheLayout::kFp8Mla584, 512), 584);
  EXPECT_EQ(cache_entry_bytes(CacheLayout::kFp8Mla656, 576), 656);
  EXPECT_EQ(cache_entry_bytes(CacheLayout::kIndexerFp8, 128), 132);
  EXPECT_EQ(cache_entry_bytes(CacheLayout::kIndexerMxfp4, 128), 68);
  EXPECT_EQ(cache_page_bytes(CacheLayout::kFp8Mla584, 512, 64), 37440);
  EXPECT_EQ(cache_page_bytes(CacheLayout::kFp8Mla584, 512, 2), 1728);
  EXPECT_EQ(cache_page_bytes(CacheLayout::kFp8Mla584, 512, 256), 149760);
  EXPECT_EQ(cache_page_bytes(CacheLayout::kFp8Mla656, 576, 64), 41984);
  EXPECT_EQ(cache_page_bytes(CacheLayout::kIndexerFp8, 128, 64), 8448);
  EXPECT_EQ(cache_page_bytes(CacheLayout::kIndexerMxfp4, 128, 64), 4352);
  EXPECT_EQ(cache_page_bytes(CacheLayout::kBFloat16, 512, 3), 3072);
}

TEST(CacheLayout, WorkedOffsetsOfTheSpecification) {
  ConstPagedCache cache;
  cache.layout = CacheLayout::kFp8Mla584;
  cache.head_dim = 512;
  cache.page_size = 64;
  cache.num_pages = 6;
  cache.page_stride_bytes = 37440;
  EXPECT_EQ(ops::data_offset(cache, 330), 192960);
  EXPECT_EQ(ops::data_offset(cache, 330) + ops::kMla584NopeDims, 193408);  // rope
  EXPECT_EQ(ops::scale_offset(cache, 330), 224144);
  cache.page_size = 2;
  cache.num_pages = 10;
  cache.page_stride_bytes = 1728;
  EXPECT_EQ(ops::data_offset(cache, 19), 16128);
  EXPECT_EQ(ops::scale_offset(cache, 19), 16712);
  cache.layout = CacheLayout::kIndexerFp8;
  cache.head_dim = 128;
  cache.page_size = 64;
  cache.page_stride_bytes = 8448;
  EXPECT_EQ(ops::data_offset(cache, 3 * 64 + 7), 26240);
  EXPECT_EQ(ops::scale_offset(cache, 3 * 64 + 7), 33564);
  cache.layout = CacheLayout::kIndexerMxfp4;
  EXPECT_EQ(ops::data_offset(cache, 3 * 64 + 7), 25792);
  EXPECT_EQ(ops::scale_offset(cache, 3 * 64 + 7), 29468);
  cache.layout = CacheLayout::kFp8Mla656;
  cache.head_dim = 576;
  cache.page_stride_bytes = 41984;
  EXPECT_EQ(ops::data_offset(cache, 65), 41984 + 656);
  EXPECT_EQ(ops::scale_offset(cache, 65), 41984 + 656 + 512);
}

class CacheCases : public ::testing::TestWithParam<CacheCase> {};

// All bytes of the cache, those of unwritten slots and between pages included.
TEST_P(CacheCases, WritesTheBytesOfTheDefinition) {
  const CacheCase& c = GetParam();
  test::Random random;
  TestCache expected(c, 0xC7);
  const std::int64_t slots = expected.view().num_slots(), n = std::min<std::int64_t>(slots - 1, 40);
  std::vector<std::int64_t> order(static_cast<std::size_t>(slots));
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(order);
  order.resize(static_cast<std::size_t>(n));
  const std::vector<float> rows = make_rows(random, n, c.head_dim);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i * c.head_dim);
    reference::write_entry({rows.data() + at, static_cast<std::size_t>(c.head_dim)}, expected.view(),
                           order[static_cast<std::size_t>(i)]);
  }
  test::for_each_simd_target([&](const char* target) {
    for (const std::size_t misaligned : {std::size_t{0}, std::size_t{1}}) {
      TestCache cache(c, 0xC7, misaligned);
      const std::vector<float> before = rows;
      cache_write(row_view(rows, n), {order.data(), DType::kInt64, {n}}, cache.view());
      EXPECT_EQ(rows, before);
      ASSERT_EQ(cache.memory().copy(), expected.memory().copy()) << target << " misaligned " << misaligned;
      EXPECT_TRUE(cache.memory().guards_intact());
    }
  });
}

TEST_P(CacheCases, ReadsAnyBytesAsTheDefinition) {
  const CacheCase& c = GetParam();
  test::Random random;
  test::for_each_simd_target([&](const char* target) {
    TestCache cache(c);
    for (auto& byte : cache.memory()) byte = static_cast<std::uint8_t>(random.bits());
    const std::int64_t slots = cache.view().num_slots(), n = std::min<std::int64_t>(slots, 20);
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    for (auto& slot : order) slot = static_cast<std::int32_t>(random.below(slots));
    GuardedBuffer<float> wide(static_cast<std::size_t>(n * c.head_dim));
    GuardedBuffer<std::uint16_t> narrow(wide.size());
    const ConstTensorView slot_view(order.data(), DType::kInt32, {n});
    cache_read(cache.view(), slot_view, {wide.data(), DType::kFloat32, {n, c.head_dim}});
    cache_read(cache.view(), slot_view, {narrow.data(), DType::kBFloat16, {n, c.head_dim}});
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const auto row = i / static_cast<std::size_t>(c.head_dim);
      const auto dim = static_cast<std::int64_t>(i) % c.head_dim;
      // One rounding of an exact product: fp32 of the double is that rounding, since a product of 4 and 24 bits is
      // exact in double.
      const auto expected = static_cast<float>(reference::read_element(cache.view(), order[row], dim));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << target << " row " << row << " dim " << dim;
      } else {
        ASSERT_EQ(wide[i], expected) << target << " row " << row << " dim " << dim;
      }
      ASSERT_EQ(narrow[i], core::float_to_bf16(wide[i])) << target;
    }
    EXPECT_TRUE(wide.guards_intact() && narrow.guards_intact() && cache.memory().guards_intact());
  });
}

TEST_P(CacheCases, RoundTripErrorIsThatOfTheFormat) {
  const CacheCase& c = GetParam();
  test::Random random;
  TestCache cache(c);
  const std::int64_t n = std::min<std::int64_t>(cache.view().num_slots(), 8);
  std::vector<float> rows(static_cast<std::size_t>(n * c.head_dim));
  random.fill_normal(rows);
  std::vector<std::int32_t> slots(static_cast<std::size_t>(n));
  std::iota(slots.begin(), slots.end(), 0);
  const ConstTensorView slot_view(slots.data(), DType::kInt32, {n});
  GuardedBuffer<float> back(rows.size());
  cache_write(row_view(rows, n), slot_view, cache.view());
  cache_read(cache.view(), slot_view, {back.data(), DType::kFloat32, {n, c.head_dim}});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto dim = static_cast<std::int64_t>(i) % c.head_dim;
    const auto form = reference::place(cache.view(), 0, dim).form;
    double bound = 0;
    // Half a unit of the last place. Largest magnitudes are below 8 here (normal, a few thousand draws).
    if (form == reference::ElementPlace::kBFloat16) bound = std::ldexp(std::fabs(rows[i]), -8);
    // bf16 first, then 4 bits of mantissa or half of 2^-9 * scale, scale <= 8 * 2 / 448 < 2^-4 (0.0371 < 2^-4 as well).
    if (form == reference::ElementPlace::kE4m3Ue8m0 || form == reference::ElementPlace::kE4m3Float ||
        form == reference::ElementPlace::kE4m3Global) {
      bound = std::fabs(rows[i]) * (0x1p-4 + 0x1p-8) + 0x1p-14;
    }
    // A quarter of the value (between 4 and 6) or half of 0.5 * scale, scale <= 8 * 2 / 6 < 4.
    if (form == reference::ElementPlace::kE2m1Ue8m0) bound = std::fabs(rows[i]) * (0.25 + 0x1p-8) + 1.0;
    ASSERT_LE(std::fabs(static_cast<double>(back[i]) - rows[i]), bound) << "row element " << i << " " << rows[i];
  }
}

std::string case_name(const ::testing::TestParamInfo<CacheCase>& info) {
  std::ostringstream name;
  name << info.param;
  return name.str();
}
INSTANTIATE_TEST_SUITE_P(Layouts, CacheCases, ::testing::ValuesIn(test::cache_cases()), case_name);

// Two physical pages far apart in a pool of many layers, used in the order [1, 0]; a scale of its own for each entry.
TEST(CacheGeometry, PagesOfASharedPoolInAnyOrder) {
  for (const auto layout : {CacheLayout::kFp8Mla584, CacheLayout::kFp8Mla656, CacheLayout::kIndexerFp8,
                            CacheLayout::kIndexerMxfp4, CacheLayout::kBFloat16}) {
    const std::int64_t only = ops::layout_head_dim(layout), head_dim = only != 0 ? only : 512;
    CacheCase c{layout, head_dim, 64, 2, 0};
    c.extra_stride_bytes = 1039680 - cache_page_bytes(layout, head_dim, 64);
    TestCache cache(c, 0xEE);
    ASSERT_EQ(cache.view().page_stride_bytes, 1039680);
    // Entry t of the request lies in page 1 - t / 64; every value of it is 2^(t % 24 - 12), exact in each format.
    std::vector<float> rows(static_cast<std::size_t>(128 * head_dim));
    std::vector<std::int64_t> slots(128);
    for (std::int64_t t = 0; t < 128; ++t) {
      slots[static_cast<std::size_t>(t)] = (1 - t / 64) * 64 + t % 64;
      std::fill_n(rows.begin() + t * head_dim, head_dim, std::ldexp(1.0F, static_cast<int>(t % 24) - 12));
    }
    cache_write(row_view(rows, 128), {slots.data(), DType::kInt64, {128}}, cache.view());
    for (const std::int64_t t : {0, 1, 63, 64, 65, 127}) {
      std::vector<float> row(static_cast<std::size_t>(head_dim));
      ops::load_entry(cache.view(), slots[static_cast<std::size_t>(t)], row.data());
      for (const float v : row)
        ASSERT_EQ(v, std::ldexp(1.0F, static_cast<int>(t % 24) - 12)) << cache_layout_name(layout);
    }
    // The pool between the pages belongs to others.
    const std::int64_t payload = ops::page_payload_bytes(layout, head_dim, 64);
    for (std::int64_t i = payload; i < 1039680; ++i) ASSERT_EQ(cache.memory()[static_cast<std::size_t>(i)], 0xEE);
  }
}

// Page 0 is a canary: a padding slot that wraps, clamps or is taken as unsigned would hit it or leave the buffer.
TEST(CachePadding, SlotsOutsideTheCacheAreNotTouched) {
  test::Random random;
  for (const CacheCase& c : test::cache_cases()) {
    for (const DType dtype : {DType::kInt32, DType::kInt64}) {
      TestCache cache(c, 0x5A);
      const std::int64_t total = cache.view().num_slots();
      const std::vector<std::int64_t> wide = {-1,
                                              total,
                                              total + 7,
                                              -2,
                                              std::numeric_limits<std::int32_t>::max(),
                                              std::numeric_limits<std::int32_t>::min(),
                                              total - 1};
      std::vector<std::int32_t> narrow(wide.begin(), wide.end());
      const void* data = dtype == DType::kInt32 ? static_cast<const void*>(narrow.data()) : wide.data();
      const ConstTensorView slots(data, dtype, {7});
      const std::vector<float> rows = make_rows(random, 7, c.head_dim);
      TestCache expected(c, 0x5A);
      reference::write_entry({rows.data() + 6 * c.head_dim, static_cast<std::size_t>(c.head_dim)}, expected.view(),
                             total - 1);
      cache_write(row_view(rows, 7), slots, cache.view());
      ASSERT_EQ(cache.memory().copy(), expected.memory().copy()) << c;
      EXPECT_TRUE(cache.memory().guards_intact()) << c;

      GuardedBuffer<float> back(static_cast<std::size_t>(7 * c.head_dim));
      cache_read(cache.view(), slots, {back.data(), DType::kFloat32, {7, c.head_dim}});
      for (std::int64_t i = 0; i < 6 * c.head_dim; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(back[static_cast<std::size_t>(i)]), 0U) << c;
      }
      EXPECT_TRUE(back.guards_intact()) << c;
    }
  }
}

TEST(CachePadding, ExtremeInt64Slots) {
  TestCache cache({CacheLayout::kFp8Mla584, 512, 2, 3, 0}, 0x5A);
  const std::vector<std::uint8_t> before = cache.memory().copy();
  const std::vector<std::int64_t> slots = {std::numeric_limits<std::int64_t>::min(),
                                           std::numeric_limits<std::int64_t>::max(), (std::int64_t{1} << 32) + 1,
                                           -(std::int64_t{1} << 32) + 1};
  const std::vector<float> rows(4 * 512, 1.0F);
  cache_write(row_view(rows, 4), {slots.data(), DType::kInt64, {4}}, cache.view());
  EXPECT_EQ(cache.memory().copy(), before);
}

// Slots past 2^31 and byte offsets past 2^32, in address space that is mostly not there.
TEST(CacheFar, SlotsPastTwoToThe31) {
  struct Far {
    CacheLayout layout;
    std::int64_t head_dim, page_size, stride;
  };
  for (const Far& far : {Far{CacheLayout::kIndexerFp8, 128, 64, 8448}, Far{CacheLayout::kIndexerMxfp4, 128, 64, 8640},
                         Far{CacheLayout::kFp8Mla584, 512, 64, 37440}, Far{CacheLayout::kFp8Mla656, 576, 64, 41984},
                         Far{CacheLayout::kBFloat16, 512, 64, 65536}, Far{CacheLayout::kFp8PerTensor, 16, 64, 1024}}) {
    PagedCache cache;
    cache.layout = far.layout;
    cache.head_dim = far.head_dim;
    cache.page_size = far.page_size;
    cache.page_stride_bytes = far.stride;
    cache.num_pages = (std::int64_t{1} << 31) / 64 + 3;
    test::SparseMemory memory(static_cast<std::size_t>(cache.num_pages * cache.page_stride_bytes));
    if (!memory.valid())
      GTEST_SKIP() << "no address space of " << cache.num_pages * cache.page_stride_bytes << " bytes";
    cache.data = memory.data();
    test::Random random;
    const std::vector<std::int64_t> slots = {-1, 5, (std::int64_t{1} << 31) + 64, (std::int64_t{1} << 31) - 1};
    const std::vector<float> rows = make_rows(random, 4, far.head_dim);
    cache_write(row_view(rows, 4), {slots.data(), DType::kInt64, {4}}, cache);
    for (std::size_t i = 1; i < 4; ++i) {
      // The same entry in a small cache has the same bytes at the far place.
      TestCache near({far.layout, far.head_dim, 64, 1, 0}, 0);
      PagedCache near_cache = near.view();
      near_cache.scale = cache.scale;
      reference::write_entry(
          {rows.data() + i * static_cast<std::size_t>(far.head_dim), static_cast<std::size_t>(far.head_dim)},
          near_cache, slots[i] % 64);
      const std::uint8_t* page = memory.data() + slots[i] / 64 * far.stride;
      ASSERT_EQ(std::vector<std::uint8_t>(page, page + near.memory().size()), near.memory().copy())
          << cache_layout_name(far.layout) << " slot " << slots[i];
      GuardedBuffer<float> back(static_cast<std::size_t>(far.head_dim));
      cache_read(cache, {&slots[i], DType::kInt64, {1}}, {back.data(), DType::kFloat32, {1, far.head_dim}});
      ASSERT_EQ(back[0], static_cast<float>(reference::read_element(near_cache, slots[i] % 64, 0)));
    }
  }
}

// A 2.2 GB pool of many layers, pages 1,077,120 bytes apart: page 1994 is the first past 2^31 bytes.
TEST(CacheFar, PagesOfALargeSharedPool) {
  constexpr std::int64_t kStride = 1077120;
  test::SparseMemory memory(static_cast<std::size_t>(2001 * kStride));
  if (!memory.valid()) GTEST_SKIP() << "no address space";
  PagedCache cache{memory.data(), CacheLayout::kFp8Mla584, 512, 2001, 64, kStride, 1.0F, {}};
  const std::vector<std::int64_t> slots = {1993 * 64 + 63, 1994 * 64, 2000 * 64 + 63};
  std::vector<float> rows(3 * 512);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i / 512 + 1);
  cache_write(row_view(rows, 3), {slots.data(), DType::kInt64, {3}}, cache);
  for (std::size_t i = 0; i < 3; ++i) {
    for (const std::int64_t dim : {0, 447, 448, 511}) {
      EXPECT_EQ(reference::read_element(cache, slots[i], dim), static_cast<double>(i + 1));
    }
  }
}

// Scales of other writers are not powers of two; each is one fp32 product, in either layout that holds fp32 scales.
TEST(CacheScales, AnyFp32ScaleIsReadAsItIs) {
  const float scales[] = {0.7F, 1.0F, 1.3F, 3e-5F};
  TestCache cache({CacheLayout::kFp8Mla656, 576, 64, 1, 0}, 0);
  std::uint8_t* entry = cache.memory().data() + 3 * 656;
  for (std::size_t c = 0; c < 512; ++c) entry[c] = static_cast<std::uint8_t>(0x30 + c % 64);
  std::memcpy(entry + 512, scales, sizeof scales);
  std::vector<float> row(576);
  ops::load_entry(cache.view(), 3, row.data());
  for (std::size_t c = 0; c < 512; ++c) {
    ASSERT_EQ(row[c], core::e4m3_to_float(static_cast<std::uint8_t>(0x30 + c % 64)) * scales[c / 128]);
  }
  TestCache index({CacheLayout::kIndexerFp8, 128, 64, 1, 0}, 0x38);  // 0x38 is 1
  std::memcpy(index.memory().data() + 64 * 128 + 5 * 4, &scales[2], 4);
  ops::load_entry(index.view(), 5, row.data());
  EXPECT_EQ(row[0], 1.3F);
  EXPECT_EQ(row[127], 1.3F);
}

TEST(CacheScales, Mla584WritesSevenScalesAndAZero) {
  TestCache cache({CacheLayout::kFp8Mla584, 512, 64, 1, 0}, 0xFF);
  std::vector<float> row(512, 0.0F);
  for (std::size_t t = 0; t < 7; ++t) row[64 * t + t] = std::ldexp(1.75F, static_cast<int>(t));
  row[511] = 1e30F;  // rope dims have no scale
  ops::store_entry(row.data(), cache.view(), 9);
  const std::uint8_t* scales = cache.memory().data() + 64 * 576 + 9 * 8;
  for (int t = 0; t < 7; ++t) EXPECT_EQ(scales[t], 119 + t);
  EXPECT_EQ(scales[7], 0);
}

// After the Hadamard rotation values are quantised from fp32 (S-4.2): a value just above a midpoint of e4m3 that bf16
// would round onto it tells the two apart.
TEST(CacheScales, RoundingBeforeQuantisationIsTheCallersChoice) {
  std::vector<float> row(128, 0.0F);
  row[0] = 448.0F;
  row[1] = std::nextafter(12.5F, 100.0F);  // midway between 12 and 13: bf16 gives 12.5, which goes to the even 12
  for (const auto layout : {CacheLayout::kIndexerFp8, CacheLayout::kFp8PerTensor}) {
    TestCache cache({layout, 128, 4, 1, 0}, 0);
    PagedCache view = cache.view();
    view.scale = 1.0F;
    ops::store_entry(row.data(), view, 0, true);
    EXPECT_EQ(cache.memory()[1], 0x54);
    ops::store_entry(row.data(), view, 0, false);
    EXPECT_EQ(cache.memory()[1], 0x55);
  }
}

TEST(CacheRows, Bf16RowsAndPaddedStrides) {
  test::Random random;
  for (const CacheCase& c : test::cache_cases()) {
    const std::int64_t n = 3, stride = c.head_dim + 5;
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(n * stride), 0x7FC0);
    std::vector<float> rows(static_cast<std::size_t>(n * c.head_dim));
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        const std::uint16_t value = core::float_to_bf16(random.normal());
        bits[static_cast<std::size_t>(i * stride + d)] = value;
        rows[static_cast<std::size_t>(i * c.head_dim + d)] = core::bf16_to_float(value);
      }
    }
    const std::vector<std::int32_t> slots = {2, 0, 1};
    const ConstTensorView slot_view(slots.data(), DType::kInt32, {n});
    TestCache from_bf16(c, 0x11), from_float(c, 0x11);
    cache_write({bits.data(), DType::kBFloat16, {n, c.head_dim}, {stride, 1}}, slot_view, from_bf16.view());
    cache_write(row_view(rows, n), slot_view, from_float.view());
    ASSERT_EQ(from_bf16.memory().copy(), from_float.memory().copy()) << c;

    GuardedBuffer<float> dense(static_cast<std::size_t>(n * c.head_dim)), padded(static_cast<std::size_t>(n * stride));
    cache_read(from_bf16.view(), slot_view, {dense.data(), DType::kFloat32, {n, c.head_dim}});
    cache_read(from_bf16.view(), slot_view, {padded.data(), DType::kFloat32, {n, c.head_dim}, {stride, 1}});
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t d = 0; d < stride; ++d) {
        const float got = padded[static_cast<std::size_t>(i * stride + d)];
        if (d < c.head_dim) {
          ASSERT_EQ(got, dense[static_cast<std::size_t>(i * c.head_dim + d)]) << c;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(got), 0xFFFFFFFFU) << c;  // the pad keeps its poison
        }
      }
    }
  }
}

TEST(CacheRows, AContiguousTensorIsOnePage) {
  std::vector<float> gathered(10 * 512, 2.5F);
  ConstPagedCache cache{gathered.data(), CacheLayout::kFloat32, 512, 1, 10, 0, 1.0F, {}};  // the stride says nothing
  std::vector<float> row(512);
  const std::int64_t slot = 9;
  cache_read(cache, {&slot, DType::kInt64, {1}}, {row.data(), DType::kFloat32, {1, 512}});
  EXPECT_EQ(row[511], 2.5F);
}

TEST(CacheRows, NothingToDoAndNothingAllocated) {
  TestCache cache({CacheLayout::kFp8Mla584, 512, 64, 2, 0});
  std::vector<float> rows(4 * 512, 1.0F), back(4 * 512);
  const std::vector<std::int64_t> slots = {1, 2, -1, 100};
  const PagedCache view = cache.view();
  const test::AllocationCounter counter;
  cache_write({nullptr, DType::kFloat32, {0, 512}}, {nullptr, DType::kInt64, {0}}, view);
  cache_write({rows.data(), DType::kFloat32, {4, 512}}, {slots.data(), DType::kInt64, {4}}, view);
  cache_read(view, {slots.data(), DType::kInt64, {4}}, {back.data(), DType::kFloat32, {4, 512}});
  EXPECT_EQ(counter.count(), 0);
  EXPECT_EQ(back[0], 1.0F);
  EXPECT_EQ(back[2 * 512], 0.0F);
}

TEST(CacheErrors, NameTheArgumentWhatWasExpectedAndWhatCame) {
  const auto bad = Status::kInvalidArgument;
  EXPECT_TRUE(throws(bad, "cache_entry_bytes: layout has head_dim 128, layout fp8_mla584 has 512",
                     [] { cache_entry_bytes(CacheLayout::kFp8Mla584, 128); }));
  EXPECT_TRUE(throws(bad, "cache_entry_bytes: layout has head_dim 0, must be in [1, 2^31]",
                     [] { cache_entry_bytes(CacheLayout::kBFloat16, 0); }));
  EXPECT_TRUE(throws(bad, "cache_entry_bytes: layout is layout number 99, which does not exist",
                     [] { cache_entry_bytes(static_cast<CacheLayout>(99), 512); }));
  EXPECT_TRUE(throws(bad, "cache_page_bytes: layout has head_dim 512, layout indexer_fp8 has 128",
                     [] { cache_page_bytes(CacheLayout::kIndexerFp8, 512, 64); }));
  EXPECT_TRUE(throws(bad, "cache_page_bytes: page_size is 0, must be in [1, 2^28]",
                     [] { cache_page_bytes(CacheLayout::kIndexerFp8, 128, 0); }));

  TestCache memory({CacheLayout::kFp8Mla584, 512, 64, 2, 0}, 0x42);
  std::vector<float> rows(2 * 512);
  const std::vector<std::int64_t> slots = {0, 1};
  const ConstTensorView row_tensor(rows.data(), DType::kFloat32, {2, 512});
  const ConstTensorView slot_tensor(slots.data(), DType::kInt64, {2});
  const auto write = [&](const char* text, auto change) {
    PagedCache cache = memory.view();
    ConstTensorView r = row_tensor, s = slot_tensor;
    change(cache, r, s);
    EXPECT_TRUE(throws(bad, std::string("cache_write: ") + text, [&] { cache_write(r, s, cache); }));
    TensorView out(rows.data(), r.dtype(), {0, 0});
    if (r.rank() == 2) out = TensorView(rows.data(), r.dtype(), {r.size(0), r.size(1)}, {r.stride(0), r.stride(1)});
    if (r.rank() == 2) {
      EXPECT_TRUE(throws(bad, std::string("cache_read: ") + text, [&] { cache_read(cache, s, out); }));
    }
  };
  using View = ConstTensorView;
  write("cache is absent (page_size 0), must have page_size >= 1", [](auto& c, auto&, auto&) { c = PagedCache{}; });
  write("cache is absent (page_size -64), must have page_size >= 1", [](auto& c, auto&, auto&) { c.page_size = -64; });
  write("cache has page_size 1099511627776, must be in [1, 2^28]",
        [](auto& c, auto&, auto&) { c.page_size = std::int64_t{1} << 40; });
  write("cache has head_dim 576, layout fp8_mla584 has 512", [](auto& c, auto&, auto&) { c.head_dim = 576; });
  write("cache is layout number 7, which does not exist",
        [](auto& c, auto&, auto&) { c.layout = static_cast<CacheLayout>(7); });
  write("cache has num_pages -1, must be >= 0", [](auto& c, auto&, auto&) { c.num_pages = -1; });
  write("cache has page_stride_bytes 37375, must be >= 37376 (64 entries of 584 bytes)",
        [](auto& c, auto&, auto&) { c.page_stride_bytes = 37375; });
  write("cache has page_stride_bytes -37440, must be >= 37376 (64 entries of 584 bytes)",
        [](auto& c, auto&, auto&) { c.page_stride_bytes = -37440; });
  write("cache has 1099511627776 pages, 1099511627776 bytes apart, which 64 bits do not hold",
        [](auto& c, auto&, auto&) {
          c.num_pages = std::int64_t{1} << 40;
          c.page_stride_bytes = std::int64_t{1} << 40;
        });
  write("cache has 2 pages and a null pointer", [](auto& c, auto&, auto&) { c.data = nullptr; });
  for (const float scale : {0.0F, -1.0F}) {
    const std::string text = "cache has scale " + std::string(scale == 0 ? "0" : "-1") + ", must be finite and > 0";
    write(text.c_str(), [&](auto& c, auto&, auto&) {
      c.layout = CacheLayout::kFp8PerTensor;
      c.scale = scale;
    });
  }
  write("cache has scale inf, must be finite and > 0", [](auto& c, auto&, auto&) {
    c.layout = CacheLayout::kFp8PerTensor;
    c.scale = std::numeric_limits<float>::infinity();
  });
  write("rows is fp32 [2, 511], must be fp32 or bf16 [any, 512]", [&](auto&, auto& r, auto&) {
    r = View(rows.data(), DType::kFloat32, {2, 511});
  });
  write("rows is fp16 [2, 512], must be fp32 or bf16 [any, 512]", [&](auto&, auto& r, auto&) {
    r = View(rows.data(), DType::kFloat16, {2, 512});
  });
  write("rows is absent, must be fp32 or bf16 [any, 512]", [](auto&, auto& r, auto&) { r = View(); });
  write("rows has stride 2 in its last dimension, must be contiguous (1)", [&](auto&, auto& r, auto&) {
    r = View(rows.data(), DType::kBFloat16, {2, 512}, {1024, 2});
  });
  write("slots is int64 [1], must be int32 or int64 [2]",
        [&](auto&, auto&, auto& s) { s = View(slots.data(), DType::kInt64, {1}); });
  write("slots is fp32 [2], must be int32 or int64 [2]",
        [&](auto&, auto&, auto& s) { s = View(slots.data(), DType::kFloat32, {2}); });
  write("slots is int64 [2] with a null pointer", [](auto&, auto&, auto& s) { s = View(nullptr, DType::kInt64, {2}); });
  for (const std::uint8_t byte : memory.memory()) ASSERT_EQ(byte, 0x42);  // an error leaves the cache as it was
}

}  // namespace
}  // namespace tamis
