// Padding, far slots, errors, allocations, instruction sets, threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/compressor_cases.hpp"
#include "support/expect_error.hpp"
#include "support/simd_targets.hpp"
#include "support/sparse_memory.hpp"
#include "tamis/compressor.hpp"

namespace tamis::test {
namespace {

// An fp32 entry that nothing was written to.
std::vector<std::uint8_t> untouched(const CompressorRig& rig) {
  return std::vector<std::uint8_t>(static_cast<std::size_t>(4 * rig.shape().head_dim), 0xFF);
}

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// A captured step of 16 tokens replayed with fewer: padding carries stale positions, requests and slots.
TEST(CompressorPadding, HasNoEffect) {
  for (const char* name : {"c4_fp32", "c4_ring", "c128_paged", "c128_ring"}) {
    const CompressorShape shape = small_shape(compressor_shape(name));
    const std::int64_t start = shape.ratio - 4;
    CompressorRig clean(shape, 3, 4 * shape.ratio);
    clean.run({{0, 0, start, 0}, {1, 0, start, 1}});
    clean.run({{0, start, 6, 0}, {1, start, 3, 1}});
    for (int kind = 0; kind < 7; ++kind) {
      CompressorRig rig(shape, 3, 4 * shape.ratio);
      rig.run({{0, 0, start, 0}, {1, 0, start, 1}});
      CompressorStep step = rig.build({{0, start, 6, 0}, {1, start, 3, 1}, {2, 2 * shape.ratio - 4, 7, 2}});
      // The third request is padding now, in one of the ways that engines leave it.
      for (std::size_t i = 9; i < 16; ++i) {
        switch (kind) {
          case 0: step.positions[i] = -1; break;
          case 1: step.token_to_request[i] = -1; break;
          case 2: step.token_to_request[i] = 3; break;
          case 3: step.token_to_request[i] = std::numeric_limits<std::int32_t>::min(); break;
          case 4: step.positions[i] = std::numeric_limits<std::int64_t>::min(); break;
          case 5: step.token_to_request[i] = 1; break;  // stale: names a request whose range ended before
          default: break;
        }
      }
      if (kind == 6) step.query_start_loc[3] = step.query_start_loc[2];  // the request has no tokens in this replay
      rig.run(step);
      EXPECT_EQ(rig.cache_bytes(), clean.cache_bytes()) << name << " kind " << kind;
      EXPECT_EQ(rig.all_state_bytes(), clean.all_state_bytes()) << name << " kind " << kind;
    }
  }
}

TEST(CompressorPadding, OnlyPadding) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"));
  CompressorRig rig(shape, 1, 16);
  CompressorStep step = rig.build({{0, 0, 8, 0}});
  step.positions.assign(8, -1);
  rig.run(step);
  step.positions = {0, 1, 2, 3, 4, 5, 6, 7};
  step.query_start_loc = {0};  // no request at all
  rig.run(step);
  EXPECT_EQ(rig.cache_bytes(), std::vector<std::uint8_t>(rig.cache_bytes().size(), 0xFF));
  EXPECT_EQ(rig.all_state_bytes(), std::vector<std::uint8_t>(rig.all_state_bytes().size(), 0xFF));
  CompressorStep empty = rig.build({{0, 0, 0, 0}});
  rig.run(empty);
}

// Slots outside the cache or the state write nothing; each of the two acts alone.
TEST(CompressorPadding, SlotsOutOfRange) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"));
  CompressorRig clean(shape, 1, 16);
  clean.run({{0, 0, 8, 0}});
  for (const std::int64_t bad : {std::int64_t{-1}, -kHuge - 1, kHuge, std::int64_t{1} << 40}) {
    CompressorRig rig(shape, 1, 16);
    CompressorStep step = rig.build({{0, 0, 8, 0}});
    step.kv_slots[3] = bad;
    rig.run(step);
    EXPECT_EQ(rig.entry_bytes(0, 0), untouched(rig));
    EXPECT_EQ(rig.entry_bytes(0, 1), clean.entry_bytes(0, 1));
    EXPECT_EQ(rig.all_state_bytes(), clean.all_state_bytes());

    CompressorRig unsaved(shape, 1, 16);
    step = unsaved.build({{0, 0, 8, 0}});
    step.state_slots[3] = bad;
    unsaved.run(step);
    EXPECT_EQ(unsaved.cache_bytes(), clean.cache_bytes());
    EXPECT_EQ(unsaved.state_bytes(0, 3, 4), std::vector<std::uint8_t>(unsaved.state_bytes(0, 3, 4).size(), 0xFF));
    EXPECT_EQ(unsaved.state_bytes(0, 4, 8), clean.state_bytes(0, 4, 8));
  }
  // One past the last slot, which is the smallest wrong one.
  CompressorRig rig(shape, 1, 16);
  CompressorStep step = rig.build({{0, 0, 8, 0}});
  step.kv_slots[3] = rig.cache().num_slots();
  rig.run(step);
  EXPECT_EQ(rig.entry_bytes(0, 0), untouched(rig));
}

// A slot at a token that completes nothing is not used.
TEST(CompressorPadding, SlotOfATokenThatCompletesNothing) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"));
  CompressorRig clean(shape, 1, 16);
  clean.run({{0, 0, 8, 0}});
  CompressorRig rig(shape, 1, 16);
  CompressorStep step = rig.build({{0, 0, 8, 0}});
  step.kv_slots[5] = rig.entry_slot(0, 2);
  rig.run(step);
  EXPECT_EQ(rig.cache_bytes(), clean.cache_bytes());
}

// Stale numbers everywhere: nothing may be read or written out of bounds (the sanitizers and the guards watch).
TEST(CompressorPadding, RandomNumbersStayInBounds) {
  Random random;
  for (const char* name : {"c4_fp32", "c4_ring", "c128_paged", "c128_ring"}) {
    const CompressorShape shape = small_shape(compressor_shape(name));
    const auto any = [&](std::int64_t near) {
      switch (random.below(4)) {
        case 0: return random.between(-2, near + 2);
        case 1: return static_cast<std::int64_t>(random.bits());
        case 2: return kHuge - random.below(200);
        default: return random.between(0, near);
      }
    };
    for (int round = 0; round < 200; ++round) {
      CompressorRig rig(shape, 2, 300);
      rig.outcome_is_defined = false;  // positions that jump, rows that two tokens write
      CompressorStep step = rig.build({{0, 0, 5, 0}, {1, 120, 9, 1}});
      for (std::size_t i = 0; i < step.positions.size(); ++i) {
        if (random.chance(0.4)) step.positions[i] = any(300);
        if (random.chance(0.3)) step.token_to_request[i] = static_cast<std::int32_t>(any(2));
        if (random.chance(0.3)) step.kv_slots[i] = any(rig.cache().num_slots());
        if (random.chance(0.3)) step.state_slots[i] = any(400);
      }
      for (auto& value : step.query_start_loc) {
        if (random.chance(0.3)) value = static_cast<std::int32_t>(any(14));
      }
      for (auto& value : rig.step_state()) {
        if (random.chance(0.2)) value = static_cast<std::int32_t>(any(40));
      }
      rig.run(step);
    }
  }
}

TEST(CompressorPadding, EntryPastTheCosSinTableIsNotWritten) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"));
  CompressorRig rig(shape, 1, 16);
  CompressorStep step = rig.build({{0, 0, 8, 0}});
  CompressArgs args = rig.args(step);
  args.cos_sin = {args.cos_sin.data(), DType::kFloat32, {4, 64}, {args.cos_sin.stride(0), 1}};
  compress(args);  // rows 0..3: entry 0 is rotated at 0, entry 1 would be at 4
  EXPECT_NE(rig.entry_bytes(0, 0), untouched(rig));
  EXPECT_EQ(rig.entry_bytes(0, 1), untouched(rig));
}

// Offsets beyond 2^31 in elements, rows and slots: sparse memory, of which a few pages exist.
TEST(CompressorFarSlots, StateAndCachePast32Bits) {
  constexpr std::int64_t kDim = 64;
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;  // a slot, of entries of 128 bytes: 256 GiB
  constexpr std::int64_t kBlocks = kFar / 4 + 8;
  const SparseMemory state(static_cast<std::size_t>(kBlocks * 4 * 2 * kDim * 2));
  const SparseMemory entries(static_cast<std::size_t>((kFar + 64) * kDim * 2));
  if (!state.valid() || !entries.valid()) GTEST_SKIP() << "the system gives no sparse memory of this size";
  CompressorShape shape = small_shape(compressor_shape("c128_ring_bf16"), 64);
  shape.layout = CacheLayout::kBFloat16;
  shape.ratio = 4;
  shape.ring = false;
  shape.state_block = 4;
  CompressorRig near(shape, 1, 16);
  near.run({{0, 0, 6, 0}});
  near.run({{0, 6, 2, 0}});
  for (const std::int64_t part : {0, 6}) {
    CompressorStep step = near.build({{0, part, part == 0 ? 6 : 2, 0}});
    for (std::int64_t i = 0; i < step.tokens(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (step.kv_slots[at] >= 0) step.kv_slots[at] = kFar + (part + i) / 4;
      step.state_slots[at] = kFar + part + i;
    }
    const std::int32_t table[2] = {kFar / 4, kFar / 4 + 1};
    CompressArgs args = near.args(step);
    args.state = {state.data(), DType::kBFloat16, {kBlocks, 4, 2 * kDim}};
    args.state_table = {table, DType::kInt32, {1, 2}};
    args.cache.data = entries.data();
    args.cache.page_size = 64;
    args.cache.page_stride_bytes = 64 * kDim * 2;
    args.cache.num_pages = kFar / 64 + 1;
    compress(args);
  }
  for (std::int64_t j = 0; j < 2; ++j) {
    const std::uint8_t* entry = entries.data() + (kFar + j) * kDim * 2;
    EXPECT_EQ(std::vector<std::uint8_t>(entry, entry + kDim * 2), near.entry_bytes(0, j)) << j;
  }
}

TEST(CompressorErrors, NameArgumentExpectedAndGot) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"), 64);
  CompressorShape ring_shape = small_shape(compressor_shape("c4_ring"), 64);
  CompressorRig rig(shape, 2, 16);
  CompressorRig ring(ring_shape, 2, 16);
  const CompressorStep step = rig.build({{0, 0, 8, 0}, {1, 0, 4, 0}});
  const CompressorStep ring_step = ring.build({{0, 0, 8, 0}, {1, 0, 4, 0}});
  const CompressArgs good = rig.args(step);
  const CompressArgs good_ring = ring.args(ring_step);
  alignas(64) static std::byte memory[8192];

  const auto fails = [](const std::string& text, CompressArgs args, auto change,
                        Status status = Status::kInvalidArgument) {
    change(args);
    EXPECT_TRUE(throws(status, text, [&] { compress(args); }));
  };
  using A = CompressArgs&;
  fails("compress: compress_ratio is 0, must be in [1, 1024]", good, [](A a) { a.compress_ratio = 0; });
  fails("compress: compress_ratio is 1025, must be in [1, 1024]", good, [](A a) { a.compress_ratio = 1025; });
  fails("compress: cache.head_dim is 63, must be in [64, 1048576]", good, [](A a) { a.cache.head_dim = 63; });
  fails("compress: cache.head_dim is 1048577, must be in [64, 1048576]", good, [](A a) { a.cache.head_dim = 1048577; });
  fails("compress: num_threads is -3, must be >= 0", good, [](A a) { a.num_threads = -3; });
  fails("compress: rms_norm_eps is -1, must be finite and >= 0", good, [](A a) { a.rms_norm_eps = -1; });
  fails("compress: rms_norm_eps is nan, must be finite and >= 0", good, [](A a) { a.rms_norm_eps = NAN; });
  fails("compress: rms_norm_eps is inf, must be finite and >= 0", good, [](A a) { a.rms_norm_eps = INFINITY; });
  fails("compress: kv is fp32 [12, 128], must be fp32 or bf16 [any, 64]", good, [](A a) { a.overlap = false; });
  fails("compress: kv is fp16 [12, 128], must be fp32 or bf16 [any, 128]", good, [](A a) {
    a.kv = {a.kv.data(), DType::kFloat16, {12, 128}};
  });
  fails("compress: gate is bf16 [12, 128], must be fp32 [12, 128]", good, [](A a) {
    a.gate = {a.gate.data(), DType::kBFloat16, {12, 128}};
  });
  fails("compress: gate is fp32 [11, 128], must be fp32 [12, 128]", good, [](A a) {
    a.gate = {a.gate.data(), DType::kFloat32, {11, 128}};
  });
  fails("compress: kv has stride 2 in its last dimension, must be contiguous (1)", good, [](A a) {
    a.kv = {a.kv.data(), DType::kFloat32, {12, 128}, {256, 2}};
  });
  fails("compress: ape is fp32 [4, 128], must be fp32 [5, 128]", good, [](A a) { a.compress_ratio = 5; });
  fails("compress: norm_weight is absent, must be fp32 [64]", good, [](A a) { a.norm_weight = {}; });
  fails("compress: cos_sin is fp32 [4, 32], must be fp32 [any, 64]", good, [](A a) {
    a.cos_sin = {a.cos_sin.data(), DType::kFloat32, {4, 32}};
  });
  fails("compress: positions is int32 [12], must be int64 [12]", good, [](A a) {
    a.positions = {a.positions.data(), DType::kInt32, {12}};
  });
  fails("compress: token_to_request is absent, must be int32 [12]", good, [](A a) { a.token_to_request = {}; });
  fails("compress: query_start_loc is int64 [3], must be int32 [any]", good, [](A a) {
    a.query_start_loc = {a.query_start_loc.data(), DType::kInt64, {3}};
  });
  fails("compress: query_start_loc is empty, must have requests + 1 elements", good, [](A a) {
    a.query_start_loc = {a.query_start_loc.data(), DType::kInt32, {0}};
  });
  fails("compress: state is absent, must be fp32 or bf16 [any, any, 256]", good, [](A a) { a.state = {}; });
  fails("compress: state has 0 rows a block, must be >= 1", good, [](A a) {
    a.state = {a.state.data(), DType::kFloat32, {4, 0, 256}};
  });
  fails("compress: state has rows 255 apart, must be >= their width 256", good, [](A a) {
    a.state = {a.state.data(), DType::kFloat32, {4, 4, 256}, {1024, 255, 1}};
  });
  fails("compress: state has blocks 1023 apart, must be >= their extent 1024", good, [](A a) {
    a.state = {a.state.data(), DType::kFloat32, {4, 4, 256}, {1023, 256, 1}};
  });
  fails("compress: state_table with state_slots or state_ring must be given, none is", good, [](A a) {
    a.state_table = {};
    a.state_slots = {};
  });
  fails("compress: state_ring and state_table or state_slots are given, must be one form", good, [](A a) {
    a.state_ring = {a.state_table.data(), DType::kInt32, {2}};
  });
  fails("compress: state_table is absent, must be int32 [2, any]", good, [](A a) { a.state_table = {}; });
  fails("compress: state_slots is absent, must be int64 [12]", good, [](A a) { a.state_slots = {}; });
  fails("compress: state_ring is int32 [3], must be int32 [2]", good_ring, [](A a) {
    a.state_ring = {a.state_ring.data(), DType::kInt32, {3}};
  });
  fails("compress: state has 7 rows a block, a ring must have >= 8 (compress_ring_rows)", good_ring, [](A a) {
    a.state = {a.state.data(), a.state.dtype(), {1, 7, 256}};
  });
  fails("compress: cache.layout is fp8_mla656, which holds no compressed entries", good,
        [](A a) { a.cache.layout = CacheLayout::kFp8Mla656; });
  fails("compress: kv_slots is int32 [12], must be int64 [12]", good, [](A a) {
    a.kv_slots = {a.kv_slots.data(), DType::kInt32, {12}};
  });
  const std::string share = std::to_string(good.workspace_bytes);
  fails("compress: workspace has 0 bytes, must have >= " + share + " a worker", good,
        [](A a) { a.workspace = nullptr; });
  fails("compress: workspace has " + std::to_string(good.workspace_bytes - 1) + " bytes, must have >= " + share +
            " a worker",
        good, [](A a) { --a.workspace_bytes; });
  fails("compress: workspace is 8 bytes past a multiple of 64, must be 64-byte aligned", good,
        [](A a) { a.workspace = memory + 8; });
  fails("compress: workspace is 63 bytes past a multiple of 64, must be 64-byte aligned", good,
        [](A a) { a.workspace = memory + 63; });
  EXPECT_TRUE(throws(Status::kInvalidArgument, "compress: compress_ratio is 0, must be in [1, 1024]",
                     [] { compress_workspace_bytes(CompressArgs{}); }));

  // Hadamard wants a power of two; the rest of the shape is in order.
  const CompressorShape odd = compressor_shape("ratio3_odd_dim");
  CompressorRig odd_rig(odd, 1, 16);
  const CompressorStep odd_step = odd_rig.build({{0, 0, 8, 0}});
  fails("compress: hadamard needs cache.head_dim to be a power of two up to 1024, it is 75", odd_rig.args(odd_step),
        [](A a) { a.hadamard = true; });

  // A call that failed wrote nothing.
  EXPECT_EQ(rig.cache_bytes(), std::vector<std::uint8_t>(rig.cache_bytes().size(), 0xFF));
  EXPECT_EQ(rig.all_state_bytes(), std::vector<std::uint8_t>(rig.all_state_bytes().size(), 0xFF));
}

// Every view and the cache, one at a time; the text says which and on what device.
TEST(CompressorErrors, WhatIsOnAnotherDevice) {
  const Device gpu{Device::Kind::kCuda, 3};
  for (const bool ring : {false, true}) {
    const CompressorShape shape = small_shape(compressor_shape(ring ? "c4_ring" : "c4_fp32"), 64);
    CompressorRig rig(shape, 1, 16);
    const CompressorStep step = rig.build({{0, 0, 8, 0}});
    const CompressArgs good = rig.args(step);
    const auto moved = [&](const auto& view) {
      using View = std::remove_cvref_t<decltype(view)>;
      if (view.rank() == 1) return View(view.data(), view.dtype(), {view.size(0)}, gpu);
      if (view.rank() == 2) {
        return View(view.data(), view.dtype(), {view.size(0), view.size(1)}, {view.stride(0), view.stride(1)}, gpu);
      }
      return View(view.data(), view.dtype(), {view.size(0), view.size(1), view.size(2)},
                  {view.stride(0), view.stride(1), view.stride(2)}, gpu);
    };
    const auto fails = [&](const std::string& name, const CompressArgs& args) {
#ifdef TAMIS_HAS_CUDA
      const Status status = Status::kInvalidArgument;
      const std::string text = name == "kv" ? "compress: gate is on cpu, must be on cuda:3 like kv"
                                            : "compress: " + name + " is on cuda:3, must be on cpu like kv";
#else
      const Status status = Status::kUnsupported;
      const std::string text = "compress: " + name + " is on cuda:3, this build works on the CPU only";
#endif
      EXPECT_TRUE(throws(status, text, [&] { compress(args); }));
      EXPECT_TRUE(throws(status, text, [&] { compress_workspace_bytes(args); }));
    };
    const std::pair<const char*, ConstTensorView CompressArgs::*> inputs[] = {
        {"kv", &CompressArgs::kv},
        {"gate", &CompressArgs::gate},
        {"ape", &CompressArgs::ape},
        {"norm_weight", &CompressArgs::norm_weight},
        {"cos_sin", &CompressArgs::cos_sin},
        {"positions", &CompressArgs::positions},
        {"token_to_request", &CompressArgs::token_to_request},
        {"query_start_loc", &CompressArgs::query_start_loc},
        {"state_table", &CompressArgs::state_table},
        {"state_slots", &CompressArgs::state_slots},
        {"state_ring", &CompressArgs::state_ring},
        {"kv_slots", &CompressArgs::kv_slots},
    };
    for (const auto& [name, member] : inputs) {
      if (!(good.*member).present()) continue;
      CompressArgs args = good;
      args.*member = moved(good.*member);
      fails(name, args);
    }
    CompressArgs args = good;
    args.state = moved(good.state);
    fails("state", args);
    args = good;
    args.cache.device = gpu;
    fails("cache", args);
  }
}

// The size query refuses what compress() refuses, with the same text, before it multiplies anything.
TEST(CompressorWorkspace, QueryChecksWhatTheCallChecks) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"), 64);
  CompressorRig rig(shape, 1, 16);
  const CompressorStep step = rig.build({{0, 0, 8, 0}});
  const CompressArgs good = rig.args(step);
  const auto fails = [&](const std::string& text, auto change) {
    CompressArgs args = good;
    change(args);
    EXPECT_TRUE(throws(Status::kInvalidArgument, text, [&] { compress_workspace_bytes(args); }));
    EXPECT_TRUE(throws(Status::kInvalidArgument, text, [&] { compress(args); }));
  };
  using A = CompressArgs&;
  for (const int threads : {-1, -3, std::numeric_limits<int>::min()}) {
    fails("compress: num_threads is " + std::to_string(threads) + ", must be >= 0",
          [&](A a) { a.num_threads = threads; });
  }
  for (const std::int64_t dim : {std::int64_t{1} << 62, std::int64_t{1} << 60, kHuge, -kHuge - 1, std::int64_t{0}}) {
    const std::string text = "compress: cache.head_dim is " + std::to_string(dim) + ", must be in [64, 1048576]";
    fails(text, [&](A a) { a.cache.head_dim = dim; });
    fails(text, [&](A a) {  // with inputs that claim to fit
      a.overlap = false;
      a.cache.head_dim = dim;
      a.kv = {a.kv.data(), DType::kFloat32, {1, dim}, {1, 1}};
    });
  }
  fails("compress: compress_ratio is " + std::to_string(kHuge) + ", must be in [1, 1024]",
        [](A a) { a.compress_ratio = kHuge; });
  fails("compress: cache.layout is fp8_mla656, which holds no compressed entries",
        [](A a) { a.cache.layout = CacheLayout::kFp8Mla656; });
  fails("compress: gate is fp32 [7, 128], must be fp32 [8, 128]", [](A a) {
    a.gate = {a.gate.data(), DType::kFloat32, {7, 128}};
  });
}

// No more shares than tokens: a worker beyond them would find nothing to do.
TEST(CompressorWorkspace, SharesAreBoundedByTheWork) {
  const CompressorShape shape = small_shape(compressor_shape("c4_fp32"), 64);
  for (const std::int64_t tokens : {0, 1, 5, 8}) {
    CompressorRig rig(shape, 1, 16);
    CompressorStep step = rig.build({{0, 0, tokens, 0}});
    const std::size_t share = rig.args(step).workspace_bytes;
    for (const int threads : {1, 3, 8, 9, 1 << 20, (1 << 29) + 1, std::numeric_limits<int>::max()}) {
      CompressArgs args = rig.args(step);
      args.num_threads = threads;
      const auto workers =
          static_cast<std::size_t>(std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, tokens)));
      ASSERT_EQ(compress_workspace_bytes(args), workers * share) << tokens << " tokens, " << threads << " threads";
    }
  }
}

TEST(CompressorWorkspace, ContentsDoNotMatterAndOneShareIsEnough) {
  const CompressorShape shape = compressor_shape("c128_ring");
  std::vector<std::vector<std::uint8_t>> results;
  for (const std::uint8_t byte : {0x00, 0xFF, 0x7F}) {
    CompressorRig rig(shape, 1, 256);
    CompressorStep step = rig.build({{0, 0, 256, 0}});
    step.num_threads = 1;
    const std::size_t share = rig.args(step).workspace_bytes;
    step.num_threads = 3;
    CompressArgs args = rig.args(step);
    EXPECT_EQ(args.workspace_bytes, 3 * share);
    std::memset(args.workspace, byte, args.workspace_bytes);
    if (byte == 0x7F) args.workspace_bytes = share;
    compress(args);
    results.push_back(rig.cache_bytes());
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST(CompressorAllocations, NoneOnOneThread) {
  for (const CompressorShape& shape : kCompressorShapes) {
    CompressorRig rig(shape, 2, 3 * shape.ratio);
    const CompressorStep step = rig.build({{0, 0, 2 * shape.ratio, 0}, {1, 0, shape.ratio + 1, 0}});
    const CompressArgs args = rig.args(step);
    const AllocationCounter counter;
    compress(args);
    EXPECT_EQ(compress_workspace_bytes(args), args.workspace_bytes);
    EXPECT_EQ(counter.count(), 0) << shape;
  }
}

TEST(CompressorTargets, EveryInstructionSetGivesTheSameBytes) {
  for (const CompressorShape& shape : kCompressorShapes) {
    std::vector<std::uint8_t> entries;
    std::vector<std::uint8_t> state;
    for_each_simd_target([&](const char* target) {
      CompressorRig rig(shape, 1, 3 * shape.ratio);
      const std::int64_t cut = shape.ratio + (shape.ratio + 1) / 2;
      rig.run({{0, 0, cut, 0}});
      rig.run({{0, cut, 3 * shape.ratio - cut, 0}});
      if (entries.empty()) {
        entries = rig.cache_bytes();
        state = rig.all_state_bytes();
      }
      EXPECT_EQ(rig.cache_bytes(), entries) << shape << " " << target;
      EXPECT_EQ(rig.all_state_bytes(), state) << shape << " " << target;
    });
  }
}

// Far more threads than work: as many workers as tokens, the same bytes, guards around the workspace intact.
TEST(ThreadCompressor, MoreThreadsThanTokens) {
  for (const char* name : {"c4_fp8", "c128_ring"}) {
    const CompressorShape shape = compressor_shape(name);
    CompressorRig one(shape, 1, shape.ratio + 3);
    one.run({{0, 0, shape.ratio - 1, 0}});
    one.run({{0, shape.ratio - 1, 4, 0}});
    CompressorRig many(shape, 1, shape.ratio + 3);
    many.run({{0, 0, shape.ratio - 1, 0}});
    CompressorStep step = many.build({{0, shape.ratio - 1, 4, 0}});
    step.num_threads = std::numeric_limits<int>::max();
    const std::size_t bytes = many.args(step).workspace_bytes;
    step.num_threads = 1;
    const std::size_t share = many.args(step).workspace_bytes;
    ASSERT_EQ(bytes, 4 * share) << name;  // before the run: a workspace for each thread would not fit
    step.num_threads = std::numeric_limits<int>::max();
    many.run(step);
    EXPECT_EQ(many.cache_bytes(), one.cache_bytes()) << name;
    EXPECT_EQ(many.all_state_bytes(), one.all_state_bytes()) << name;
  }
}

// Threads share pieces of tokens.
TEST(ThreadCompressor, NumberOfThreadsDoesNotShow) {
  for (const CompressorShape& shape : kCompressorShapes) {
    const std::int64_t tokens = std::max<std::int64_t>(3 * shape.ratio, 40);
    std::vector<std::uint8_t> entries;
    std::vector<std::uint8_t> state;
    for (const int threads : {1, 2, 3, 8, 0}) {
      CompressorRig rig(shape, 3, tokens + 1);
      rig.run({{0, 0, tokens - 1, 0}, {1, 0, shape.ratio - 1, 1}}, threads);
      rig.run({{0, tokens - 1, 1, 0}, {1, shape.ratio - 1, 1, 1}, {2, 0, 1, 2}}, threads);  // one or two entries
      if (entries.empty()) {
        entries = rig.cache_bytes();
        state = rig.all_state_bytes();
      }
      EXPECT_EQ(rig.cache_bytes(), entries) << shape << " " << threads;
      EXPECT_EQ(rig.all_state_bytes(), state) << shape << " " << threads;
    }
  }
}

// In a ring, tokens past a boundary are saved over the rows that the boundary token pools: 126 old rows of each request
// here, by an entry that takes long, in the piece of tokens before. A thread that is ahead must not replace them.
TEST(ThreadCompressor, RingRowsAreNotReplacedBeforeTheyArePooled) {
  constexpr std::int64_t kRequests = 24;
  const CompressorShape shape = compressor_shape("c128_ring");
  CompressorRig whole(shape, 1, 256);
  whole.run({{0, 0, 256, 0}});
  std::vector<CompressorChunk> before;
  std::vector<CompressorChunk> step;
  for (std::int64_t r = 0; r < kRequests; ++r) {
    before.push_back({r, 0, 126, 0});
    step.push_back({r, 126, 130, 0});
  }
  for (int repeat = 0; repeat < 4; ++repeat) {
    CompressorRig rig(shape, kRequests, 256);
    rig.run(before, 2);
    rig.run(step, 2);
    for (std::int64_t r = 0; r < kRequests; ++r) ASSERT_EQ(rig.entries(r, 2), whole.entries(0, 2)) << r;
  }
}

TEST(ThreadCompressor, RepeatsGiveTheSameBytes) {
  const CompressorShape shape = compressor_shape("c4_fp8");
  std::vector<std::uint8_t> entries;
  for (int repeat = 0; repeat < 10; ++repeat) {
    CompressorRig rig(shape, 4, 64);
    rig.run({{0, 0, 64, 0}, {1, 0, 33, 1}, {2, 0, 7, 2}, {3, 0, 50, 3}}, 4);
    if (entries.empty()) entries = rig.cache_bytes();
    EXPECT_EQ(rig.cache_bytes(), entries);
  }
}

}  // namespace
}  // namespace tamis::test
