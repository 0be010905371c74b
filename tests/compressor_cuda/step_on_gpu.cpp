#include "step_on_gpu.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "compressor/rules.hpp"
#include "core/cuda/cuda_check.hpp"
#include "core/float_formats.hpp"
#include "ops/layouts.hpp"

namespace tamis::test {
namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::uint8_t kGuard = 0xA5;

std::map<std::string, long>& counts() {
  static std::map<std::string, long> compared;
  return compared;
}

struct Variant {
  CompressAlgorithm algorithm;
  bool packed, listed;
  std::size_t cache_shift;  // bytes from a multiple of 256 to a packed cache
};

std::int64_t extent(const ConstTensorView& view) {
  if (view.numel() == 0) return 0;
  std::int64_t elements = 1;
  for (int d = 0; d < view.rank(); ++d) elements += (view.size(d) - 1) * view.stride(d);
  return elements * dtype_bytes(view.dtype());
}
std::int64_t extent(const PagedCache& cache) {
  if (cache.num_pages == 0) return 0;
  return (cache.num_pages - 1) * cache.page_stride_bytes +
         ops::page_payload_bytes(cache.layout, cache.head_dim, cache.page_size);
}

enum class Kind : std::uint8_t { kInput, kState, kCache, kScratch };

struct Region {
  Kind kind;
  std::size_t begin, bytes;
};

// All memory of a step in one block, pieces fenced by guard bytes, and the arguments with offsets into it.
class Image {
 public:
  Image(const CompressArgs& host, const std::uint8_t* state, const std::uint8_t* cache, const Variant& variant)
      : args(host), packed_(variant.packed) {
    const auto input = [&](ConstTensorView& view) { place(view, view.data(), Kind::kInput); };
    for (ConstTensorView* view :
         {&args.kv, &args.gate, &args.ape, &args.norm_weight, &args.cos_sin, &args.positions, &args.token_to_request,
          &args.query_start_loc, &args.state_table, &args.state_slots, &args.state_ring, &args.kv_slots}) {
      if (view->present()) input(*view);
    }
    ConstTensorView rows = args.state;
    place(rows, state, Kind::kState);
    args.state = TensorView(const_cast<void*>(rows.data()), rows.dtype(), {rows.size(0), rows.size(1), rows.size(2)},
                            {rows.stride(0), rows.stride(1), rows.stride(2)}, kGpu);
    args.cache.data = at(add(Kind::kCache, cache, static_cast<std::size_t>(extent(args.cache)),
                             packed_ ? variant.cache_shift : reinterpret_cast<std::uintptr_t>(host.cache.data) % 64));
    args.cache.device = kGpu;
    args.algorithm = variant.algorithm;
    if (variant.listed) add_list(host);
  }

  // As addresses on the device.
  void move_to(std::uint8_t* base) {
    const auto move = [&](auto& view) {
      using View = std::remove_cvref_t<decltype(view)>;
      auto* data = base + reinterpret_cast<std::uintptr_t>(view.data());
      if (view.rank() == 1) view = View(data, view.dtype(), {view.size(0)}, {view.stride(0)}, kGpu);
      if (view.rank() == 2) {
        view = View(data, view.dtype(), {view.size(0), view.size(1)}, {view.stride(0), view.stride(1)}, kGpu);
      }
      if (view.rank() == 3) {
        view = View(data, view.dtype(), {view.size(0), view.size(1), view.size(2)},
                    {view.stride(0), view.stride(1), view.stride(2)}, kGpu);
      }
    };
    for (ConstTensorView* view : {&args.kv, &args.gate, &args.ape, &args.norm_weight, &args.cos_sin, &args.positions,
                                  &args.token_to_request, &args.query_start_loc, &args.state_table, &args.state_slots,
                                  &args.state_ring, &args.kv_slots, &args.listed_tokens}) {
      if (view->present()) move(*view);
    }
    move(args.state);
    args.cache.data = base + reinterpret_cast<std::uintptr_t>(args.cache.data);
    const std::size_t scratch = compress_workspace_bytes(args);
    args.workspace = base + add(Kind::kScratch, nullptr, scratch, 0);
    args.workspace_bytes = scratch;
  }

  CompressArgs args;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kGuardBytes, kGuard);
  std::vector<Region> regions;

 private:
  static std::uint8_t* at(std::size_t offset) { return reinterpret_cast<std::uint8_t*>(offset); }

  std::size_t add(Kind kind, const void* from, std::size_t size, std::size_t misaligned) {
    const std::size_t begin = (bytes.size() + 255) / 256 * 256 + misaligned;
    bytes.resize(begin + size + kGuardBytes, kGuard);
    if (from != nullptr && size > 0) std::memcpy(bytes.data() + begin, from, size);
    regions.push_back({kind, begin, size});
    return begin;
  }

  // Rows of two- and three-dimensional views are packed to multiples of 16 bytes, or kept as they lie.
  void place(ConstTensorView& view, const void* data, Kind kind) {
    const std::int64_t element = dtype_bytes(view.dtype());
    if (!packed_ || view.rank() == 1) {
      const auto address = reinterpret_cast<std::uintptr_t>(view.data()) % 64;
      const std::size_t begin = add(kind, data, static_cast<std::size_t>(extent(view)),
                                    address / static_cast<std::size_t>(element) * static_cast<std::size_t>(element));
      set(view, begin, view.rank() == 3 ? view.stride(0) : 0, view.rank() >= 2 ? view.stride(view.rank() - 2) : 0);
      return;
    }
    const bool blocks = view.rank() == 3;
    const std::int64_t width = view.size(view.rank() - 1), rows = view.size(view.rank() - 2);
    const std::int64_t pitch = (width * element + 15) / 16 * 16;
    const std::int64_t count = blocks ? view.size(0) : 1;
    const std::size_t begin = add(kind, nullptr, static_cast<std::size_t>(count * rows * pitch), 0);
    for (std::int64_t b = 0; b < count; ++b) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t from = (b * (blocks ? view.stride(0) : 0) + r * view.stride(view.rank() - 2)) * element;
        std::memcpy(bytes.data() + begin + (b * rows + r) * pitch, static_cast<const std::uint8_t*>(data) + from,
                    static_cast<std::size_t>(width * element));
      }
    }
    set(view, begin, rows * pitch / element, pitch / element);
  }

  static void set(ConstTensorView& view, std::size_t begin, std::int64_t blocks, std::int64_t rows) {
    switch (view.rank()) {
      case 1: view = {at(begin), view.dtype(), {view.size(0)}}; break;
      case 2: view = {at(begin), view.dtype(), {view.size(0), view.size(1)}, {rows, 1}}; break;
      default: view = {at(begin), view.dtype(), {view.size(0), view.size(1), view.size(2)}, {blocks, rows, 1}}; break;
    }
  }

  // The list as the CPU builds it.
  void add_list(const CompressArgs& host) {
    const std::int64_t capacity =
        compress_list_capacity(host.kv.size(0), host.query_start_loc.size(0) - 1, host.compress_ratio) + 3;
    std::vector<std::int32_t> list(static_cast<std::size_t>(capacity));
    const CompressList of_ratio[1] = {{host.compress_ratio, {list.data(), DType::kInt32, {capacity}}}};
    build_compress_step({host.positions, host.token_to_request, host.query_start_loc, of_ratio, {}});
    args.listed_tokens = {at(add(Kind::kInput, list.data(), list.size() * 4, 0)), DType::kInt32, {capacity}};
  }

  bool packed_;
};

std::uint8_t* device_block(std::size_t bytes) {
  static std::uint8_t* block = nullptr;
  static std::size_t room = 0;
  if (bytes > room) {
    TAMIS_CUDA_CHECK(cudaFree(block));
    room = std::max(2 * bytes, std::size_t{64} << 20);
    void* memory = nullptr;
    TAMIS_CUDA_CHECK(cudaMalloc(&memory, room));
    block = static_cast<std::uint8_t*>(memory);
  }
  return block;
}

float number_at(const std::uint8_t* bytes, DType dtype) {
  if (dtype == DType::kFloat8E4M3) return core::e4m3_to_float(*bytes);
  std::uint16_t half = 0;
  float whole = 0;
  if (dtype == DType::kBFloat16) std::memcpy(&half, bytes, 2);
  else std::memcpy(&whole, bytes, 4);
  return dtype == DType::kBFloat16 ? core::bf16_to_float(half) : whole;
}

// The number that a byte of a region belongs to: where it begins, and what it is. kUInt8: no number that can be NaN.
std::pair<std::size_t, DType> number_around(const CompressArgs& args, Kind kind, std::size_t offset) {
  const auto element = [&](std::size_t base, DType dtype) {
    const auto size = static_cast<std::size_t>(dtype_bytes(dtype));
    return std::pair{base + (offset - base) / size * size, dtype};
  };
  if (kind == Kind::kState) return element(0, args.state.dtype());
  const PagedCache& cache = args.cache;
  const std::size_t page = offset - offset % static_cast<std::size_t>(cache.page_stride_bytes);
  const auto entry_bytes = static_cast<std::size_t>(ops::entry_data_bytes(cache.layout, cache.head_dim));
  const std::size_t entry = page + (offset - page) / entry_bytes * entry_bytes;
  if (offset - page >= entry_bytes * static_cast<std::size_t>(cache.page_size)) return {offset, DType::kUInt8};
  switch (cache.layout) {
    case CacheLayout::kFloat32: return element(page, DType::kFloat32);
    case CacheLayout::kBFloat16: return element(page, DType::kBFloat16);
    case CacheLayout::kFp8Mla584:
      if (offset - entry >= static_cast<std::size_t>(ops::kMla584NopeDims)) return element(entry, DType::kBFloat16);
      return {offset, DType::kFloat8E4M3};
    case CacheLayout::kFp8PerTensor:
    case CacheLayout::kIndexerFp8: return {offset, DType::kFloat8E4M3};
    default: return {offset, DType::kUInt8};
  }
}

void expect_same_bytes(const Image& want, const std::vector<std::uint8_t>& got, bool outcome_is_defined) {
  if (got == want.bytes) return;
  const Region none{Kind::kInput, 0, 0};
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want.bytes[i]) continue;
    const auto in = std::find_if(want.regions.begin(), want.regions.end(),
                                 [&](const Region& r) { return i >= r.begin && i < r.begin + r.bytes; });
    const Region& region = in == want.regions.end() ? none : *in;
    if (region.kind == Kind::kScratch) continue;
    if (region.kind == Kind::kState || region.kind == Kind::kCache) {
      if (!outcome_is_defined) continue;
      const auto [begin, dtype] = number_around(want.args, region.kind, i - region.begin);
      if (dtype != DType::kUInt8 && std::isnan(number_at(got.data() + region.begin + begin, dtype)) &&
          std::isnan(number_at(want.bytes.data() + region.begin + begin, dtype))) {
        continue;
      }
    }
    FAIL() << (region.bytes == 0             ? "a guard byte"
               : region.kind == Kind::kState ? "a byte of the state"
               : region.kind == Kind::kCache ? "a byte of the cache"
                                             : "a byte of an input")
           << ", " << i - region.begin << " of " << region.bytes << ", is " << int{got[i]} << ", must be "
           << int{want.bytes[i]};
  }
}

}  // namespace

std::string steps_compared() {
  std::string text;
  for (const auto& [name, runs] : counts()) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(runs);
  return text;
}

StepOnGpu::StepOnGpu(const CompressArgs& host) : host_(host) {
  const auto* state = static_cast<const std::uint8_t*>(host.state.data());
  const auto* cache = static_cast<const std::uint8_t*>(host.cache.data);
  state_before_.assign(state, state + extent(host.state));
  cache_before_.assign(cache, cache + extent(host.cache));
}

void StepOnGpu::run_and_compare(bool outcome_is_defined) const {
  const std::int64_t window = (host_.overlap ? 2 : 1) * host_.compress_ratio;
  static std::uint64_t step = 0;
  ++step;
  for (const compressor::CompressorCudaRule& rule : compressor::compressor_cuda_rules()) {
    // Whether rows are aligned is for the packing to see to; those of 75 channels cannot be.
    if (!rule.can({window, host_.cache.head_dim, true})) continue;
    // Steps take turns, so that every combination meets every kind of step.
    const Variant variant{rule.algorithm, rule.aligned_only || step % 2 == 0, step % 4 < 2, step % 3};
    SCOPED_TRACE(testing::Message() << rule.name << (variant.packed ? ", packed" : "")
                                    << (variant.listed ? ", listed" : "") << ", cache at " << variant.cache_shift);
    Image before(host_, state_before_.data(), cache_before_.data(), variant);
    Image after(host_, static_cast<const std::uint8_t*>(host_.state.data()),
                static_cast<const std::uint8_t*>(host_.cache.data), variant);
    std::uint8_t* block = device_block(before.bytes.size() + (std::size_t{8} << 20));
    before.move_to(block);
    after.move_to(block);
    TAMIS_CUDA_CHECK(cudaMemcpy(block, before.bytes.data(), before.bytes.size(), cudaMemcpyHostToDevice));
    compress(before.args);
    static std::vector<std::uint8_t> got;
    got.resize(before.bytes.size());
    TAMIS_CUDA_CHECK(cudaMemcpy(got.data(), block, got.size(), cudaMemcpyDeviceToHost));
    ++counts()[rule.name];
    expect_same_bytes(after, got, outcome_is_defined);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace tamis::test
