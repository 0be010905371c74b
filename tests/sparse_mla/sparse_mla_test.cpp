// sparse_mla() against its definition, and every line of its contract.

#include "tamis/sparse_mla.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "allocation_counter.hpp"
#include "simd_targets.hpp"
#include "sparse_mla_cases.hpp"

namespace tamis {
namespace {

using test::SlotKind;
using test::SourceCase;
using test::SparseMlaCase;
using test::SparseMlaData;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr auto kV4 = CacheLayout::kFp8Mla584;

// Everything a call wrote, byte for byte.
struct Bits {
  std::vector<std::uint8_t> out;
  std::vector<float> lse, max_logits;
};
Bits bits_of(const SparseMlaData& data) { return {data.out.copy(), data.lse.copy(), data.max_logits.copy()}; }
bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}
::testing::AssertionResult same(const Bits& a, const Bits& b) {
  if (a.out != b.out) return ::testing::AssertionFailure() << "out differs";
  if (!same_bytes(a.lse, b.lse)) return ::testing::AssertionFailure() << "lse differs";
  if (!same_bytes(a.max_logits, b.max_logits)) return ::testing::AssertionFailure() << "max_logits differs";
  return ::testing::AssertionSuccess();
}

class SparseMlaAgrees : public ::testing::TestWithParam<SparseMlaCase> {};

TEST_P(SparseMlaAgrees, WithReference) {
  SparseMlaData data(GetParam());
  data.run();
  test::expect_matches_reference(data);
}

TEST_P(SparseMlaAgrees, OnASecondRunWithADirtyWorkspace) {
  SparseMlaData data(GetParam());
  data.run();
  const Bits first = bits_of(data);
  for (const std::uint8_t poison : {0x00, 0x7F}) {  // zeros; 3.4e38
    data.out.fill(0xFF);
    data.lse.fill(0xFF);
    data.make_workspace(poison);
    sparse_mla(data.args);
    EXPECT_TRUE(same(first, bits_of(data)));
  }
  sparse_mla(data.args);  // the workspace as the call before left it
  EXPECT_TRUE(same(first, bits_of(data)));
}

INSTANTIATE_TEST_SUITE_P(Cases, SparseMlaAgrees, ::testing::ValuesIn(test::sparse_mla_cases()),
                         [](const auto& tested) { return tested.param.name; });

// Embeds a two-dimensional problem in 512 dims: keys (x, y, 0, ...), the logit in a dim of its own past the values.
struct TinyProblem {
  static constexpr std::int64_t kDims = 576;
  std::vector<float> keys, q = std::vector<float>(kDims, 0.0F), out = std::vector<float>(512, NAN);
  std::vector<std::int32_t> indices;
  float sink = 0, lse = NAN, max_logit = NAN;
  SparseMlaArgs args;
  std::vector<std::max_align_t> workspace;

  TinyProblem() { q[kDims - 1] = 1; }
  void add_key(float logit, float x, float y) {
    indices.push_back(static_cast<std::int32_t>(keys.size()) / static_cast<std::int32_t>(kDims));
    keys.resize(keys.size() + kDims, 0.0F);
    keys[keys.size() - kDims] = x;
    keys[keys.size() - kDims + 1] = y;
    keys.back() = logit;
  }
  void run(bool with_sink) {
    const auto n = static_cast<std::int64_t>(keys.size()) / kDims;
    args.q = TensorView(q.data(), DType::kFloat32, {1, 1, kDims});
    args.main.cache = {keys.data(), CacheLayout::kFloat32, kDims, 1, n, n * kDims * 4};
    args.main.topk_indices = TensorView(indices.data(), DType::kInt32, {1, static_cast<std::int64_t>(indices.size())});
    if (with_sink) args.attn_sink = TensorView(&sink, DType::kFloat32, {1});
    args.softmax_scale = 1;
    args.out = TensorView(out.data(), DType::kFloat32, {1, 1, 512});
    args.lse = TensorView(&lse, DType::kFloat32, {1, 1});
    args.max_logits = TensorView(&max_logit, DType::kFloat32, {1, 1});
    args.num_threads = 1;
    std::size_t bytes = sparse_mla_workspace_bytes(args);
    workspace.resize((bytes + 64) / sizeof(std::max_align_t) + 1);
    void* at = workspace.data();
    std::size_t space = bytes + 64;
    args.workspace = std::align(64, bytes, at, space);
    args.workspace_bytes = bytes;
    sparse_mla(args);
  }
};

TEST(SparseMla, GivesTheWorkedExample) {  // S-6.1
  TinyProblem p;
  p.add_key(1, 1, 0);
  p.add_key(0, 0, 1);
  p.add_key(-1, 1, 1);
  p.run(false);
  EXPECT_NEAR(p.lse, 1.4076059644, 2e-7);  // one rounding to fp32, and of a sum of three
  EXPECT_EQ(p.max_logit, 1.0F);
  EXPECT_NEAR(p.out[0], 0.7552715, 2e-7);
  EXPECT_NEAR(p.out[1], 0.3347590, 2e-7);
  p.sink = 0.5F;
  p.run(true);
  EXPECT_NEAR(p.lse, 1.4076059644, 2e-7);  // the sink does not count
  EXPECT_NEAR(p.out[0], 0.5381385, 2e-7);
  EXPECT_NEAR(p.out[1], 0.2385192, 2e-7);
  for (std::size_t c = 2; c < 512; ++c) EXPECT_EQ(p.out[c], 0.0F);
}

TEST(SparseMla, TakesAnExtremeLogitAsItIs) {
  TinyProblem p;
  p.add_key(-524288, 3, -7);
  p.run(false);
  EXPECT_EQ(p.lse, -524288.0F);
  EXPECT_EQ(p.max_logit, -524288.0F);
  EXPECT_EQ(p.out[0], 3.0F);
  EXPECT_EQ(p.out[1], -7.0F);
  p.add_key(524288, 5, 11);  // far above: the first weighs nothing
  p.run(false);
  EXPECT_EQ(p.lse, 524288.0F);
  EXPECT_EQ(p.out[0], 5.0F);
  EXPECT_EQ(p.out[1], 11.0F);
}

TEST(SparseMla, RescalesAcrossBlocksWhenTheMaximumRises) {
  TinyProblem p;
  for (int k = 0; k < 64; ++k) p.add_key(-524288, 100, 100);
  for (int k = 0; k < 64; ++k) p.add_key(0, 1, 2);
  for (int k = 0; k < 64; ++k) p.add_key(-100, 50, 50);
  p.run(false);
  EXPECT_EQ(p.max_logit, 0.0F);
  EXPECT_NEAR(p.lse, std::log(64.0), 3e-7);
  EXPECT_NEAR(p.out[0], 1.0, 2e-7);
  EXPECT_NEAR(p.out[1], 2.0, 4e-7);
}

TEST(SparseMla, CountsADuplicateTwice) {
  TinyProblem p;
  p.add_key(0, 1, 0);
  p.add_key(0, 0, 1);
  p.indices.push_back(0);
  p.run(false);
  EXPECT_NEAR(p.out[0], 2.0 / 3, 1e-7);
  EXPECT_NEAR(p.out[1], 1.0 / 3, 1e-7);
  EXPECT_NEAR(p.lse, std::log(3.0), 2e-7);
}

TEST(SparseMla, AddsTheSinkToTheDenominatorOnly) {
  for (const float logit : {0.0F, -524288.0F, 60.0F}) {
    TinyProblem p;
    p.add_key(logit, 4, 0);
    p.run(false);
    const float plain = p.out[0];
    for (const float sink : {-kInfinity, -1e4F, 0.0F, 5.0F, 80.0F, kInfinity}) {
      p.sink = sink;
      p.run(true);
      const double want = 4 / (1 + std::exp(static_cast<double>(sink) - logit));
      EXPECT_NEAR(p.out[0], want, want * 3e-7) << logit << " " << sink;
      EXPECT_EQ(p.lse, logit);
      if (sink == -kInfinity) {
        EXPECT_EQ(p.out[0], plain);
      }
      if (sink == kInfinity) {
        EXPECT_EQ(p.out[0], 0.0F);
      }
    }
  }
}

TEST(SparseMla, GivesZeroForARowWithoutKeysWithAnySink) {
  for (const float sink : {-kInfinity, -1e4F, 0.0F, 80.0F, kInfinity}) {
    for (const std::int32_t slot : {-1, 1, INT_MAX, INT_MIN}) {
      TinyProblem p;
      p.add_key(0, 1, 1);
      p.indices = {slot, slot};
      p.sink = sink;
      p.run(true);
      EXPECT_TRUE(std::all_of(p.out.begin(), p.out.end(), [](float v) { return v == 0; }));
      EXPECT_EQ(p.lse, -kInfinity);
      EXPECT_EQ(p.max_logit, -kInfinity);
    }
  }
}

TEST(SparseMla, KeepsNanOfAKeyThatIsUsedInItsRow) {
  SparseMlaCase c{"", 3, 5, 512, {CacheLayout::kFloat32, 16, 8, 100}};
  c.out_dtype = DType::kFloat32;
  SparseMlaData data(c);
  const PagedCache& cache = data.main.cache();
  // Row 1 alone refers to a NaN key; the others' lists lose that slot.
  const std::int32_t bad = data.main.indices()[150];
  for (std::size_t i = 0; i < data.main.indices().size(); ++i) {
    if (i / 100 != 1 && data.main.indices()[i] == bad) data.main.indices()[i] = -1;
  }
  static_cast<float*>(cache.data)[bad * 512 + 7] = NAN;
  data.run();
  for (std::size_t pair = 0; pair < 15; ++pair) {
    const bool hit = pair / 5 == 1;
    EXPECT_EQ(std::isnan(data.lse[pair]), hit);
    EXPECT_EQ(std::isnan(data.max_logits[pair]), hit);
    for (std::size_t d : {0U, 7U, 511U}) EXPECT_EQ(std::isnan(data.out_value(pair * 512 + d)), hit);
  }
}

TEST(SparseMla, TreatsLogitsOfMinusInfinityAsNoKeys) {
  TinyProblem p;
  p.add_key(-kInfinity, 1, 1);
  p.add_key(-kInfinity, 1, 1);
  p.run(false);
  EXPECT_EQ(p.lse, -kInfinity);
  EXPECT_EQ(p.out[0], 0.0F);
  p.add_key(2, 3, 4);
  p.run(false);
  EXPECT_EQ(p.lse, 2.0F);
  EXPECT_EQ(p.out[0], 3.0F);
}

TEST(SparseMla, DoesNotSeeWhereInvalidLanesStand) {
  SparseMlaCase c{"", 6, 9, 512, {kV4, 64, 4, 128, SlotKind::kFirstTilesInvalid}, {kV4, 2, 90, 140, SlotKind::kHoles}};
  SparseMlaData data(c);
  data.run();
  const Bits before = bits_of(data);
  // The same valid lanes in the same order, first spread out by the case, now pushed to the front.
  for (auto* source : {&data.main, &data.extra}) {
    const auto topk = static_cast<std::ptrdiff_t>(source->indices().size() / 6);
    for (std::ptrdiff_t row = 0; row < 6; ++row) {
      std::int32_t* list = source->indices().data() + row * topk;
      const std::int64_t num_slots = source->cache().num_slots();
      auto* end = std::stable_partition(list, list + topk, [&](std::int32_t s) { return s >= 0 && s < num_slots; });
      ASSERT_NE(end, list + topk);
      std::fill(end, list + topk, -1);
    }
  }
  data.run();
  EXPECT_TRUE(same(before, bits_of(data)));
}

TEST(SparseMla, NeverReadsLanesPastTheLength) {
  // 65 rows with random lengths; lanes past them hold valid slots of keys that would win, then hostile numbers, then
  // -1.
  SparseMlaCase c{"", 65, 2, 512, {kV4, 64, 4, 200}, {kV4, 64, 4, 150}};
  SparseMlaData data(c);
  test::Random random;
  std::vector<std::int32_t> lens[2];
  test::SourceData* sources[2] = {&data.main, &data.extra};
  SparseMlaSource* args[2] = {&data.args.main, &data.args.extra};
  for (int s = 0; s < 2; ++s) {
    const std::int64_t topk = s == 0 ? 200 : 150;
    for (int row = 0; row < 65; ++row) lens[s].push_back(static_cast<std::int32_t>(random.between(0, topk)));
    args[s]->topk_lens = TensorView(lens[s].data(), DType::kInt32, {65});
  }
  data.run();
  const Bits before = bits_of(data);
  for (const std::int32_t hostile : {-1, INT_MAX, INT_MIN, 256}) {
    for (int s = 0; s < 2; ++s) {
      const std::int64_t topk = s == 0 ? 200 : 150;
      for (std::int64_t row = 0; row < 65; ++row) {
        for (std::int64_t lane = lens[s][static_cast<std::size_t>(row)]; lane < topk; ++lane) {
          sources[s]->indices()[static_cast<std::size_t>(row * topk + lane)] = hostile;
        }
      }
    }
    data.run();
    EXPECT_TRUE(same(before, bits_of(data))) << hostile;
  }
}

TEST(SparseMla, LeavesItsInputsAlone) {
  SparseMlaData data({"", 3, 4, 512, {kV4, 64, 4, 128, SlotKind::kHoles, true}, {kV4, 64, 4, 64}});
  const auto q = data.q.copy();
  const auto indices = data.main.indices().copy();
  const auto* pool = static_cast<const std::uint8_t*>(data.main.cache().data);
  const std::vector<std::uint8_t> bytes(pool, pool + 4 * data.main.cache().page_stride_bytes - 64);
  data.run();
  EXPECT_EQ(q, data.q.copy());
  EXPECT_EQ(indices, data.main.indices().copy());
  EXPECT_EQ(0, std::memcmp(bytes.data(), pool, bytes.size()));
}

TEST(SparseMla, WritesOnlyWhatIsAskedFor) {
  SparseMlaData data({"", 3, 5, 512, {kV4, 64, 4, 128}});
  data.run();
  const Bits all = bits_of(data);
  data.out.fill(0xFF);
  data.lse.fill(0xFF);
  data.max_logits.fill(0xFF);
  data.args.lse = {};
  data.args.max_logits = {};
  data.run();
  EXPECT_EQ(all.out, data.out.copy());
  for (const float value : data.lse) EXPECT_TRUE(std::isnan(value));
  for (const float value : data.max_logits) EXPECT_TRUE(std::isnan(value));
}

TEST(SparseMla, TakesStridedAndMisalignedViews) {
  const SparseMlaCase c{"", 5, 6, 512, {kV4, 64, 4, 100, SlotKind::kHoles}, {kV4, 64, 2, 50}};
  SparseMlaData data(c);
  data.run();
  const Bits dense = bits_of(data);
  // Heads outermost in q, padded rows in everything, bases off by one element.
  test::GuardedBuffer<std::uint16_t> q(6 * 5 * 520, 0xFF, 2), out(5 * 6 * 515 + 3, 0xFF, 2);
  test::GuardedBuffer<std::int32_t> indices(5 * 107, 0xFF, 4);
  test::GuardedBuffer<float> lse(5 * 11, 0xFF, 4), max_logits(5 * 6, 0xFF, 4), sink(6, 0xFF, 4);
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t head = 0; head < 6; ++head) {
      std::memcpy(&q[(head * 5 + row) * 520], data.q.data() + (row * 6 + head) * 1024, 1024);
    }
    std::memcpy(&indices[row * 107], &data.main.indices()[row * 100], 400);
    for (std::size_t lane = 100; lane < 107; ++lane) indices[row * 107 + lane] = 1;
  }
  std::copy(data.sink.begin(), data.sink.end(), sink.data());
  data.args.q = TensorView(q.data(), DType::kBFloat16, {5, 6, 512}, {520, 5 * 520, 1});
  data.args.main.topk_indices = TensorView(indices.data(), DType::kInt32, {5, 100}, {107, 1});
  data.args.attn_sink = TensorView(sink.data(), DType::kFloat32, {6});
  data.args.out = TensorView(out.data(), DType::kBFloat16, {5, 6, 512}, {6 * 515, 515, 1});
  data.args.lse = TensorView(lse.data(), DType::kFloat32, {5, 6}, {11, 1});
  data.args.max_logits = TensorView(max_logits.data(), DType::kFloat32, {5, 6});
  data.run();
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t head = 0; head < 6; ++head) {
      EXPECT_EQ(0, std::memcmp(&out[(row * 6 + head) * 515], dense.out.data() + (row * 6 + head) * 1024, 1024));
      for (std::size_t pad = 512; pad < 515; ++pad) EXPECT_EQ(out[(row * 6 + head) * 515 + pad], 0xFFFF);
      EXPECT_EQ(lse[row * 11 + head], dense.lse[row * 6 + head]);
      EXPECT_EQ(max_logits[row * 6 + head], dense.max_logits[row * 6 + head]);
    }
    for (std::size_t pad = 6; pad < 11; ++pad) EXPECT_TRUE(std::isnan(lse[row * 11 + pad]));
  }
  EXPECT_TRUE(out.guards_intact());
  EXPECT_TRUE(lse.guards_intact());
  EXPECT_TRUE(max_logits.guards_intact());
}

TEST(SparseMla, GivesARowTheSameBitsInAnyBatch) {
  const SparseMlaCase c{"", 33, 4, 512, {kV4, 64, 4, 128, SlotKind::kHoles, true}, {kV4, 64, 4, 64, SlotKind::kHoles}};
  SparseMlaData data(c);
  data.run();
  const Bits batch = bits_of(data);
  for (const std::int64_t row : {0, 1, 15, 31, 32}) {
    std::vector<float> out_bytes(4 * 256), lse(4), max_logits(4);
    SparseMlaArgs args = data.args;
    args.q = TensorView(data.q.data() + row * 4 * 1024, DType::kBFloat16, {1, 4, 512});
    args.main.topk_indices = TensorView(data.main.indices().data() + row * 128, DType::kInt32, {1, 128});
    args.main.topk_lens = TensorView(data.main.lens().data() + row, DType::kInt32, {1});
    args.extra.topk_indices = TensorView(data.extra.indices().data() + row * 64, DType::kInt32, {1, 64});
    args.out = TensorView(out_bytes.data(), DType::kBFloat16, {1, 4, 512});
    args.lse = TensorView(lse.data(), DType::kFloat32, {1, 4});
    args.max_logits = TensorView(max_logits.data(), DType::kFloat32, {1, 4});
    sparse_mla(args);
    EXPECT_EQ(0, std::memcmp(out_bytes.data(), batch.out.data() + row * 4 * 1024, 4096)) << row;
    EXPECT_EQ(0, std::memcmp(lse.data(), batch.lse.data() + row * 4, 16)) << row;
    EXPECT_EQ(0, std::memcmp(max_logits.data(), batch.max_logits.data() + row * 4, 16)) << row;
  }
}

TEST(SparseMla, GivesAHeadTheSameBitsInAnyGroup) {
  const SparseMlaCase c{"", 2, 37, 576, {CacheLayout::kFp8Mla656, 16, 20, 150, SlotKind::kHoles}};
  SparseMlaData data(c);
  data.run();
  const Bits together = bits_of(data);
  for (const std::int64_t head : {0, 3, 4, 17, 36}) {
    for (std::int64_t heads = 1; heads <= std::min<std::int64_t>(6, 37 - head); ++heads) {
      std::vector<std::uint16_t> out(static_cast<std::size_t>(2 * heads * 512));
      SparseMlaArgs args = data.args;
      args.q = TensorView(data.q.data() + head * 576 * 2, DType::kBFloat16, {2, heads, 576}, {37 * 576, 576, 1});
      args.attn_sink = TensorView(data.sink.data() + head, DType::kFloat32, {heads});
      args.out = TensorView(out.data(), DType::kBFloat16, {2, heads, 512});
      args.lse = {};
      args.max_logits = {};
      sparse_mla(args);
      for (std::int64_t row = 0; row < 2; ++row) {
        EXPECT_EQ(0, std::memcmp(out.data() + row * heads * 512, together.out.data() + (row * 37 + head) * 1024,
                                 static_cast<std::size_t>(heads) * 1024));
      }
    }
  }
}

TEST(SparseMla, AgreesOnEverySimdTargetAndBitwiseWhereFmaIs) {
  const SparseMlaCase cases[] = {
      {"", 3, 7, 512, {kV4, 64, 4, 128, SlotKind::kHoles}, {kV4, 64, 4, 77, SlotKind::kHoles}},
      {"", 2, 4, 576, {CacheLayout::kFp8Mla656, 64, 4, 131}},
  };
  for (const SparseMlaCase& c : cases) {
    SparseMlaData data(c);
    std::vector<Bits> with_fma;
    test::for_each_simd_target([&](const char* name) {
      SCOPED_TRACE(name);
      data.out.fill(0xFF);
      data.run();
      test::expect_matches_reference(data);
      if (test::target_has_fma(name)) with_fma.push_back(bits_of(data));
    });
    for (const Bits& bits : with_fma) EXPECT_TRUE(same(with_fma.front(), bits));
  }
}

TEST(SparseMla, DoesNotAllocateOnOneThread) {
  SparseMlaData data({"", 3, 64, 512, {kV4, 64, 4, 128, SlotKind::kHoles, true}, {kV4, 64, 4, 200}});
  data.make_workspace();
  sparse_mla(data.args);  // the first call may set up dispatch
  test::AllocationCounter counter;
  sparse_mla(data.args);
  const std::size_t bytes = sparse_mla_workspace_bytes(data.args);
  EXPECT_EQ(counter.count(), 0);
  EXPECT_EQ(bytes, data.args.workspace_bytes);
}

TEST(SparseMla, AsksForAWorkspaceThatDoesNotGrowWithLists) {
  SparseMlaData narrow({"", 1, 64, 512, {kV4, 64, 1, 1}});
  SparseMlaData wide({"", 40, 64, 512, {kV4, 64, 200, 8192}});
  EXPECT_EQ(sparse_mla_workspace_bytes(narrow.args), sparse_mla_workspace_bytes(wide.args));
  EXPECT_LT(sparse_mla_workspace_bytes(wide.args), std::size_t{512} << 10);
}

}  // namespace
}  // namespace tamis
