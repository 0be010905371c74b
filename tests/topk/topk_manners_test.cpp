// How top-k behaves as a guest on the CPU: no allocation, any workspace, the caller's floating-point mode, huge
// offsets.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "allocation_counter.hpp"
#include "sparse_memory.hpp"
#include "topk_check.hpp"

namespace tamis::test {
namespace {

TEST(TopkManners, OffsetsBeyondFourGigabytes) {
  const std::int64_t stride = std::int64_t{1} << 30;  // rows 4 GiB apart
  SparseMemory memory(static_cast<std::size_t>(2 * stride + 4096) * 4);
  if (!memory.valid()) GTEST_SKIP() << "the system refuses a sparse 8 GiB range";
  for (std::int64_t r = 0; r < 3; ++r) {
    auto* row = reinterpret_cast<float*>(memory.data() + r * stride * 4);
    const std::vector<float> scores = make_topk_row(topk_distribution("normal"), 3000, r);
    std::copy(scores.begin(), scores.end(), row);
  }
  TopkCall c(3, 3000, 100);
  c.args.scores = ConstTensorView(memory.data(), DType::kFloat32, {3, 3000}, {stride, 1});
  c.run();
  expect_as_reference(c);
}

TEST(TopkManners, OneThreadNeverAllocates) {
  for (TopkAlgorithm algorithm : {TopkAlgorithm::kSimdFilter, TopkAlgorithm::kSelect}) {
    for (TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
      TopkCall c(2, 70000, 512);
      c.fill("normal");
      c.args.algorithm = algorithm;
      c.args.order = order;
      const std::size_t bytes = topk_workspace_bytes(c.args);
      GuardedBuffer<std::uint8_t> workspace(bytes);
      c.args.workspace = workspace.data();
      c.args.workspace_bytes = bytes;
      topk(c.args);
      AllocationCounter counter;
      topk(c.args);
      EXPECT_EQ(counter.count(), 0);
    }
  }
}

// A workspace that a larger call of another kind left behind.
TEST(TopkManners, WorkspaceMayHoldAnything) {
  TopkCall big(4, 20000, 600), small(2, 7000, 300, {.dtype = DType::kBFloat16});
  big.fill("ascending");
  small.fill("few_nan");
  GuardedBuffer<std::uint8_t> workspace(topk_workspace_bytes(big.args));
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (TopkCall* c : {&big, &small}) {
      c->indices.fill(0xC7);
      c->values.fill(0xC7);
      c->args.workspace = workspace.data();
      c->args.workspace_bytes = workspace.size();
      topk(c->args);
      expect_as_reference(*c);
    }
  }
}

TEST(TopkManners, FlushToZeroOfTheCallerChangesNothing) {
#if defined(__SSE2__)
  TopkCall c(1, 9000, 300);
  c.fill("subnormal");
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040U);  // flush to zero, subnormals are zero
  c.run();
  __builtin_ia32_ldmxcsr(before);
  expect_as_reference(c);
#else
  GTEST_SKIP() << "sets the x86 control register";
#endif
}

}  // namespace
}  // namespace tamis::test
