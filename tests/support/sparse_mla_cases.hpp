#pragma once

// Cases of sparse attention with all the memory they need, shared by tests, benchmarks and fuzzers. Every byte of a
// pool that no valid lane refers to is 0xFF: NaN in each number format.

#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "core/float_formats.hpp"
#include "guarded_buffer.hpp"
#include "random.hpp"
#include "sparse_mla/reference.hpp"
#include "tamis/sparse_mla.hpp"

namespace tamis::test {

enum class SlotKind {
  kAllValid,           // distinct slots as far as the pool has them
  kHoles,              // a fifth of the lanes invalid: -1, N, N + 7, INT_MAX, INT_MIN
  kFirstTilesInvalid,  // -1 in the first 16, 32 or 64 lanes (by row), then valid
  kLastOnly,           // one valid lane, the last
  kAllInvalid,
  kDuplicates,  // few slots, each many times
};

struct SourceCase {
  CacheLayout layout = CacheLayout::kFp8Mla584;
  std::int64_t page_size = 64, num_pages = 4;
  std::int64_t topk = -1;  // -1: no such source
  SlotKind slots = SlotKind::kAllValid;
  bool lens = false;  // lengths around every edge; lanes past them hold valid slots and hostile numbers
  std::int64_t page_gap_bytes = 0;
};

struct SparseMlaCase {
  std::string name;
  std::int64_t rows = 1, heads = 4, head_dim_qk = 512;
  SourceCase main = {}, extra = {};
  DType q_dtype = DType::kBFloat16, out_dtype = DType::kBFloat16;
  bool sink = true;
  float softmax_scale = 0;
  float q_size = 1;  // standard deviation of q
  friend std::ostream& operator<<(std::ostream& out, const SparseMlaCase& c) { return out << c.name; }
};

inline std::vector<SparseMlaCase> sparse_mla_cases() {
  using enum SlotKind;
  constexpr auto kFp32 = CacheLayout::kFloat32, kBf16 = CacheLayout::kBFloat16;
  constexpr auto kV4 = CacheLayout::kFp8Mla584, kV32 = CacheLayout::kFp8Mla656;
  constexpr DType f32 = DType::kFloat32, b16 = DType::kBFloat16;
  return {
      // The shapes of models. Pools are small: the number of slots does not matter, the lists do.
      {"v4_flash_decode_c4", 2, 64, 512, {kV4, 64, 4, 128, kHoles}, {kV4, 64, 16, 512, kHoles, true}, b16, b16},
      {"v4_flash_decode_c128", 2, 64, 512, {kV4, 64, 4, 128}, {kV4, 2, 300, 256, kHoles, true}, b16, b16},
      {"v4_flash_decode_window_only", 3, 64, 512, {kV4, 64, 4, 128, kHoles, true}, {}, b16, b16},
      {"v4_pro_decode_c4", 1, 128, 512, {kV4, 64, 4, 128}, {kV4, 64, 16, 1024, kHoles}, b16, b16},
      {"v32_decode", 1, 128, 576, {kV32, 64, 8, 512, kHoles}, {}, b16, b16, false},
      {"v4_prefill_gathered", 6, 8, 512, {kBf16, 700, 1, 640, kHoles, true}, {}, b16, b16},
      {"tiny_v4_fp32", 20, 4, 512, {kFp32, 64, 4, 128, kHoles, true}, {kFp32, 64, 2, 64, kHoles, true}, f32, f32},
      {"tiny_v4_fp8", 20, 4, 512, {kV4, 64, 4, 128, kHoles, true}, {kV4, 64, 2, 64, kHoles, true}, f32, b16},
      // Degenerate sizes.
      {"no_rows", 0, 4, 512, {kFp32, 4, 2, 8}, {}, f32, f32},
      {"no_heads", 3, 0, 512, {kFp32, 4, 2, 8}, {}, f32, f32},
      {"no_lanes", 3, 5, 512, {kFp32, 4, 2, 0}, {kFp32, 4, 2, 0}, f32, f32},
      {"one_of_each", 1, 1, 512, {kFp32, 1, 1, 1}, {}, f32, f32},
      // Head counts on both sides of a tile of 4, key counts on both sides of tiles of 4 and blocks of 64.
      {"heads_3_keys_1", 2, 3, 512, {kBf16, 16, 8, 1}, {}, b16, f32},
      {"heads_5_keys_3", 2, 5, 512, {kBf16, 16, 8, 3}, {}, b16, f32},
      {"heads_7_keys_5", 2, 7, 576, {kBf16, 16, 8, 5}, {}, f32, b16},
      {"heads_9_keys_63", 2, 9, 512, {kBf16, 16, 8, 63}, {}, b16, f32},
      {"heads_17_keys_64", 2, 17, 576, {kFp32, 16, 8, 64}, {}, b16, f32},
      {"heads_33_keys_65", 2, 33, 512, {kBf16, 16, 8, 65}, {}, b16, f32},
      {"heads_2_keys_127", 2, 2, 512, {kBf16, 16, 8, 127}, {}, b16, f32},
      {"heads_6_keys_129", 2, 6, 512, {kBf16, 16, 8, 129}, {}, b16, f32},
      {"heads_130_keys_66", 1, 130, 512, {kV4, 16, 8, 66}, {}, b16, f32},
      // Lists.
      {"first_tiles_invalid", 6, 4, 512, {kV4, 64, 4, 128, kFirstTilesInvalid}, {}, b16, f32},
      {"first_tiles_invalid_both",
       6,
       4,
       512,
       {kV4, 64, 4, 128, kFirstTilesInvalid},
       {kV4, 2, 90, 128, kFirstTilesInvalid},
       b16,
       f32},
      {"last_lane_only", 3, 4, 512, {kV4, 64, 4, 128, kLastOnly}, {}, b16, f32},
      {"last_lane_of_extra_only", 3, 4, 512, {kV4, 64, 4, 128, kAllInvalid}, {kV4, 64, 4, 512, kLastOnly}, b16, f32},
      {"main_only_first", 3, 4, 512, {kV4, 64, 4, 8, kLastOnly}, {kV4, 64, 4, 512, kAllInvalid}, b16, f32},
      {"all_invalid", 3, 4, 512, {kV4, 64, 4, 128, kAllInvalid}, {kV4, 64, 4, 64, kAllInvalid}, b16, b16},
      {"duplicates", 3, 4, 512, {kV4, 64, 4, 128, kDuplicates}, {kV4, 64, 4, 64, kDuplicates}, b16, f32},
      {"lens_everywhere", 24, 4, 512, {kV4, 64, 4, 128, kHoles, true}, {kV4, 64, 9, 512, kHoles, true}, b16, f32},
      // Caches: gaps between pages, layouts mixed, tiny pages.
      {"page_gaps",
       4,
       4,
       512,
       {kV4, 64, 4, 128, kHoles, false, 576 * 7},
       {kV4, 2, 60, 64, kHoles, false, 64},
       b16,
       f32},
      {"mixed_layouts", 4, 4, 512, {kBf16, 3, 50, 100, kHoles}, {kV4, 64, 2, 100, kHoles}, b16, f32},
      {"mixed_layouts_576", 4, 4, 576, {kV32, 3, 50, 100, kHoles}, {kFp32, 7, 20, 100, kHoles}, f32, f32},
      {"empty_pool", 2, 4, 512, {kV4, 64, 0, 128, kHoles}, {kV4, 64, 2, 64, kHoles}, b16, f32},
      // Scales: given, negative, and logits so far apart that one key takes all.
      {"scale_given", 3, 4, 512, {kV4, 64, 4, 128}, {}, b16, f32, true, 0.125F},
      {"scale_negative", 3, 4, 512, {kV4, 64, 4, 128}, {}, b16, f32, true, -0.0625F},
      {"sharp", 3, 4, 512, {kV4, 64, 4, 128}, {kV4, 64, 4, 200}, f32, f32, true, 0, 200.0F},
      {"flat", 3, 4, 512, {kV4, 64, 4, 128}, {kV4, 64, 4, 200}, f32, f32, true, 0, 1e-6F},
  };
}

/// Writes random numbers of moderate size (below 4 in magnitude for fp8, normal otherwise) to one entry of a pool.
inline void fill_sparse_mla_entry(const PagedCache& cache, std::int64_t slot, Random& random) {
  auto* page = static_cast<std::uint8_t*>(cache.data) + (slot / cache.page_size) * cache.page_stride_bytes;
  const std::int64_t entry = slot % cache.page_size;
  const auto codes = [&](std::uint8_t* at, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      at[i] = static_cast<std::uint8_t>(random.below(2) * 0x80 + random.between(0, 0x43));
    }
  };
  const auto bf16s = [&](std::uint8_t* at, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint16_t bits = core::float_to_bf16(random.normal());
      std::memcpy(at + 2 * i, &bits, 2);
    }
  };
  switch (cache.layout) {
    case CacheLayout::kFloat32: {
      for (std::int64_t i = 0; i < cache.head_dim; ++i) {
        const float value = random.normal();
        std::memcpy(page + (entry * cache.head_dim + i) * 4, &value, 4);
      }
      break;
    }
    case CacheLayout::kBFloat16: bf16s(page + entry * cache.head_dim * 2, cache.head_dim); break;
    case CacheLayout::kFp8Mla584: {
      codes(page + entry * 576, 448);
      bf16s(page + entry * 576 + 448, 64);
      std::uint8_t* scales = page + cache.page_size * 576 + entry * 8;
      for (int tile = 0; tile < 7; ++tile) scales[tile] = static_cast<std::uint8_t>(random.between(122, 128));
      break;
    }
    case CacheLayout::kFp8Mla656: {
      codes(page + entry * 656, 512);
      bf16s(page + entry * 656 + 528, 64);
      for (int tile = 0; tile < 4; ++tile) {
        // Neither powers of two nor bf16 numbers: a reader that rounds the scale shows.
        constexpr std::array<float, 4> kScales = {0.7F, 1.0F, 1.3F, 3e-5F};
        const float scale = kScales[static_cast<std::size_t>(random.below(4))];
        std::memcpy(page + entry * 656 + 512 + 4 * tile, &scale, 4);
      }
      break;
    }
    default: FAIL() << "no such layout in sparse attention";
  }
}

/// One source's memory.
class SourceData {
 public:
  SourceData(const SourceCase& c, std::int64_t rows, std::int64_t head_dim, Random& random)
      : case_(c), indices_(static_cast<std::size_t>(c.topk < 0 ? 0 : rows * c.topk)) {
    if (c.topk < 0) return;
    const std::int64_t payload = c.page_size * cache_entry_bytes(c.layout, head_dim);
    const std::int64_t stride = cache_page_bytes(c.layout, head_dim, c.page_size) + c.page_gap_bytes;
    // The last page ends with its payload: reading into its gap would leave the buffer.
    const std::int64_t bytes = c.num_pages == 0 ? 0 : (c.num_pages - 1) * stride + payload;
    pool_ = std::make_unique<GuardedBuffer<std::uint8_t>>(static_cast<std::size_t>(bytes));
    cache_ = {pool_->data(), c.layout, head_dim, c.num_pages, c.page_size, stride};
    const std::int64_t num_slots = cache_.num_slots();
    used_.assign(static_cast<std::size_t>(num_slots), false);

    if (c.lens) {
      const std::int64_t k = c.topk;
      const std::vector<std::int64_t> edges = {k,     -1,    0,     1,       63,      64,     65,
                                               k - 1, k + 1, k / 2, INT_MAX, INT_MIN, k - 63, k - 64};
      for (std::int64_t row = 0; row < rows; ++row) {
        lens_.push_back(static_cast<std::int32_t>(edges[static_cast<std::size_t>(row) % edges.size()]));
      }
    }
    std::vector<std::int64_t> order(static_cast<std::size_t>(num_slots));
    for (std::int64_t slot = 0; slot < num_slots; ++slot) order[static_cast<std::size_t>(slot)] = slot;
    for (std::int64_t row = 0; row < rows; ++row) {
      random.shuffle(order);
      for (std::int64_t lane = 0; lane < c.topk; ++lane) fill_lane(row, lane, order, random);
    }
    for (std::int64_t slot = 0; slot < num_slots; ++slot) {
      if (used_[static_cast<std::size_t>(slot)]) fill_sparse_mla_entry(cache_, slot, random);
    }
  }

  SparseMlaSource source(std::int64_t rows) {
    if (case_.topk < 0) return {};
    SparseMlaSource source;
    source.cache = cache_;
    source.topk_indices = TensorView(indices_.data(), DType::kInt32, {rows, case_.topk});
    if (!lens_.empty()) source.topk_lens = TensorView(lens_.data(), DType::kInt32, {rows});
    return source;
  }
  const PagedCache& cache() const { return cache_; }
  GuardedBuffer<std::int32_t>& indices() { return indices_; }
  std::vector<std::int32_t>& lens() { return lens_; }

 private:
  void fill_lane(std::int64_t row, std::int64_t lane, const std::vector<std::int64_t>& order, Random& random) {
    const std::int64_t num_slots = cache_.num_slots();
    std::int64_t slot = num_slots == 0 ? 0 : order[static_cast<std::size_t>(lane % num_slots)];
    bool valid = true;
    switch (case_.slots) {
      case SlotKind::kAllValid: break;
      case SlotKind::kHoles: valid = !random.chance(0.2); break;
      case SlotKind::kFirstTilesInvalid: valid = lane >= (16 << (row % 3)); break;
      case SlotKind::kLastOnly: valid = lane == case_.topk - 1; break;
      case SlotKind::kAllInvalid: valid = false; break;
      case SlotKind::kDuplicates: slot = order[static_cast<std::size_t>(random.below(3))]; break;
    }
    const std::array<std::int64_t, 5> invalid = {-1, num_slots, num_slots + 7, INT_MAX, INT_MIN};
    const bool past_len = !lens_.empty() && lane >= lens_[static_cast<std::size_t>(row)];
    if (!valid) {
      slot = case_.slots == SlotKind::kHoles ? invalid[static_cast<std::size_t>(random.below(5))] : -1;
    } else if (past_len && random.chance(0.5)) {
      slot = INT_MAX;
    } else if (!past_len && num_slots > 0) {
      used_[static_cast<std::size_t>(slot)] = true;  // a slot only past a length stays NaN
    }
    indices_[static_cast<std::size_t>(row * case_.topk + lane)] = static_cast<std::int32_t>(slot);
  }

  SourceCase case_;
  std::unique_ptr<GuardedBuffer<std::uint8_t>> pool_;
  PagedCache cache_;
  GuardedBuffer<std::int32_t> indices_;
  std::vector<std::int32_t> lens_;
  std::vector<bool> used_;
};

/// A case with its memory, poisoned outputs and workspace.
class SparseMlaData {
 public:
  explicit SparseMlaData(const SparseMlaCase& c, std::uint64_t seed = test_seed())
      : case_(c),
        random_(seed),
        main(c.main, c.rows, c.head_dim_qk, random_),
        extra(c.extra, c.rows, c.head_dim_qk, random_),
        q(static_cast<std::size_t>(c.rows * c.heads * c.head_dim_qk * dtype_bytes(c.q_dtype))),
        out(static_cast<std::size_t>(c.rows * c.heads * 512 * dtype_bytes(c.out_dtype))),
        lse(static_cast<std::size_t>(c.rows * c.heads)),
        max_logits(static_cast<std::size_t>(c.rows * c.heads)) {
    for (std::int64_t i = 0; i < c.rows * c.heads * c.head_dim_qk; ++i) {
      const float value = c.q_size * random_.normal();
      const std::uint16_t bits = core::float_to_bf16(value);
      if (c.q_dtype == DType::kFloat32) std::memcpy(q.data() + 4 * i, &value, 4);
      if (c.q_dtype == DType::kBFloat16) std::memcpy(q.data() + 2 * i, &bits, 2);
    }
    for (std::int64_t head = 0; head < c.heads; ++head) {
      constexpr std::array<float, 7> kSinks = {0.0F, 5.0F, -1e4F, 80.0F, -INFINITY, INFINITY, -0.5F};
      sink.push_back(kSinks[static_cast<std::size_t>(head) % kSinks.size()]);
    }
    args = {};
    args.q = TensorView(q.data(), c.q_dtype, {c.rows, c.heads, c.head_dim_qk});
    args.main = main.source(c.rows);
    args.extra = extra.source(c.rows);
    if (c.sink) args.attn_sink = TensorView(sink.data(), DType::kFloat32, {c.heads});
    args.softmax_scale = c.softmax_scale;
    args.out = TensorView(out.data(), c.out_dtype, {c.rows, c.heads, 512});
    args.lse = TensorView(lse.data(), DType::kFloat32, {c.rows, c.heads});
    args.max_logits = TensorView(max_logits.data(), DType::kFloat32, {c.rows, c.heads});
    args.num_threads = 1;
  }

  /// Gives args a poisoned workspace of the size it asks for. Call after changing anything that the size depends on.
  void make_workspace(std::uint8_t poison = 0xFF) {
    const std::size_t bytes = sparse_mla_workspace_bytes(args);
    workspace = std::make_unique<GuardedBuffer<std::uint8_t>>(bytes, poison);
    args.workspace = workspace->data();
    args.workspace_bytes = bytes;
  }
  void run() {
    make_workspace();
    sparse_mla(args);
    EXPECT_TRUE(workspace->guards_intact());
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(lse.guards_intact());
    EXPECT_TRUE(max_logits.guards_intact());
  }
  /// Element i of out, as a number.
  double out_value(std::size_t i) const {
    if (case_.out_dtype == DType::kFloat32) {
      float value;
      std::memcpy(&value, out.data() + 4 * i, 4);
      return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, out.data() + 2 * i, 2);
    return core::bf16_to_float(bits);
  }

 private:
  SparseMlaCase case_;
  Random random_;

 public:
  SourceData main, extra;
  GuardedBuffer<std::uint8_t> q, out;
  GuardedBuffer<float> lse, max_logits;
  std::vector<float> sink;
  SparseMlaArgs args;
  std::unique_ptr<GuardedBuffer<std::uint8_t>> workspace;
};

/// Whether a SIMD target, by Highway's name, has fused multiply-add: those agree bit for bit.
inline bool target_has_fma(std::string_view name) { return name.starts_with("AVX") || name.starts_with("NEON"); }

/// How far fp32 arithmetic may be from the reference for one (row, head); u = 2^-24 is half an ulp of 1.
struct SparseMlaTolerance {
  double logit, lse, out_relative;

  SparseMlaTolerance(std::int64_t head_dim_qk, double logit_magnitude, double lse_value, std::int64_t num_keys) {
    constexpr double u = 0x1p-24;
    const double blocks = std::ceil(static_cast<double>(num_keys) / 64);
    // A dot product is head_dim / 16 roundings in a lane and 4 in the tree (2 a step without fused multiply-add), then
    // the scale's own rounding and the product with it.
    logit = (2 * static_cast<double>(head_dim_qk) / 16 + 6) * u * logit_magnitude;
    // A weight has its logit's error, the rounding of l - m and of the maxima's steps (at most 87 u each; weights
    // further down are 0), and 1.25 ulp = 2.5 u from exp. Sums: 64 keys in a block, two roundings each without FMA, and
    // per block one rescale by an exp (2.5 u) and two roundings.
    const double sum = logit + (2 * 87 + 2.5 + 2 * 64 + 4.5 * blocks) * u;
    lse = sum + logit + u * std::abs(lse_value);
    out_relative = 2 * sum + 4 * u;  // numerator and denominator, then the division's and product's roundings
  }
};

/// Compares the outputs in data with the reference.
inline void expect_matches_reference(const SparseMlaData& data) {
  const reference::SparseMlaResult want = reference::sparse_mla(data.args);
  const std::int64_t rows = data.args.q.size(0), heads = data.args.q.size(1);
  const bool bf16 = data.args.out.dtype() == DType::kBFloat16;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto pair = static_cast<std::size_t>(row * heads + head);
      SCOPED_TRACE(::testing::Message() << "row " << row << " head " << head);
      const SparseMlaTolerance tolerance(data.args.q.size(2), want.logit_magnitude[pair], want.lse[pair],
                                         want.num_keys[static_cast<std::size_t>(row)]);
      if (std::isinf(want.lse[pair])) {
        ASSERT_EQ(data.lse[pair], want.lse[pair]);
        ASSERT_EQ(data.max_logits[pair], want.max_logits[pair]);
      } else {
        ASSERT_NEAR(data.lse[pair], want.lse[pair], tolerance.lse);
        ASSERT_NEAR(data.max_logits[pair], want.max_logits[pair], tolerance.logit);
      }
      for (std::size_t c = 0; c < 512; ++c) {
        const double expected = want.out[pair * 512 + c];
        double allowed = tolerance.out_relative * want.out_magnitude[pair * 512 + c] + 1e-30;
        if (bf16) allowed += (std::abs(expected) + allowed) * 0x1p-8;  // half an ulp of bf16
        ASSERT_NEAR(data.out_value(pair * 512 + c), expected, allowed) << "dim " << c;
      }
    }
  }
}

}  // namespace tamis::test
