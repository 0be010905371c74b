// What only the GPU has: graphs, lists built there, streams, offsets past 2^31 in its memory, steps larger than a
// grid's first rounds. The contract's tests are those of tests/compressor, compiled into this program.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/cuda_check.hpp"
#include "core/cuda/gpu.hpp"
#include "device_work.hpp"
#include "expect_error.hpp"
#include "gpu_buffer.hpp"
#include "support/compressor_cases.hpp"
#include "support/compressor_padding.hpp"

namespace tamis::test {
namespace {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

// --- what the sanitizers run: every kernel, both forms of state, all layouts, long chunks, padding ---

TEST(CompressorCudaSmall, EveryShape) {
  for (const CompressorShape& shape : kCompressorShapes) {
    SCOPED_TRACE(shape.name);
    CompressorRig rig(shape, 3, 3 * shape.window() + 40);
    rig.run({{0, 0, shape.window() + 3, 0}, {1, 0, shape.ratio - 1, 1}});
    rig.run({{1, shape.ratio - 1, 1, 1}, {0, shape.window() + 3, shape.window() + 9, 0}, {2, 0, 2, 2}});
    if (HasFailure()) return;
  }
}

// A chunk that goes past the end of the ring while its first entries pool what lies there.
void replace_ring_rows(const char* name, std::int64_t start, std::int64_t count) {
  SCOPED_TRACE(std::string(name) + ", " + std::to_string(start) + " and " + std::to_string(count) + " tokens");
  CompressorRig rig(compressor_shape(name), 1, start + count);
  rig.run({{0, 0, start, 0}});
  rig.run({{0, start, count, 0}});
}

TEST(CompressorCudaSmall, RingRowsThatEntriesPoolAreReplacedAfterwards) {
  for (const char* name : {"c128_ring_bf16", "c4_ring", "ratio130_overlap"}) {
    const CompressorShape shape = compressor_shape(name);
    replace_ring_rows(name, shape.window() - 1, 2 * shape.window() + 1);
    if (HasFailure()) return;
  }
}

TEST(CompressorCuda, RingRowsAreReplacedAfterwardsWhereverAChunkBegins) {
  for (const char* name :
       {"c128_ring", "c128_ring_bf16", "c4_ring", "indexer_plain", "ratio1_overlap", "ratio130_overlap"}) {
    const CompressorShape shape = compressor_shape(name);
    for (const std::int64_t start : {std::int64_t{1}, shape.ratio - 1, shape.ratio, shape.window() - 1}) {
      for (const std::int64_t count : {shape.window() - 1, shape.window() + 2, 2 * shape.window() + 1}) {
        replace_ring_rows(name, start, count);
        if (HasFailure()) return;
      }
    }
  }
}

// Requests up to one token in front of an entry, then all of them complete one in one step.
void every_request_at_its_boundary(const CompressorShape& shape, std::int64_t requests) {
  SCOPED_TRACE(shape.name);
  CompressorRig rig(shape, requests, shape.ratio + 4);
  std::vector<CompressorChunk> first, second;
  for (std::int64_t r = 0; r < requests; ++r) {
    first.push_back({r, 0, shape.ratio - 1, r});
    second.push_back({r, shape.ratio - 1, 1, r});
  }
  rig.run(first);
  rig.run(second);
}

TEST(CompressorCudaSmall, PaddingInRange) {
  for (const char* name : {"c4_fp8", "c128_paged", "c128_ring", "indexer_plain"}) {
    const CompressorShape shape = small_shape(compressor_shape(name));
    CompressorRig rig(shape, 2, 2 * shape.window() + 60);
    const auto two = [](std::int64_t, std::int64_t) { return std::int64_t{2}; };
    rig.run(with_padding(rig.build({{0, 0, 30, 0}, {1, 0, 5, 1}}), shape, PaddingKind::kMinusOne, two));
    rig.run(with_padding(rig.build({{0, 30, 2 * shape.window(), 0}, {1, 5, shape.ratio, 1}}), shape,
                         PaddingKind::kAnotherRequest, two));
    if (HasFailure()) return;
  }
}

// Boundaries of as many requests as give a cluster more entries than it has blocks: each finishes a second one.
TEST(CompressorCudaSmall, EntriesGoAroundAClusterAgain) {
  const CompressorShape shape = small_shape(compressor_shape("c128_paged"), 64);
  every_request_at_its_boundary(shape, 50);
}

// --- many tokens ---

// More entries than blocks are resident, more tokens than one look of a team covers, uneven requests.
TEST(CompressorCudaLarge, ManyEntries) {
  for (const char* name : {"c4_fp8", "c128_paged", "indexer_fp8"}) {
    const CompressorShape shape = compressor_shape(name);
    SCOPED_TRACE(name);
    const std::int64_t long_one = shape.ratio == 4 ? 1500 : 5000;
    CompressorRig rig(shape, 4, long_one + 200);
    rig.run({{0, 0, 77, 0}, {1, 0, 3, 1}});
    rig.run({{1, 3, 1, 1}, {0, 77, long_one, 0}, {2, 0, shape.ratio, 2}, {3, 0, 500, 3}});
  }
}

TEST(CompressorCudaLarge, ManyRequestsAtTheirBoundaries) {
  for (const char* name : {"c128_ring", "c128_paged", "c4_bf16"}) {
    const CompressorShape shape = compressor_shape(name);
    SCOPED_TRACE(name);
    constexpr std::int64_t kRequests = 70;
    CompressorRig rig(shape, kRequests, shape.ratio + 4);
    std::vector<CompressorChunk> first, second;
    for (std::int64_t r = 0; r < kRequests; ++r) {
      const std::int64_t start = shape.ratio - 1 - r % 2;  // every other one completes an entry
      first.push_back({r, 0, start, r});
      second.push_back({r, start, 1, r});
    }
    rig.run(first);
    rig.run(second);
  }
}

// The same as EntriesGoAroundAClusterAgain with as many blocks a cluster as there can be.
TEST(CompressorCudaLarge, EntriesGoAroundALargeClusterAgain) {
  every_request_at_its_boundary(compressor_shape("c128_paged"), 300);
}

// Half of the multiprocessors are held by another kernel; steps end all the same.
TEST(CompressorCudaBusy, EndsWhileOthersHoldHalfTheChip) {
  int* stop = nullptr;
  TAMIS_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&stop), sizeof(int), cudaHostAllocMapped));
  *static_cast<volatile int*>(stop) = 0;
  cudaStream_t hogging = nullptr;
  TAMIS_CUDA_CHECK(cudaStreamCreateWithFlags(&hogging, cudaStreamNonBlocking));
  {
    // First without it: to allocate memory and to load a kernel may wait for what runs. Then the same steps beside the
    // other kernel, which a watchdog ends after 20 s, so that the test can say so.
    const auto run_steps = [] {
      for (const char* name : {"c128_paged", "c4_fp8", "indexer_fp8"}) {
        every_request_at_its_boundary(compressor_shape(name), 20);
      }
    };
    run_steps();
    launch_hog(core::gpu(0).num_sms / 2, stop, hogging);
    std::atomic<bool> done = false, waited = false;
    std::thread watchdog([&] {
      for (int ms = 0; ms < 20000 && !done; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      waited = !done;
      *static_cast<volatile int*>(stop) = 1;
    });
    run_steps();
    EXPECT_EQ(cudaStreamQuery(hogging), cudaErrorNotReady) << "the other kernel ended before the steps did";
    done = true;
    watchdog.join();
    EXPECT_FALSE(waited) << "steps wait for multiprocessors that another kernel holds";
  }
  TAMIS_CUDA_CHECK(cudaStreamSynchronize(hogging));
  TAMIS_CUDA_CHECK(cudaStreamDestroy(hogging));
  TAMIS_CUDA_CHECK(cudaFreeHost(stop));
}

// Far more rows than the y or z of a grid, few channels.
TEST(CompressorCudaLarge, RowsPastSixteenBits) {
  CompressorShape shape = compressor_shape("ratio1");
  CompressorRig rig(shape, 1, 65'540);
  rig.run({{0, 0, 65'538, 0}});
}

// --- lists ---

TEST(CompressorCudaLists, AreThoseOfTheCpu) {
  Random random;
  for (int round = 0; round < 60; ++round) {
    const std::int64_t tokens = round < 30 ? random.between(0, 200) : random.between(1000, 20000);
    const std::int64_t requests = random.between(1, round % 3 == 0 ? 300 : 3);
    Longs positions(static_cast<std::size_t>(tokens));
    Ints request_of(static_cast<std::size_t>(tokens)), starts(static_cast<std::size_t>(requests + 1));
    for (std::size_t r = 0; r < starts.size(); ++r) {
      starts[r] = static_cast<std::int32_t>(tokens * static_cast<std::int64_t>(r) / requests);
    }
    for (std::size_t r = 0; r + 1 < starts.size(); ++r) {
      const std::int64_t begin = random.between(0, 5000);
      for (std::int32_t i = starts[r]; i < starts[r + 1]; ++i) {
        positions[static_cast<std::size_t>(i)] = begin + i - starts[r];
        request_of[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(r);
      }
    }
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (random.chance(0.02)) positions[i] = random.chance(0.5) ? -1 : static_cast<std::int64_t>(random.bits());
      if (random.chance(0.02)) request_of[i] = static_cast<std::int32_t>(random.bits());
    }
    const GpuBuffer<std::int64_t> gpu_positions(positions);
    const GpuBuffer<std::int32_t> gpu_request_of(request_of), gpu_starts(starts);
    CompressList host_lists[4], gpu_lists[4];
    std::vector<Ints> host(4);
    std::vector<std::unique_ptr<GpuBuffer<std::int32_t>>> gpu;
    const std::int64_t ratios[] = {4, 128, 1, 3};
    for (std::size_t k = 0; k < 4; ++k) {
      const std::int64_t capacity = compress_list_capacity(tokens, requests, ratios[k]) + random.between(0, 5);
      host[k].assign(static_cast<std::size_t>(capacity), 7);
      gpu.push_back(std::make_unique<GpuBuffer<std::int32_t>>(static_cast<std::size_t>(capacity), 0x7F));
      host_lists[k] = {ratios[k], {host[k].data(), DType::kInt32, {capacity}}};
      gpu_lists[k] = {ratios[k], {gpu[k]->data(), DType::kInt32, {capacity}, kGpu}};
    }
    build_compress_step({{positions.data(), DType::kInt64, {tokens}},
                         {request_of.data(), DType::kInt32, {tokens}},
                         {starts.data(), DType::kInt32, {requests + 1}},
                         host_lists,
                         {}});
    build_compress_step({{gpu_positions.data(), DType::kInt64, {tokens}, kGpu},
                         {gpu_request_of.data(), DType::kInt32, {tokens}, kGpu},
                         {gpu_starts.data(), DType::kInt32, {requests + 1}, kGpu},
                         gpu_lists,
                         {}});
    for (std::size_t k = 0; k < 4; ++k) ASSERT_EQ(gpu[k]->fetch(), host[k]) << "ratio " << ratios[k];
  }
}

// --- offsets past 2^31 ---

// State and cache of which only the last pages are used; the same rows near the start of memory give the same bytes.
TEST(CompressorCudaHuge, StateAndCachePast32Bits) {
  constexpr std::int64_t kDim = 128;
  constexpr std::int64_t kFarEntry = (std::int64_t{1} << 31) + 64;  // a slot
  CompressorShape shape = compressor_shape("indexer_bf16");
  shape.hadamard = false;
  shape.layout = CacheLayout::kFp8PerTensor;
  CompressorRig near(shape, 1, 16);
  near.run({{0, 0, 6, 0}});
  near.run({{0, 6, 2, 0}});

  // Pages of one entry, of which only the last lies in memory: the cache begins in front of it.
  const std::int64_t entry_bytes = kDim;
  const GpuBuffer<std::uint8_t> entries(static_cast<std::size_t>(entry_bytes), 0xFF);
  const std::int64_t row = 4 * kDim, blocks = (std::int64_t{1} << 31) / (4 * row) + 8;  // elements past 2^31: 8 GiB
  const GpuBuffer<float> state(static_cast<std::size_t>(blocks * 4 * row), 0xFF);
  const GpuBuffer<std::int32_t> table(
      Ints{static_cast<std::int32_t>(blocks - 2), static_cast<std::int32_t>(blocks - 1)});
  for (const std::int64_t part : {0, 6}) {
    CompressorStep step = near.build({{0, part, part == 0 ? 6 : 2, 0}});
    for (std::int64_t i = 0; i < step.tokens(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      step.state_slots[at] = (blocks - 2) * 4 + part + i;
      if (step.kv_slots[at] >= 0) step.kv_slots[at] = kFarEntry;
    }
    const CompressArgs host = near.args(step);
    const auto copied = [](const ConstTensorView& view, auto type) {
      using T = decltype(type);
      std::int64_t count = 1;
      for (int d = 0; d < view.rank(); ++d) count += (view.size(d) - 1) * view.stride(d);
      const T* data = static_cast<const T*>(view.data());
      return std::make_unique<GpuBuffer<T>>(std::vector<T>(data, data + count));
    };
    const auto kv = copied(host.kv, float{}), gate = copied(host.gate, float{}), ape = copied(host.ape, float{}),
               norm = copied(host.norm_weight, float{}), cos_sin = copied(host.cos_sin, float{});
    const auto positions = copied(host.positions, std::int64_t{}), slots = copied(host.state_slots, std::int64_t{}),
               kv_slots = copied(host.kv_slots, std::int64_t{});
    const auto request_of = copied(host.token_to_request, std::int32_t{}),
               starts = copied(host.query_start_loc, std::int32_t{});
    const auto n = step.tokens();
    CompressArgs args = host;
    const auto strided = [](const auto& memory, const ConstTensorView& view) {
      return ConstTensorView(memory->data(), view.dtype(), {view.size(0), view.size(1)}, {view.stride(0), 1}, kGpu);
    };
    args.kv = strided(kv, host.kv);
    args.gate = strided(gate, host.gate);
    args.ape = strided(ape, host.ape);
    args.cos_sin = strided(cos_sin, host.cos_sin);
    args.norm_weight = {norm->data(), DType::kFloat32, {kDim}, kGpu};
    args.positions = {positions->data(), DType::kInt64, {n}, kGpu};
    args.token_to_request = {request_of->data(), DType::kInt32, {n}, kGpu};
    args.query_start_loc = {starts->data(), DType::kInt32, {2}, kGpu};
    args.state = {state.data(), DType::kFloat32, {blocks, 4, row}, kGpu};
    args.state_table = {table.data(), DType::kInt32, {1, 2}, kGpu};
    args.state_slots = {slots->data(), DType::kInt64, {n}, kGpu};
    args.kv_slots = {kv_slots->data(), DType::kInt64, {n}, kGpu};
    args.cache = {
        entries.data() - entry_bytes * kFarEntry, shape.layout, kDim, kFarEntry + 1, 1, entry_bytes, 0.0625F, kGpu};
    args.workspace = nullptr;
    args.workspace_bytes = 0;
    compress(args);
    TAMIS_CUDA_CHECK(cudaDeviceSynchronize());
  }
  std::vector<std::uint8_t> far(static_cast<std::size_t>(entry_bytes));
  TAMIS_CUDA_CHECK(cudaMemcpy(far.data(), entries.data(), far.size(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(far, near.entry_bytes(0, 1));
}

}  // namespace
}  // namespace tamis::test
