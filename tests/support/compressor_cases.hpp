#pragma once

// Shapes of the compressor, and an engine in miniature that drives it: pages in permuted order, rows further apart than
// they are wide, caches full of NaN patterns, any batch and any split. Tests of every backend and the benchmark share
// it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "compressor/reference.hpp"
#include "core/float_formats.hpp"
#include "ops/layouts.hpp"
#include "ops/quantize.hpp"
#include "support/guarded_buffer.hpp"
#include "support/random.hpp"
#include "tamis/compressor.hpp"
#ifdef TAMIS_TEST_CUDA
#include "step_on_gpu.hpp"
#endif

namespace tamis::test {

struct CompressorShape {
  const char* name;
  std::int64_t ratio;
  bool overlap;
  std::int64_t head_dim;
  CacheLayout layout;
  bool hadamard;
  DType input;
  DType state;
  bool ring;
  std::int64_t state_block;  // rows; for a ring without drafts
  std::int64_t cache_page;   // entries

  std::int64_t width() const { return overlap ? 2 * head_dim : head_dim; }
  std::int64_t window() const { return overlap ? 2 * ratio : ratio; }
};
inline std::ostream& operator<<(std::ostream& out, const CompressorShape& shape) { return out << shape.name; }

// clang-format off
inline constexpr CompressorShape kCompressorShapes[] = {
    // name               R    overlap d    layout                      hadamard input             state              ring  block page
    {"c4_fp8",            4,   true,  512, CacheLayout::kFp8Mla584,    false, DType::kFloat32,  DType::kFloat32,  false, 4,   64},
    {"c4_bf16",           4,   true,  512, CacheLayout::kBFloat16,     false, DType::kBFloat16, DType::kBFloat16, false, 4,   64},
    {"c4_fp32",           4,   true,  512, CacheLayout::kFloat32,      false, DType::kFloat32,  DType::kFloat32,  false, 4,   8},
    {"c4_fp8_tensor",     4,   true,  512, CacheLayout::kFp8PerTensor, false, DType::kBFloat16, DType::kFloat32,  false, 8,   16},
    {"c4_ring",           4,   true,  512, CacheLayout::kFp8Mla584,    false, DType::kFloat32,  DType::kBFloat16, true,  8,   64},
    {"c128_paged",        128, false, 512, CacheLayout::kFp8Mla584,    false, DType::kFloat32,  DType::kFloat32,  false, 8,   2},
    {"c128_ring",         128, false, 512, CacheLayout::kFp8Mla584,    false, DType::kFloat32,  DType::kFloat32,  true,  128, 2},
    {"c128_ring_bf16",    128, false, 512, CacheLayout::kBFloat16,     false, DType::kBFloat16, DType::kBFloat16, true,  128, 2},
    {"c128_fp32",         128, false, 512, CacheLayout::kFloat32,      false, DType::kFloat32,  DType::kFloat32,  false, 16,  2},
    {"indexer_fp8",       4,   true,  128, CacheLayout::kIndexerFp8,   true,  DType::kFloat32,  DType::kFloat32,  false, 4,   64},
    {"indexer_mxfp4",     4,   true,  128, CacheLayout::kIndexerMxfp4, true,  DType::kBFloat16, DType::kFloat32,  false, 4,   64},
    {"indexer_plain",     4,   true,  128, CacheLayout::kIndexerFp8,   false, DType::kFloat32,  DType::kFloat32,  true,  8,   64},
    {"indexer_fp32",      4,   true,  128, CacheLayout::kFloat32,      true,  DType::kFloat32,  DType::kFloat32,  false, 4,   64},
    {"indexer_bf16",      4,   true,  128, CacheLayout::kBFloat16,     true,  DType::kFloat32,  DType::kFloat32,  false, 4,   64},
    {"ratio1",            1,   false, 64,  CacheLayout::kFloat32,      false, DType::kFloat32,  DType::kFloat32,  false, 1,   4},
    {"ratio1_overlap",    1,   true,  64,  CacheLayout::kFloat32,      false, DType::kFloat32,  DType::kFloat32,  true,  2,   4},
    {"ratio3_odd_dim",    3,   true,  75,  CacheLayout::kFloat32,      false, DType::kFloat32,  DType::kBFloat16, false, 5,   3},
    {"ratio130_overlap",  130, true,  67,  CacheLayout::kFloat32,      false, DType::kBFloat16, DType::kFloat32,  true,  260, 1},
};
// clang-format on

inline CompressorShape compressor_shape(const std::string& name) {
  for (const CompressorShape& shape : kCompressorShapes) {
    if (name == shape.name) return shape;
  }
  ADD_FAILURE() << "no compressor shape " << name;
  return kCompressorShapes[0];
}

#ifdef TAMIS_TEST_CUDA
inline constexpr std::int64_t kSmallHeadDim = 128;  // all kernels take it, and blocks share a C128 entry
#else
inline constexpr std::int64_t kSmallHeadDim = 64;
#endif
/// The same shape with few channels and fp32 entries, for tests over thousands of steps.
inline CompressorShape small_shape(CompressorShape shape, std::int64_t head_dim = kSmallHeadDim) {
  shape.head_dim = head_dim;
  shape.layout = CacheLayout::kFloat32;
  shape.hadamard = false;
  return shape;
}

/// Numbers of a dtype in a guarded buffer, rows `stride` apart, NaN between them.
class TypedRows {
 public:
  TypedRows() : memory_(0) {}
  TypedRows(std::int64_t rows, std::int64_t width, std::int64_t stride, DType dtype)
      : rows_(rows),
        width_(width),
        stride_(stride),
        dtype_(dtype),
        memory_(static_cast<std::size_t>(rows * stride * dtype_bytes(dtype))) {}

  void set(std::int64_t row, std::int64_t column, float value) {
    const auto at = static_cast<std::size_t>(row * stride_ + column);
    if (dtype_ == DType::kFloat32) std::memcpy(memory_.data() + 4 * at, &value, 4);
    else {
      const std::uint16_t bits = core::float_to_bf16(value);
      std::memcpy(memory_.data() + 2 * at, &bits, 2);
    }
  }
  ConstTensorView view() const { return {memory_.data(), dtype_, {rows_, width_}, {stride_, 1}}; }
  std::uint8_t* data() { return memory_.data(); }
  const std::uint8_t* data() const { return memory_.data(); }
  const float* floats() const { return reinterpret_cast<const float*>(memory_.data()); }
  std::int64_t stride() const { return stride_; }
  std::vector<std::uint8_t> bytes() const { return memory_.copy(); }

 private:
  std::int64_t rows_ = 0, width_ = 0, stride_ = 0;
  DType dtype_ = DType::kFloat32;
  GuardedBuffer<std::uint8_t> memory_;
};

/// Part of a request in one step: positions [start, start + count), their inputs those of `content`.
struct CompressorChunk {
  std::int64_t request = 0;
  std::int64_t start = 0;
  std::int64_t count = 0;
  std::int64_t content = 0;
};

/// What a step hands to compress(), owned and open to tampering.
struct CompressorStep {
  TypedRows kv, gate;
  std::vector<std::int64_t> positions, state_slots, kv_slots;
  std::vector<std::int32_t> token_to_request, query_start_loc;
  CompressPlan plan = CompressPlan::kUnknown;
  int num_threads = 1;
  std::int64_t tokens() const { return static_cast<std::int64_t>(positions.size()); }
};

class CompressorRig {
 public:
  /// @param max_drafts  Sizes the ring; a paged state needs no more for drafts.
  CompressorRig(const CompressorShape& shape, std::int64_t num_requests, std::int64_t max_tokens,
                std::int64_t max_drafts = 0, std::uint64_t seed = test_seed())
      : shape_(shape),
        num_requests_(num_requests),
        seed_(seed),
        block_size_(shape.ring ? std::max(shape.state_block, compress_ring_rows(shape.ratio, shape.overlap, max_drafts))
                               : shape.state_block),
        max_blocks_((max_tokens + block_size_ - 1) / block_size_ + 1),
        num_blocks_(shape.ring ? num_requests + 2 : num_requests * max_blocks_ + 3),
        row_stride_(2 * shape.width()),
        block_stride_(block_size_ * row_stride_ + 9),
        state_(static_cast<std::size_t>(num_blocks_ * block_stride_ * dtype_bytes(shape.state))),
        entry_pages_((max_tokens / shape.ratio) / shape.cache_page + 1),
        ape_(shape.ratio, shape.width(), shape.width() + 3, DType::kFloat32),
        cos_sin_(max_tokens + 1, 64, 66, DType::kFloat32) {
    Random random(seed_);
    for (std::int64_t r = 0; r < shape.ratio; ++r) {
      for (std::int64_t c = 0; c < shape.width(); ++c) ape_.set(r, c, random.uniform(-1.0F, 1.0F));
    }
    for (std::int64_t i = 0; i < 32; ++i) {
      const double frequency = std::pow(160000.0, -static_cast<double>(i) / 32.0);
      for (std::int64_t p = 0; p <= max_tokens; p += shape.ratio) {
        cos_sin_.set(p, i, static_cast<float>(std::cos(static_cast<double>(p) * frequency)));
        cos_sin_.set(p, 32 + i, static_cast<float>(std::sin(static_cast<double>(p) * frequency)));
      }
    }
    for (std::int64_t c = 0; c < shape.head_dim; ++c) norm_weight_.push_back(random.uniform(0.5F, 1.5F));
    // Physical pages in random order; some belong to nobody.
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(num_blocks_));
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>(i);
    random.shuffle(blocks);
    const std::int64_t per_request = shape.ring ? 1 : max_blocks_;
    state_table_.assign(blocks.begin(), blocks.begin() + num_requests * per_request);
    const std::int64_t pages = num_requests * entry_pages_ + 2;
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    random.shuffle(order);
    cache_table_.assign(order.begin(), order.begin() + num_requests * entry_pages_);
    const std::int64_t page_bytes = cache_page_bytes(shape.layout, shape.head_dim, shape.cache_page) + 64;
    cache_memory_ = GuardedBuffer<std::uint8_t>(static_cast<std::size_t>(pages * page_bytes));
    cache_ = {cache_memory_.data(), shape.layout, shape.head_dim, pages, shape.cache_page, page_bytes, 0.0625F, {}};
  }

  CompressorStep build(const std::vector<CompressorChunk>& chunks) {
    std::int64_t tokens = 0;
    for (const CompressorChunk& chunk : chunks) tokens += chunk.count;
    CompressorStep step;
    step.kv = TypedRows(tokens, shape_.width(), shape_.width() + 5, shape_.input);
    step.gate = TypedRows(tokens, shape_.width(), shape_.width() + 7, shape_.input);
    // Requests stand in the tables by number, chunks in any order: the tables of the step are built per chunk.
    step_state_.clear();
    std::int64_t i = 0;
    step.query_start_loc.push_back(0);
    for (std::size_t row = 0; row < chunks.size(); ++row) {
      const CompressorChunk& chunk = chunks[row];
      const std::int64_t per_request = shape_.ring ? 1 : max_blocks_;
      const auto first = state_table_.begin() + chunk.request * per_request;
      step_state_.insert(step_state_.end(), first, first + per_request);
      for (std::int64_t t = chunk.start; t < chunk.start + chunk.count; ++t, ++i) {
        const std::vector<float>& values = content_row(chunk.content, t);
        for (std::int64_t c = 0; c < shape_.width(); ++c) {
          step.kv.set(i, c, values[static_cast<std::size_t>(c)]);
          step.gate.set(i, c, values[static_cast<std::size_t>(shape_.width() + c)]);
        }
        step.positions.push_back(t);
        step.token_to_request.push_back(static_cast<std::int32_t>(row));
        step.state_slots.push_back(state_slot(chunk.request, t));
        step.kv_slots.push_back((t + 1) % shape_.ratio == 0 ? entry_slot(chunk.request, t / shape_.ratio) : -1);
      }
      step.query_start_loc.push_back(static_cast<std::int32_t>(i));
    }
    return step;
  }

  CompressArgs args(const CompressorStep& step) {
    CompressArgs a;
    const std::int64_t n = step.tokens();
    const auto requests = static_cast<std::int64_t>(step.query_start_loc.size()) - 1;
    a.compress_ratio = shape_.ratio;
    a.overlap = shape_.overlap;
    a.kv = step.kv.view();
    a.gate = step.gate.view();
    a.ape = ape_.view();
    a.norm_weight = {norm_weight_.data(), DType::kFloat32, {shape_.head_dim}};
    a.cos_sin = cos_sin_.view();
    a.hadamard = shape_.hadamard;
    a.positions = {step.positions.data(), DType::kInt64, {n}};
    a.token_to_request = {step.token_to_request.data(), DType::kInt32, {n}};
    a.query_start_loc = {step.query_start_loc.data(), DType::kInt32, {requests + 1}};
    a.state = {state_.data(), shape_.state, {num_blocks_, block_size_, row_stride_}, {block_stride_, row_stride_, 1}};
    if (shape_.ring) {
      a.state_ring = {step_state_.data(), DType::kInt32, {requests}};
    } else {
      a.state_table = {step_state_.data(), DType::kInt32, {requests, max_blocks_}};
      a.state_slots = {step.state_slots.data(), DType::kInt64, {n}};
    }
    a.cache = cache_;
    a.kv_slots = {step.kv_slots.data(), DType::kInt64, {n}};
    a.plan = step.plan;
    a.num_threads = step.num_threads;
    workspace_ = GuardedBuffer<std::uint8_t>(compress_workspace_bytes(a));
    a.workspace = workspace_.data();
    a.workspace_bytes = workspace_.size();
    return a;
  }

  /// Runs the step; in the programs for the GPU there, too, from the same state and with the same outcome.
  void run(const CompressorStep& step) {
    const CompressArgs host = args(step);
#ifdef TAMIS_TEST_CUDA
    StepOnGpu gpu(host);
    compress(host);
    gpu.run_and_compare(outcome_is_defined);
#else
    compress(host);
#endif
    EXPECT_TRUE(workspace_.guards_intact());
    EXPECT_TRUE(state_.guards_intact());
    EXPECT_TRUE(cache_memory_.guards_intact());
  }
  void run(const std::vector<CompressorChunk>& chunks, int num_threads = 1) {
    CompressorStep step = build(chunks);
    step.num_threads = num_threads;
    run(step);
  }

  /// Bytes of a stored entry, data and scales.
  std::vector<std::uint8_t> entry_bytes(std::int64_t request, std::int64_t j) const {
    const std::int64_t slot = entry_slot(request, j);
    const std::uint8_t* data = cache_memory_.data() + ops::data_offset(cache_, slot);
    std::vector<std::uint8_t> bytes(data, data + ops::entry_data_bytes(shape_.layout, shape_.head_dim));
    const std::uint8_t* scales = cache_memory_.data() + ops::scale_offset(cache_, slot);
    bytes.insert(bytes.end(), scales, scales + ops::entry_scale_bytes(shape_.layout));
    return bytes;
  }
  std::vector<std::vector<std::uint8_t>> entries(std::int64_t request, std::int64_t count) const {
    std::vector<std::vector<std::uint8_t>> all;
    for (std::int64_t j = 0; j < count; ++j) all.push_back(entry_bytes(request, j));
    return all;
  }
  std::vector<float> entry_values(std::int64_t request, std::int64_t j) const {
    std::vector<float> values(static_cast<std::size_t>(shape_.head_dim));
    ops::load_entry(cache_, entry_slot(request, j), values.data());
    return values;
  }
  /// Bytes of state rows [begin, end) of a request.
  std::vector<std::uint8_t> state_bytes(std::int64_t request, std::int64_t begin, std::int64_t end) const {
    std::vector<std::uint8_t> bytes;
    for (std::int64_t t = begin; t < end; ++t) {
      const std::uint8_t* row = state_.data() + state_row_offset(request, t);
      bytes.insert(bytes.end(), row, row + row_stride_ * dtype_bytes(shape_.state));
    }
    return bytes;
  }
  std::vector<std::uint8_t> cache_bytes() const { return cache_memory_.copy(); }
  std::vector<std::uint8_t> all_state_bytes() const { return state_.copy(); }
  void poison_state(std::uint8_t byte) { state_.fill(byte); }
  void poison_cache(std::uint8_t byte) { cache_memory_.fill(byte); }

  /// Rows as the state keeps them, where position t has the inputs of contents[t].
  compressor::ReferenceRows reference_rows(const std::vector<std::int64_t>& contents) {
    compressor::ReferenceRows rows{shape_.width(), {}, {}};
    for (std::size_t t = 0; t < contents.size(); ++t) {
      const auto position = static_cast<std::int64_t>(t);
      const std::vector<float>& in = content_row(contents[t], position);
      const float* bias = ape_.floats() + position % shape_.ratio * ape_.stride();
      for (std::int64_t c = 0; c < shape_.width(); ++c) {
        const float value = as_input(in[static_cast<std::size_t>(c)]);
        const float gate = as_input(in[static_cast<std::size_t>(shape_.width() + c)]) + bias[c];
        rows.values.push_back(compressor::reference_state_value(value, shape_.state));
        rows.gates.push_back(compressor::reference_state_value(gate, shape_.state));
      }
    }
    return rows;
  }
  compressor::ReferenceParams reference_params() const {
    return {shape_.ratio,        shape_.overlap,
            shape_.head_dim,     64,
            norm_weight_.data(), 1e-6,
            cos_sin_.floats(),   cos_sin_.stride(),
            shape_.hadamard,     shape_.layout != CacheLayout::kFloat32};
  }

  /// False for steps outside the contract, of which only the bounds of memory are tested.
  bool outcome_is_defined = true;

  const CompressorShape& shape() const { return shape_; }
  std::int64_t block_size() const { return block_size_; }
  PagedCache cache() const { return cache_; }
  std::int64_t entry_slot(std::int64_t request, std::int64_t j) const {
    const auto page = cache_table_[static_cast<std::size_t>(request * entry_pages_ + j / shape_.cache_page)];
    return page * shape_.cache_page + j % shape_.cache_page;
  }
  std::int64_t state_slot(std::int64_t request, std::int64_t t) const {
    if (shape_.ring) return state_table_[static_cast<std::size_t>(request)] * block_size_ + t % block_size_;
    const auto block = state_table_[static_cast<std::size_t>(request * max_blocks_ + t / block_size_)];
    return block * block_size_ + t % block_size_;
  }
  /// Tables of the step built last: [chunks, max_blocks], or [chunks] ring blocks.
  std::vector<std::int32_t>& step_state() { return step_state_; }
  /// Inputs of a position: width values, then width gates; open to tampering.
  std::vector<float>& content_row(std::int64_t content, std::int64_t t) {
    std::vector<float>& row = contents_[{content, t}];
    if (row.empty()) {
      Random random(seed_ ^ static_cast<std::uint64_t>((content + 1) * 0x1000003 + t * 0x9E3779B1));
      row.resize(static_cast<std::size_t>(2 * shape_.width()));
      for (std::size_t c = 0; c < row.size(); ++c) {
        // Gates are wider than values: some rows of a window weigh next to nothing, some nearly all.
        row[c] = c < row.size() / 2 ? random.uniform(-2.0F, 2.0F) : random.uniform(-6.0F, 6.0F);
      }
    }
    return row;
  }

 private:
  std::int64_t state_row_offset(std::int64_t request, std::int64_t t) const {
    const std::int64_t slot = state_slot(request, t);
    return (slot / block_size_ * block_stride_ + slot % block_size_ * row_stride_) * dtype_bytes(shape_.state);
  }
  float as_input(float value) const { return shape_.input == DType::kBFloat16 ? core::round_to_bf16(value) : value; }

  CompressorShape shape_;
  std::int64_t num_requests_;
  std::uint64_t seed_;
  std::int64_t block_size_, max_blocks_, num_blocks_, row_stride_, block_stride_;
  GuardedBuffer<std::uint8_t> state_;  // 0xFF: NaN in both dtypes
  std::int64_t entry_pages_;
  TypedRows ape_, cos_sin_;
  std::vector<float> norm_weight_;
  std::vector<std::int32_t> state_table_, cache_table_, step_state_;
  GuardedBuffer<std::uint8_t> cache_memory_{0};
  GuardedBuffer<std::uint8_t> workspace_{0};
  PagedCache cache_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> contents_;
};

}  // namespace tamis::test
