// Compressors that run elsewhere against compress(): the same state and entries, byte for byte, hence the same tokens.
// The device is the CPU with memory of its own, so that everything but CUDA's calls is tested without a GPU.

#include "engine/staged_compressor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "core/gpu_list.hpp"
#include "engine/compressor_backend.hpp"
#include "engine/single_pass.hpp"
#include "engine_cases.hpp"
#include "expect_error.hpp"
#include "ops/layouts.hpp"

namespace tamis::engine {
namespace {

class CpuStagedCompressor : public StagedCompressor, public CpuStage {
 public:
  CpuStagedCompressor() : StagedCompressor(Device{}) {}
  std::string where() const override { return "the CPU, in steps"; }

  std::size_t most_bytes = SIZE_MAX;  // that can be allocated

 protected:
  std::byte* new_host_block(std::size_t bytes) override {
    if (bytes > most_bytes) {
      CpuStage::new_host_block(1);  // what there was is gone
      throw std::bad_alloc();
    }
    return CpuStage::new_host_block(bytes);
  }
  std::byte* new_device_block(std::size_t bytes) override { return CpuStage::new_device_block(bytes); }
  void upload(std::size_t bytes) override { CpuStage::upload(bytes); }
  void download(std::size_t offset, std::size_t bytes) override { CpuStage::download(offset, bytes); }
  const void* keep(const void* data, std::size_t bytes) override {
    std::vector<std::byte>& kept = kept_[data];
    if (kept.empty()) {
      const auto* from = static_cast<const std::byte*>(data);
      kept.assign(from, from + bytes);
    }
    return kept.data();
  }

 private:
  std::map<const void*, std::vector<std::byte>> kept_;
};

std::vector<std::byte> bytes_of(const void* data, std::int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  return {from, from + bytes};
}

// Runs both from the same state and cache and compares all of both.
class ComparingCompressor : public model::CompressorBackend {
 public:
  explicit ComparingCompressor(model::CompressorBackend& tested) : tested_(tested) {}
  void compress(const CompressArgs& args) override {
    const std::int64_t state_bytes = args.state.size(0) * args.state.stride(0) * dtype_bytes(args.state.dtype());
    const std::int64_t cache_bytes = args.cache.num_pages * args.cache.page_stride_bytes;
    const auto state = bytes_of(args.state.data(), state_bytes), cache = bytes_of(args.cache.data, cache_bytes);
    tested_.compress(args);
    const auto got_state = bytes_of(args.state.data(), state_bytes), got_cache = bytes_of(args.cache.data, cache_bytes);
    std::memcpy(args.state.data(), state.data(), state.size());
    std::memcpy(args.cache.data, cache.data(), cache.size());
    CompressArgs host = args;
    std::vector<std::byte> workspace(compress_workspace_bytes(args) + 64);
    void* aligned = workspace.data();
    std::size_t room = workspace.size();
    host.workspace = std::align(64, workspace.size() - 64, aligned, room);
    host.workspace_bytes = workspace.size() - 64;
    tamis::compress(host);
    EXPECT_TRUE(got_state == bytes_of(args.state.data(), state_bytes)) << "state differs";
    EXPECT_TRUE(got_cache == bytes_of(args.cache.data, cache_bytes)) << "cache differs";
    num_entries += got_cache != cache;
    ++num_steps;
  }
  std::string where() const override { return tested_.where(); }

  int num_steps = 0, num_entries = 0;

 private:
  model::CompressorBackend& tested_;
};

// Few of the cases of top-k: every step of them is run twice, and all caches are compared.
const EngineCase kCases[] = {{KvPrecision::kFloat32, 1000, 0, 16}, {KvPrecision::kFloat8, 200, 4, 0}};

TEST(StagedCompressor, WritesTheSameBytesAndTokensAsCompress) {
  for (const EngineCase& c : kCases) {
    SCOPED_TRACE("precision " + std::to_string(static_cast<int>(c.precision)) + ", chunk " +
                 std::to_string(c.prefill_chunk) + ", companions " + std::to_string(c.companions));
    CpuStagedCompressor staged;
    ComparingCompressor comparing(staged);
    EXPECT_EQ(tokens_of(c, nullptr, &comparing), tokens_of(c, nullptr));
    EXPECT_GT(comparing.num_entries, 0);
    EXPECT_EQ(staged.num_uploads, comparing.num_steps);
    if (HasFailure()) return;
  }
}

TEST(StagedCompressor, MemoryGrowsWithTheLargestStepOnly) {
  CpuStagedCompressor staged;
  const EngineCase c;
  tokens_of(c, nullptr, &staged);
  const int blocks = staged.num_blocks;
  tokens_of(c, nullptr, &staged);
  EXPECT_EQ(staged.num_blocks, blocks);
}

TEST(StagedCompressor, GoesOnAfterAStepThatFoundNoMemory) {
  CpuStagedCompressor staged;
  const EngineCase one{KvPrecision::kFloat32, 1, 0, 16}, large{KvPrecision::kFloat32, 1000, 0, 16};
  const std::vector<std::int32_t> tokens = tokens_of(one, nullptr, &staged);
  staged.most_bytes = 1 << 16;
  EXPECT_THROW(tokens_of(large, nullptr, &staged), std::bad_alloc);
  staged.most_bytes = SIZE_MAX;
  ComparingCompressor comparing(staged);
  EXPECT_EQ(tokens_of(one, nullptr, &comparing), tokens);
}

TEST(StagedCompressor, RefusesRings) {
  CpuStagedCompressor staged;
  const std::int32_t ring[1] = {0};
  CompressArgs args;
  args.state_ring = ConstTensorView(ring, DType::kInt32, {1});
  EXPECT_TRUE(test::throws(Status::kUnsupported, "compressor backend: state_ring is given, must be paged state",
                           [&] { staged.compress(args); }));
}

TEST(CompressorBackend, TheCpuNeedsNone) { EXPECT_EQ(make_compressor_backend({}), nullptr); }

TEST(CompressorBackend, SaysWhyThereIsNoSuchGpu) {
  const auto [status, text] = test::error_of([] { make_compressor_backend({Device::Kind::kCuda, 9999}); });
  if (core::cuda_archs().empty()) {
    EXPECT_EQ(status, Status::kUnsupported);
    EXPECT_EQ(text, core::kNoCudaInBuild);
  } else {
    EXPECT_EQ(status, Status::kDeviceError);
    EXPECT_TRUE(text.starts_with("cuda:9999 was asked for, ")) << text;
  }
}

TEST(GpuCompressorTest, WritesTheSameBytesAndTokensAsTheCpu) {
  if (core::list_gpus().gpus.empty()) GTEST_SKIP() << core::list_gpus().why_none;
  const std::unique_ptr<model::CompressorBackend> gpu = make_compressor_backend({Device::Kind::kCuda, 0});
  ComparingCompressor comparing(*gpu);
  for (const EngineCase& c : kCases) EXPECT_EQ(tokens_of(c, nullptr, &comparing), tokens_of(c, nullptr));
  EXPECT_GT(comparing.num_entries, 0);
}

}  // namespace
}  // namespace tamis::engine
