#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "c_api/c_abi_cases.h"
#include "c_api/guard.hpp"
#include "support/allocation_counter.hpp"
#include "tamis/status.hpp"
#include "tamis/tamis.h"

namespace tamis::c_api {
namespace {

// The cases in C: null means that all went well.
#define TAMIS_EXPECT_C(call)                                                           \
  do {                                                                                 \
    const char* const failure_text = call;                                             \
    EXPECT_EQ(failure_text, nullptr) << std::string(failure_text ? failure_text : ""); \
  } while (false)

TEST(CAbi, Topk) { TAMIS_EXPECT_C(c_abi_topk()); }
TEST(CAbi, TopkMapping) { TAMIS_EXPECT_C(c_abi_topk_mapping()); }
TEST(CAbi, TopkSupport) { TAMIS_EXPECT_C(c_abi_topk_support()); }
TEST(CAbi, Cache) { TAMIS_EXPECT_C(c_abi_cache()); }
TEST(CAbi, Index) { TAMIS_EXPECT_C(c_abi_index()); }
TEST(CAbi, SparseMla) { TAMIS_EXPECT_C(c_abi_sparse_mla()); }
TEST(CAbi, Compress) { TAMIS_EXPECT_C(c_abi_compress()); }
TEST(CAbi, CompressPlan) { TAMIS_EXPECT_C(c_abi_compress_plan()); }
TEST(CAbi, CompressStep) { TAMIS_EXPECT_C(c_abi_compress_step()); }
TEST(CAbi, Ops) { TAMIS_EXPECT_C(c_abi_ops()); }
TEST(CAbi, Names) { TAMIS_EXPECT_C(c_abi_names()); }

// A small call that succeeds, to be bent by a test. n <= k, so no workspace is needed.
struct SmallTopk {
  std::array<float, 3> scores{1.0F, 3.0F, 2.0F};
  std::array<std::int32_t, 3> indices{-9, -9, -9};
  tamis_topk_args args{};

  SmallTopk() {
    args.struct_size = sizeof args;
    args.scores = tamis_tensor_2d(scores.data(), TAMIS_DTYPE_FLOAT32, 1, 3);
    args.k = 3;
    args.indices = tamis_tensor_2d(indices.data(), TAMIS_DTYPE_INT32, 1, 3);
    args.num_threads = 1;
    std::size_t bytes = 0;
    EXPECT_EQ(tamis_topk_workspace_bytes(&args, &bytes), TAMIS_OK) << tamis_last_error();
    workspace.resize(bytes + 64);
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
    args.workspace = workspace.data() + (64 - address % 64) % 64;
    args.workspace_bytes = bytes;
  }
  std::vector<unsigned char> workspace;
};

TEST(CArgs, ASmallerStructSizeMeansDefaultsForTheTail) {
  SmallTopk small;
  // As an older caller's struct would lie in memory: what is past its end belongs to somebody else.
  std::memset(reinterpret_cast<unsigned char*>(&small.args) + offsetof(tamis_topk_args, values), 0xEE,
              sizeof small.args - offsetof(tamis_topk_args, values));
  small.args.struct_size = offsetof(tamis_topk_args, values);
  // Without num_threads and workspace fields, all n <= k positions are still found.
  tamis_topk_algorithm algorithm = -1;
  ASSERT_EQ(tamis_topk_choose(&small.args, &algorithm, nullptr), TAMIS_OK) << tamis_last_error();
  EXPECT_EQ(algorithm, TAMIS_TOPK_ALGORITHM_IDENTITY);
  ASSERT_EQ(tamis_topk(&small.args), TAMIS_OK) << tamis_last_error();
  EXPECT_EQ(small.indices, (std::array<std::int32_t, 3>{0, 1, 2}));
}

TEST(CArgs, AFieldThatStructSizeCutsIsAbsent) {
  SmallTopk small;
  small.args.struct_size = offsetof(tamis_topk_args, indices) + sizeof(tamis_tensor) - 1;
  EXPECT_EQ(tamis_topk(&small.args), TAMIS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tamis_last_error()).find("topk: indices is absent"), std::string::npos) << tamis_last_error();
  EXPECT_EQ(small.indices[0], -9);
}

TEST(CArgs, ALargerStructSizeIsAcceptedWhenItsTailIsZero) {
  struct {
    tamis_topk_args args;
    unsigned char tail[24];
  } newer{};
  SmallTopk small;
  newer.args = small.args;
  newer.args.struct_size = sizeof newer;
  EXPECT_EQ(tamis_topk(&newer.args), TAMIS_OK) << tamis_last_error();
  EXPECT_EQ(small.indices, (std::array<std::int32_t, 3>{0, 1, 2}));

  newer.tail[20] = 1;
  EXPECT_EQ(tamis_topk(&newer.args), TAMIS_UNSUPPORTED);
  EXPECT_EQ(std::string(tamis_last_error()),
            "topk: args.struct_size is " + std::to_string(sizeof newer) + ", version " + tamis_version() + " knows " +
                std::to_string(sizeof newer.args) + " bytes, and byte " + std::to_string(sizeof newer.args + 20) +
                " is set: the caller was compiled against a newer tamis.h and uses what this library does not have");
}

TEST(CArgs, AStructSizeThatCannotBeOneIsAnError) {
  SmallTopk small;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, std::size_t{1} << 17, std::numeric_limits<std::size_t>::max()}) {
    small.args.struct_size = size;
    EXPECT_EQ(tamis_topk(&small.args), TAMIS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(tamis_last_error()), "topk: args.struct_size is " + std::to_string(size) +
                                                   ", must be the sizeof of its type, " +
                                                   std::to_string(sizeof small.args) + " in this version");
  }
}

// Every entry point with nothing at all: a status and a text, not a crash.
TEST(CArgs, NullPointersAreErrors) {
  tamis_topk_args topk{};
  topk.struct_size = sizeof topk;
  std::size_t bytes = 0;
  std::int64_t number = 0;
  std::int32_t ends = 0;
  tamis_compress_plan plan = 0;
  const auto expect = [](tamis_status status, const char* text) {
    EXPECT_EQ(status, TAMIS_INVALID_ARGUMENT);
    EXPECT_STREQ(tamis_last_error(), text);
  };
  expect(tamis_topk(nullptr), "topk: args is null");
  expect(tamis_topk_choose(nullptr, nullptr, nullptr), "topk: args is null");
  expect(tamis_topk_workspace_bytes(nullptr, &bytes), "topk: args is null");
  expect(tamis_topk_workspace_bytes(&topk, nullptr), "topk: bytes is null");
  expect(tamis_topk_support(TAMIS_DEVICE_CPU, 0, 0, nullptr, nullptr), "topk_support: available is null");
  expect(tamis_topk_row_ends(nullptr, 1, 1, 4, &ends), "topk_row_ends: seq_lens is null");
  expect(tamis_topk_row_ends(&ends, 1, 1, 4, nullptr), "topk_row_ends: row_ends is null");
  expect(tamis_compress(nullptr), "compress: args is null");
  expect(tamis_compress_workspace_bytes(nullptr, &bytes), "compress: args is null");
  expect(tamis_compress_plan_exact(&number, &number, 1, 4, 0, nullptr), "compress_plan: plan is null");
  expect(tamis_compress_plan_exact(nullptr, &number, 1, 4, 0, &plan), "compress_plan: starts is null");
  expect(tamis_compress_plan_bounds(&number, nullptr, &number, 1, 4, 0, &plan), "compress_plan: start_hi is null");
  expect(tamis_compress_ring_rows(4, 1, 0, nullptr), "compress_ring_rows: rows is null");
  expect(tamis_compress_state_begin(4, 4, 1, nullptr), "compress_state_begin: position is null");
  expect(tamis_compress_list_capacity(1, 1, 4, nullptr), "compress_list_capacity: capacity is null");
  expect(tamis_build_compress_step(nullptr), "build_compress_step: args is null");
  tamis_compress_step_args step{};
  step.struct_size = sizeof step;
  step.num_lists = 1;
  expect(tamis_build_compress_step(&step), "build_compress_step: lists is null");
  expect(tamis_stream_is_capturing(TAMIS_DEVICE_CPU, 0, nullptr, nullptr), "stream_is_capturing: capturing is null");
  expect(tamis_index_query(nullptr), "index_query: args is null");
  expect(tamis_index_logits(nullptr), "index_logits: args is null");
  expect(tamis_index_topk(nullptr), "index_topk: args is null");
  expect(tamis_index_topk_workspace_bytes(nullptr, &bytes), "index_topk: args is null");
  expect(tamis_sparse_mla(nullptr), "sparse_mla: args is null");
  expect(tamis_sparse_mla_workspace_bytes(nullptr, &bytes), "sparse_mla: args is null");
  expect(tamis_cache_write(nullptr), "cache_write: args is null");
  expect(tamis_cache_read(nullptr), "cache_read: args is null");
  expect(tamis_cache_entry_bytes(TAMIS_CACHE_FLOAT32, 512, nullptr), "cache_entry_bytes: bytes is null");
  expect(tamis_cache_page_bytes(TAMIS_CACHE_FLOAT32, 512, 64, nullptr), "cache_page_bytes: bytes is null");
  expect(tamis_rope_frequencies(10000.0, nullptr, 32, nullptr), "rope_frequencies: frequencies is null");
}

TEST(CArgs, AbsentViewsReachTheOperationsAsAbsent) {
  EXPECT_EQ(tamis_rmsnorm(nullptr, nullptr, 1e-6F, nullptr), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_rope(nullptr, nullptr, nullptr, 0), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_hadamard(nullptr), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_rope_table(nullptr, 0, nullptr), TAMIS_INVALID_ARGUMENT);
}

TEST(CArgs, NumbersThatNameNothingAreErrors) {
  const auto expect = [](const tamis_topk_args& args, const std::string& text) {
    EXPECT_EQ(tamis_topk(&args), TAMIS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(tamis_last_error()), text);
  };
  const SmallTopk small;
  tamis_topk_args args = small.args;
  for (const std::int32_t value : {-1, 3, INT_MAX, INT_MIN}) {
    args = small.args;
    args.order = value;
    expect(args, "topk: order is " + std::to_string(value) + ", must be in [0, 2]");
    args = small.args;
    args.mapping = value;
    expect(args, "topk: mapping is " + std::to_string(value) + ", must be in [0, 2]");
  }
  args = small.args;
  args.algorithm = 8;
  expect(args, "topk: algorithm is 8, must be in [0, 7]");
  for (const std::int32_t value : {-1, 7, 256 + TAMIS_DTYPE_FLOAT32}) {
    args = small.args;
    args.scores.dtype = value;
    expect(args, "topk: scores has dtype " + std::to_string(value) + ", must be in [0, 6]");
  }
  for (const std::int32_t value : {-1, 5, INT_MIN}) {
    args = small.args;
    args.scores.rank = value;
    expect(args, "topk: scores has rank " + std::to_string(value) + ", must be in [0, 4]");
  }
  args = small.args;
  args.scores.device = {2, 0};
  expect(args,
         "topk: scores is on device kind 2 index 0, must be TAMIS_DEVICE_CPU (0) or TAMIS_DEVICE_CUDA (1) and an index "
         ">= 0");
  args.scores.device = {TAMIS_DEVICE_CUDA, -1};
  expect(
      args,
      "topk: scores is on device kind 1 index -1, must be TAMIS_DEVICE_CPU (0) or TAMIS_DEVICE_CUDA (1) and an index "
      ">= 0");

  std::int32_t available = -7;
  EXPECT_EQ(tamis_topk_support(2, 0, 0, &available, nullptr), TAMIS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tamis_last_error()).find("topk_support: device is on device kind 2 index 0"), std::string::npos)
      << tamis_last_error();
  EXPECT_EQ(tamis_topk_support(TAMIS_DEVICE_CPU, 0, 8, &available, nullptr), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "topk_support: algorithm is 8, must be in [0, 7]");
  EXPECT_EQ(available, -7);

  std::int64_t bytes = 0;
  EXPECT_EQ(tamis_cache_entry_bytes(7, 128, &bytes), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "cache_entry_bytes: layout is 7, must be in [0, 6]");
  EXPECT_EQ(tamis_cache_page_bytes(-1, 128, 64, &bytes), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "cache_page_bytes: layout is -1, must be in [0, 6]");

  tamis_cache_read_args read{};
  read.struct_size = sizeof read;
  read.cache.page_size = 64;
  read.cache.layout = 300;
  EXPECT_EQ(tamis_cache_read(&read), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "cache_read: cache has layout 300, must be in [0, 6]");

  tamis_compress_args compress{};
  compress.struct_size = sizeof compress;
  compress.plan = 3;
  EXPECT_EQ(tamis_compress(&compress), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "compress: plan is 3, must be in [0, 2]");
  compress.plan = TAMIS_COMPRESS_PLAN_UNKNOWN;
  for (const std::int32_t value : {-1, 4, INT_MIN}) {
    compress.algorithm = value;
    EXPECT_EQ(tamis_compress(&compress), TAMIS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(tamis_last_error()),
              "compress: algorithm is " + std::to_string(value) + ", must be in [0, 3]");
  }
  compress.algorithm = TAMIS_COMPRESS_ALGORITHM_AUTO;
  compress.reserved = -1;
  EXPECT_EQ(tamis_compress(&compress), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "compress: reserved is -1, must be 0");

  std::int32_t capturing = -7;
  EXPECT_EQ(tamis_stream_is_capturing(2, 0, nullptr, &capturing), TAMIS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tamis_last_error()).find("stream_is_capturing: device is on device kind 2 index 0"),
            std::string::npos)
      << tamis_last_error();
  EXPECT_EQ(capturing, -7);

  tamis_index_logits_args logits{};
  logits.struct_size = sizeof logits;
  logits.format = 4;
  EXPECT_EQ(tamis_index_logits(&logits), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "index_logits: format is 4, must be in [0, 3]");
}

// Extents and strides whose product is past 2^63 must be refused before any arithmetic is done with them.
TEST(CArgs, ExtentsThatOverflowAreErrors) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  const SmallTopk small;
  for (const auto& [n0, n1] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {kMax, 2}, {0, kMax}, {1, kMax}, {kMax, kMax}, {kMin, kMin}, {kMin, 1}, {std::int64_t{1} << 40, 1 << 22}}) {
    tamis_topk_args args = small.args;
    args.scores = tamis_tensor_2d(small.scores.data(), TAMIS_DTYPE_FLOAT32, n0, n1);
    EXPECT_EQ(tamis_topk(&args), TAMIS_INVALID_ARGUMENT) << n0 << " " << n1;
    EXPECT_NE(std::string(tamis_last_error()).find("more bytes than 63 bits count"), std::string::npos)
        << n0 << " " << n1 << ": " << tamis_last_error();
  }
  tamis_topk_args args = small.args;
  args.scores.strides[0] = kMin;
  EXPECT_EQ(tamis_topk(&args), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(),
               "topk: scores is [1, 3] with strides [-9223372036854775808, 1], more bytes than 63 bits count");

  tamis_cache_read_args read{};
  read.struct_size = sizeof read;
  read.cache.page_size = std::int64_t{1} << 32;
  read.cache.num_pages = std::int64_t{1} << 32;
  EXPECT_EQ(tamis_cache_read(&read), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(),
               "cache_read: cache has 4294967296 pages of 4294967296 entries, 0 bytes apart: more than 63 bits count");
  read.cache.page_size = 1;
  read.cache.page_stride_bytes = std::int64_t{1} << 32;
  EXPECT_EQ(tamis_cache_read(&read), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(),
               "cache_read: cache has 4294967296 pages of 1 entries, 4294967296 bytes apart: more than 63 bits count");
}

TEST(CArgs, CountsThatCannotBeAreErrors) {
  std::int32_t number = 0;
  tamis_compress_plan plan = 0;
  EXPECT_EQ(tamis_topk_row_ends(&number, -1, 1, 4, &number), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "topk_row_ends: num_requests is -1, must be in [0, 2147483648]");
  EXPECT_EQ(tamis_topk_row_ends(&number, 1, 0, 4, &number), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "topk_row_ends: next_n is 0, must be in [1, 2147483648]");
  EXPECT_EQ(tamis_topk_row_ends(&number, 4, std::int64_t{1} << 30, 4, &number), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "topk_row_ends: num_requests * next_n is 4294967296, must be in [0, 2147483648]");
  EXPECT_EQ(tamis_topk_row_ends(nullptr, 0, 1, 4, nullptr), TAMIS_OK);
  EXPECT_EQ(tamis_compress_plan_exact(nullptr, nullptr, -5, 4, 0, &plan), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "compress_plan: num_requests is -5, must be in [0, 2147483648]");
  std::int64_t capacity = -7;
  EXPECT_EQ(tamis_compress_list_capacity(-1, 1, 4, &capacity), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "compress_list_capacity: tokens is -1, must be >= 0");
  EXPECT_EQ(tamis_compress_list_capacity(1, 1, 1025, &capacity), TAMIS_INVALID_ARGUMENT);
  EXPECT_STREQ(tamis_last_error(), "compress_list_capacity: compress_ratio is 1025, must be in [1, 1024]");
  EXPECT_EQ(capacity, -7);
}

// A step of one token, to be bent: what is wrong with a list is said, and lists are not written.
TEST(CArgs, ListsThatCannotBeAreErrors) {
  const std::int64_t position = 3;
  const std::int32_t request = 0;
  const std::array<std::int32_t, 2> query_start_loc{0, 1};
  std::array<std::int32_t, 1> tokens{-9};
  std::array<tamis_compress_list, 5> lists{};
  for (tamis_compress_list& list : lists) {
    list.compress_ratio = 4;
    list.tokens = tamis_tensor_1d(tokens.data(), TAMIS_DTYPE_INT32, 1);
  }
  tamis_compress_step_args args{};
  args.struct_size = sizeof args;
  args.positions = tamis_tensor_1d(&position, TAMIS_DTYPE_INT64, 1);
  args.token_to_request = tamis_tensor_1d(&request, TAMIS_DTYPE_INT32, 1);
  args.query_start_loc = tamis_tensor_1d(query_start_loc.data(), TAMIS_DTYPE_INT32, 2);
  args.lists = lists.data();
  const auto expect = [&](const std::string& text) {
    EXPECT_EQ(tamis_build_compress_step(&args), TAMIS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(tamis_last_error()), "build_compress_step: " + text);
    EXPECT_EQ(tokens[0], -9);
  };
  for (const std::int64_t count : {std::int64_t{5}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    args.num_lists = count;
    expect("num_lists is " + std::to_string(count) + ", must be in [0, 4]");
  }
  args.num_lists = 4;
  lists[3].tokens = {};
  expect("lists.tokens is absent, must be int32 [any]");
  lists[3].tokens = tamis_tensor_1d(tokens.data(), TAMIS_DTYPE_INT32, 0);
  expect("lists.tokens of ratio 4 has 0 elements, must have >= 1 (compress_list_capacity)");
  lists[3].tokens = tamis_tensor_1d(tokens.data(), TAMIS_DTYPE_INT32, 1);
  lists[3].tokens.dtype = 7;
  expect("lists.tokens has dtype 7, must be in [0, 6]");
  lists[3].tokens.dtype = TAMIS_DTYPE_INT32;
  lists[3].compress_ratio = 0;
  expect("compress_ratio is 0, must be in [1, 1024]");
  lists[3].compress_ratio = 4;
  EXPECT_EQ(tamis_build_compress_step(&args), TAMIS_OK) << tamis_last_error();
  EXPECT_EQ(tokens[0], 0);
}

TEST(CErrors, ExceptionsBecomeStatusAndText) {
  const auto expect = [](tamis_status status, tamis_status wanted, const char* text) {
    EXPECT_EQ(status, wanted);
    EXPECT_STREQ(tamis_last_error(), text);
  };
  for (int status = 1; status <= TAMIS_INTERNAL; ++status) {
    expect(guarded([&] { throw Error(static_cast<Status>(status), "op: what came"); }), status, "op: what came");
  }
  expect(guarded([] { throw std::bad_alloc(); }), TAMIS_RESOURCE_EXHAUSTED, "out of memory");
  expect(guarded([] { throw std::out_of_range("at(7)"); }), TAMIS_INTERNAL, "at(7)");
  expect(guarded([] { throw 7; }), TAMIS_INTERNAL, "an exception of unknown type");
}

TEST(CErrors, TextStaysUntilTheNextFailure) {
  ASSERT_EQ(guarded([] { throw Error(Status::kDataError, "first"); }), TAMIS_DATA_ERROR);
  ASSERT_EQ(guarded([] {}), TAMIS_OK);
  EXPECT_STREQ(tamis_last_error(), "first");
  ASSERT_EQ(guarded([] { throw Error(Status::kDataError, ""); }), TAMIS_DATA_ERROR);
  EXPECT_STREQ(tamis_last_error(), "");
}

TEST(CErrors, ALongTextIsCutAndSaysSo) {
  const std::string whole(1023, 'x');
  ASSERT_EQ(guarded([&] { throw Error(Status::kInternal, whole); }), TAMIS_INTERNAL);
  EXPECT_EQ(tamis_last_error(), whole);
  ASSERT_EQ(guarded([&] { throw Error(Status::kInternal, whole + "y"); }), TAMIS_INTERNAL);
  EXPECT_EQ(tamis_last_error(), std::string(1020, 'x') + "...");
}

TEST(CErrors, ACallThatSucceedsDoesNotAllocate) {
  SmallTopk small;
  test::AllocationCounter counter;
  const tamis_status status = tamis_topk(&small.args);
  EXPECT_EQ(counter.count(), 0);
  EXPECT_EQ(status, TAMIS_OK) << tamis_last_error();
}

TEST(ThreadCErrors, EachThreadHasItsOwnText) {
  ASSERT_EQ(guarded([] { throw Error(Status::kInternal, "of the main thread"); }), TAMIS_INTERNAL);
  std::vector<std::thread> threads;
  std::vector<int> right(8, 0);
  for (std::size_t i = 0; i < right.size(); ++i) {
    threads.emplace_back([&right, i] {
      const bool empty_at_first = std::string(tamis_last_error()).empty();
      bool own = true;
      for (std::int32_t n = 0; n < 200; ++n) {
        SmallTopk small;
        small.args.order = 1000 + static_cast<std::int32_t>(i);
        own &= tamis_topk(&small.args) == TAMIS_INVALID_ARGUMENT;
        own &= tamis_last_error() == "topk: order is " + std::to_string(1000 + i) + ", must be in [0, 2]";
      }
      right[i] = empty_at_first && own ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(8, 1));
  EXPECT_STREQ(tamis_last_error(), "of the main thread");
}

}  // namespace
}  // namespace tamis::c_api
