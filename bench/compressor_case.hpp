#pragma once

// Steps of one compressor, as the benchmarks on the CPU and on the GPU take them.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bench/caches.hpp"
#include "bench/memory.hpp"
#include "compressor/reference.hpp"
#include "core/check.hpp"
#include "tamis/compressor.hpp"

namespace tamis::bench {

/// One step of one compressor. Request r begins at start + r % stagger.
struct StepCase {
  const char* step;  // what happens in it
  std::int64_t ratio, head_dim;
  std::int64_t requests, start, tokens;
  std::int64_t stagger;
  CacheLayout layout;
  bool ring = false;  // state: a ring a request, else pages
};

inline constexpr std::int64_t kStepRopeWidth = 64;

/// A step with its memory; args point into it. State that the step may need holds random rows, as if saved before.
class StepCall {
 public:
  StepCall(const StepCase& shape, int num_threads, RandomBits& random)
      : shape_(shape),
        overlap_(shape.ratio == 4),
        width_((overlap_ ? 2 : 1) * shape.head_dim),
        block_rows_(shape.ring ? compress_ring_rows(shape.ratio, overlap_, 0)
                    : overlap_ ? 4
                               : 8),
        workspace_(0),
        state_(0),
        cache_(0) {
    const std::int64_t tokens = shape.requests * shape.tokens;
    for (auto* rows : {&kv_, &gate_}) {
      for (std::int64_t i = 0; i < tokens * width_; ++i) rows->push_back(random.normal());
    }
    for (std::int64_t i = 0; i < shape.ratio * width_; ++i) ape_.push_back(random.uniform(-1, 1));
    for (std::int64_t i = 0; i < shape.head_dim; ++i) norm_.push_back(random.uniform(0.5F, 1.5F));
    max_position_ = shape.start + shape.stagger + shape.tokens;
    for (std::int64_t p = 0; p < max_position_; ++p) {
      for (std::int64_t i = 0; i < kStepRopeWidth / 2; ++i) {
        const auto angle = static_cast<double>(p) * std::pow(160000.0, -static_cast<double>(i) / 32);
        cos_sin_.push_back(static_cast<float>(std::cos(angle)));
      }
      for (std::int64_t i = 0; i < kStepRopeWidth / 2; ++i) {
        const auto angle = static_cast<double>(p) * std::pow(160000.0, -static_cast<double>(i) / 32);
        cos_sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    lay_out_state(random);
    lay_out_step();

    args.compress_ratio = shape.ratio;
    args.overlap = overlap_;
    args.kv = ConstTensorView(kv_.data(), DType::kFloat32, {tokens, width_});
    args.gate = ConstTensorView(gate_.data(), DType::kFloat32, {tokens, width_});
    args.ape = ConstTensorView(ape_.data(), DType::kFloat32, {shape.ratio, width_});
    args.norm_weight = ConstTensorView(norm_.data(), DType::kFloat32, {shape.head_dim});
    args.cos_sin = ConstTensorView(cos_sin_.data(), DType::kFloat32, {max_position_, kStepRopeWidth});
    args.hadamard = shape.layout == CacheLayout::kIndexerFp8;
    args.positions = ConstTensorView(positions_.data(), DType::kInt64, {tokens});
    args.token_to_request = ConstTensorView(token_to_request_.data(), DType::kInt32, {tokens});
    args.query_start_loc = ConstTensorView(query_start_loc_.data(), DType::kInt32, {shape.requests + 1});
    args.state = TensorView(state_.data(), DType::kFloat32, {num_blocks_, block_rows_, 2 * width_});
    if (shape.ring) {
      args.state_ring = ConstTensorView(state_ring_.data(), DType::kInt32, {shape.requests});
    } else {
      args.state_table = ConstTensorView(state_table_.data(), DType::kInt32, {shape.requests, max_blocks_});
      args.state_slots = ConstTensorView(state_slots_.data(), DType::kInt64, {tokens});
    }
    const std::int64_t page_size = overlap_ ? 64 : 2;
    const std::int64_t page_bytes = cache_page_bytes(shape.layout, shape.head_dim, page_size);
    const std::int64_t pages = num_entries_ / page_size + 1;
    cache_ = AlignedBytes(static_cast<std::size_t>(pages * page_bytes));
    args.cache = {cache_.data(), shape.layout, shape.head_dim, pages, page_size, page_bytes, 1.0F, {}};
    args.kv_slots = ConstTensorView(kv_slots_.data(), DType::kInt64, {tokens});
    std::vector<std::int64_t> lens(starts_.size(), shape.tokens);
    args.plan = compress_plan(starts_, lens, shape.ratio);
    args.num_threads = num_threads;
    workspace_ = AlignedBytes(compress_workspace_bytes(args));
    args.workspace = workspace_.data();
    args.workspace_bytes = workspace_.size();
  }
  StepCall(const StepCall&) = delete;
  StepCall& operator=(const StepCall&) = delete;

  std::int64_t num_entries() const { return num_entries_; }

  /// Bytes of values and gates of the step.
  std::int64_t input_bytes() const { return shape_.requests * shape_.tokens * 2 * width_ * 4; }
  /// Bytes that entries need of earlier rows.
  std::int64_t earlier_bytes() const {
    std::int64_t earlier = 0;
    for (const std::int64_t start : starts_) {
      if (start / shape_.ratio == (start + shape_.tokens) / shape_.ratio) continue;
      earlier += (start - compress_state_begin(start, shape_.ratio, overlap_)) * 2 * shape_.head_dim * 4;
    }
    return earlier;
  }
  /// Least bytes: each input once, each state row written once, what entries need of earlier rows, the entries.
  std::int64_t bytes() const {
    return 2 * input_bytes() + earlier_bytes() + num_entries_ * cache_entry_bytes(shape_.layout, shape_.head_dim);
  }
  /// Each pooled value takes an exponential, a maximum, a difference and a multiply-add: 16 + 1 + 1 + 2 operations.
  double flops() const {
    return 20.0 * static_cast<double>(num_entries_ * (overlap_ ? 2 : 1) * shape_.ratio * shape_.head_dim);
  }

  /// Paged state only. Empty if all state rows are exact and the first and last entry agree with the definition.
  std::string difference() const {
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const float* row = state_row(static_cast<std::size_t>(token_to_request_[i]), positions_[i]);
      const auto at = static_cast<std::int64_t>(i) * width_;
      for (std::int64_t c = 0; c < width_; ++c) {
        const float bias = ape_[static_cast<std::size_t>(positions_[i] % shape_.ratio * width_ + c)];
        const float value = kv_[static_cast<std::size_t>(at + c)],
                    gate = gate_[static_cast<std::size_t>(at + c)] + bias;
        if (row[c] != value || row[width_ + c] != gate) {
          return core::concat("state of token ", i, ", channel ", c, " is ", row[c], " and ", row[width_ + c],
                              ", must be ", value, " and ", gate);
        }
      }
    }
    std::vector<std::size_t> completing;
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (kv_slots_[i] >= 0) completing.push_back(i);
    }
    if (completing.empty()) return {};
    for (const std::size_t token : {completing.front(), completing.back()}) {
      if (std::string why = entry_difference(token); !why.empty()) return why;
    }
    return {};
  }

  CompressArgs args;

 private:
  // Pages of the positions from the first needed row to the last token; the table is -1 below, as an engine frees them.
  void lay_out_state(RandomBits& random) {
    for (std::int64_t r = 0; r < shape_.requests; ++r) starts_.push_back(shape_.start + r % shape_.stagger);
    if (shape_.ring) {
      num_blocks_ = shape_.requests;
      state_ring_ = shuffled(num_blocks_, random);
      return fill_state(random);
    }
    max_blocks_ = max_position_ / block_rows_ + 1;
    state_table_.assign(static_cast<std::size_t>(shape_.requests * max_blocks_), -1);
    std::vector<std::size_t> used;
    for (std::int64_t r = 0; r < shape_.requests; ++r) {
      const std::int64_t start = starts_[static_cast<std::size_t>(r)];
      const std::int64_t first = compress_state_begin(start, shape_.ratio, overlap_) / block_rows_;
      for (std::int64_t b = first; b <= (start + shape_.tokens - 1) / block_rows_; ++b) {
        used.push_back(static_cast<std::size_t>(r * max_blocks_ + b));
      }
    }
    num_blocks_ = static_cast<std::int64_t>(used.size());
    const std::vector<std::int32_t> order = shuffled(num_blocks_, random);
    for (std::size_t i = 0; i < used.size(); ++i) state_table_[used[i]] = order[i];
    fill_state(random);
  }

  void fill_state(RandomBits& random) {
    const std::int64_t count = num_blocks_ * block_rows_ * 2 * width_;
    state_ = AlignedBytes(static_cast<std::size_t>(count * 4));
    for (std::int64_t i = 0; i < count; ++i) state_.as<float>()[i] = random.normal();
  }

  void lay_out_step() {
    query_start_loc_.push_back(0);
    for (std::int64_t r = 0; r < shape_.requests; ++r) {
      const std::int64_t start = starts_[static_cast<std::size_t>(r)];
      for (std::int64_t p = start; p < start + shape_.tokens; ++p) {
        positions_.push_back(p);
        token_to_request_.push_back(static_cast<std::int32_t>(r));
        state_slots_.push_back(slot(static_cast<std::size_t>(r), p));
        kv_slots_.push_back((p + 1) % shape_.ratio == 0 ? num_entries_++ : -1);
      }
      query_start_loc_.push_back(static_cast<std::int32_t>(positions_.size()));
    }
  }

  std::int64_t slot(std::size_t request, std::int64_t position) const {
    if (shape_.ring) return state_ring_[request] * block_rows_ + position % block_rows_;
    const auto at = request * static_cast<std::size_t>(max_blocks_) + static_cast<std::size_t>(position / block_rows_);
    return state_table_[at] * block_rows_ + position % block_rows_;
  }
  const float* state_row(std::size_t request, std::int64_t position) const {
    return state_.as<float>() + slot(request, position) * 2 * width_;
  }

  // The definition over the saved state, which is exact by now, with positions counted from the window's first group.
  std::string entry_difference(std::size_t token) const {
    const auto request = static_cast<std::size_t>(token_to_request_[token]);
    const std::int64_t entry = positions_[token] / shape_.ratio;
    const std::int64_t first_group = overlap_ && entry > 0 ? entry - 1 : entry;
    compressor::ReferenceRows rows{width_, {}, {}};
    for (std::int64_t p = first_group * shape_.ratio; p <= positions_[token]; ++p) {
      const float* row = state_row(request, p);
      rows.values.insert(rows.values.end(), row, row + width_);
      rows.gates.insert(rows.gates.end(), row + width_, row + 2 * width_);
    }
    compressor::ReferenceParams params;
    params.ratio = shape_.ratio;
    params.overlap = overlap_;
    params.head_dim = shape_.head_dim;
    params.norm_weight = norm_.data();
    params.cos_sin = cos_sin_.data() + first_group * shape_.ratio * kStepRopeWidth;
    params.hadamard = args.hadamard;
    params.round_before_hadamard = true;
    const compressor::ReferenceEntry want = compressor::reference_entry(params, rows, entry - first_group);

    std::vector<float> got(static_cast<std::size_t>(shape_.head_dim));
    const std::int64_t slots[1] = {kv_slots_[token]};
    cache_read(args.cache, ConstTensorView(slots, DType::kInt64, {1}),
               TensorView(got.data(), DType::kFloat32, {1, shape_.head_dim}));
    double amax = 0;
    for (const double value : want.value) amax = std::max(amax, std::abs(value));
    for (std::size_t c = 0; c < got.size(); ++c) {
      // Storage: e4m3 rounds by 2^-4 of the value, or by half of its smallest step, 2^-10, times a scale that is at
      // most twice amax / 448; bf16 before it by 2^-8.
      const double allowed = want.bound[c] + (0x1p-4 + 0x1p-8) * std::abs(want.value[c]) + 0x1p-10 * 2 * amax / 448;
      if (!(std::abs(got[c] - want.value[c]) <= allowed)) {
        return core::concat("entry ", entry, " of request ", request, ", channel ", c, " is ", got[c], ", must be ",
                            want.value[c]);
      }
    }
    return {};
  }

  StepCase shape_;
  bool overlap_;
  std::int64_t width_, block_rows_;
  std::int64_t max_position_ = 0, max_blocks_ = 0, num_blocks_ = 0, num_entries_ = 0;
  AlignedBytes workspace_, state_, cache_;
  std::vector<float> kv_, gate_, ape_, norm_, cos_sin_;
  std::vector<std::int64_t> starts_, positions_, state_slots_, kv_slots_;
  std::vector<std::int32_t> token_to_request_, query_start_loc_, state_table_, state_ring_;
};

}  // namespace tamis::bench
