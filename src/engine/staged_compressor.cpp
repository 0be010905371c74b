#include "engine/staged_compressor.hpp"

#include <algorithm>
#include <cstring>

#include "core/check.hpp"
#include "ops/layouts.hpp"

namespace tamis::engine {
namespace {

constexpr std::size_t kAlignment = 256;

template <typename T>
T at(const ConstTensorView& view, std::int64_t i) {
  return static_cast<const T*>(view.data())[i];
}

// Rows of a matrix one after the other, without what lies between them.
void copy_rows(const ConstTensorView& view, std::byte* to) {
  const auto bytes = static_cast<std::size_t>(view.size(1) * dtype_bytes(view.dtype()));
  for (std::int64_t r = 0; r < view.size(0); ++r) {
    std::memcpy(to + static_cast<std::size_t>(r) * bytes,
                static_cast<const std::byte*>(view.data()) + r * view.stride(0) * dtype_bytes(view.dtype()), bytes);
  }
}

std::size_t bytes_of(const ConstTensorView& view) {
  return static_cast<std::size_t>(view.numel() * dtype_bytes(view.dtype()));
}

// A page of one entry: how entries travel back.
PagedCache travelling(const PagedCache& cache, void* data, std::int64_t count, Device device) {
  PagedCache out = cache;
  out.data = data;
  out.num_pages = count;
  out.page_size = 1;
  out.page_stride_bytes = ops::page_payload_bytes(cache.layout, cache.head_dim, 1);
  out.device = device;
  return out;
}

}  // namespace

std::int32_t StagedCompressor::number(std::int64_t host_block) {
  const auto [known, is_new] =
      blocks_.number_of.try_emplace(host_block, static_cast<std::int32_t>(blocks_.host.size()));
  if (is_new) blocks_.host.push_back(host_block);
  return known->second;
}

// Blocks that hold rows which the step may read, and those that it writes. Tables are followed for no more than that,
// so of all that travels only the table, four bytes a block, grows with the context.
void StagedCompressor::find_blocks(const CompressArgs& args) {
  const std::int64_t tokens = args.kv.size(0), requests = args.query_start_loc.size(0) - 1;
  const std::int64_t num_blocks = args.state.size(0), block_size = args.state.size(1),
                     max_blocks = args.state_table.size(1);
  blocks_.number_of.clear();
  blocks_.host.clear();
  table_.assign(static_cast<std::size_t>(requests * max_blocks), -1);
  slots_.assign(static_cast<std::size_t>(tokens), -1);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto position = at<std::int64_t>(args.positions, i);
    const std::int64_t request = at<std::int32_t>(args.token_to_request, i);
    if (position < 0 || request < 0 || request >= requests) continue;
    const std::int64_t slot = at<std::int64_t>(args.state_slots, i);
    if (slot >= 0 && slot < num_blocks * block_size) {
      slots_[static_cast<std::size_t>(i)] = number(slot / block_size) * block_size + slot % block_size;
    }
    const std::int64_t first = compress_state_begin(position, args.compress_ratio, args.overlap) / block_size;
    const std::int64_t last = std::min(position / block_size, max_blocks - 1);
    for (std::int64_t column = first; column <= last; ++column) {
      if (table_[static_cast<std::size_t>(request * max_blocks + column)] >= 0) continue;
      const std::int64_t block = at<std::int32_t>(args.state_table, request * args.state_table.stride(0) + column);
      if (block < 0 || block >= num_blocks) continue;
      table_[static_cast<std::size_t>(request * max_blocks + column)] = number(block);
    }
  }
}

CompressArgs StagedCompressor::device_args(const CompressArgs& args, const Layout& layout, std::int64_t num_entries) {
  const std::int64_t tokens = args.kv.size(0), width = args.kv.size(1), requests = args.query_start_loc.size(0) - 1;
  CompressArgs out = args;
  std::byte* block = device_block_;
  const auto kept = [&](const ConstTensorView& view) {
    const auto rows =
        static_cast<std::size_t>(view.rank() == 2 ? (view.size(0) - 1) * view.stride(0) + view.size(1) : view.size(0));
    const void* data = keep(view.data(), rows * static_cast<std::size_t>(dtype_bytes(view.dtype())));
    if (view.rank() == 1) return ConstTensorView(data, view.dtype(), {view.size(0)}, device_);
    return ConstTensorView(data, view.dtype(), {view.size(0), view.size(1)}, {view.stride(0), 1}, device_);
  };
  out.ape = kept(args.ape);
  out.norm_weight = kept(args.norm_weight);
  out.cos_sin = kept(args.cos_sin);
  out.kv = ConstTensorView(block + layout.kv, args.kv.dtype(), {tokens, width}, device_);
  out.gate = ConstTensorView(block + layout.gate, args.gate.dtype(), {tokens, width}, device_);
  out.positions = ConstTensorView(block + layout.positions, DType::kInt64, {tokens}, device_);
  out.token_to_request = ConstTensorView(block + layout.token_to_request, DType::kInt32, {tokens}, device_);
  out.query_start_loc = ConstTensorView(block + layout.query_start_loc, DType::kInt32, {requests + 1}, device_);
  const auto blocks = static_cast<std::int64_t>(blocks_.host.size());
  out.state =
      TensorView(block + layout.state, args.state.dtype(), {blocks, args.state.size(1), args.state.size(2)}, device_);
  out.state_table = ConstTensorView(block + layout.table, DType::kInt32, {requests, args.state_table.size(1)}, device_);
  out.state_slots = ConstTensorView(block + layout.slots, DType::kInt64, {tokens}, device_);
  out.kv_slots = ConstTensorView(block + layout.kv_slots, DType::kInt64, {tokens}, device_);
  out.cache = travelling(args.cache, block + layout.entries, num_entries, device_);
  out.listed_tokens = {};
  out.stream = stream();
  return out;
}

void StagedCompressor::compress(const CompressArgs& args) {
  TAMIS_CHECK(!args.state_ring.present(), Status::kUnsupported,
              "compressor backend: state_ring is given, must be paged state");
  const std::int64_t tokens = args.kv.size(0);
  if (tokens == 0) return;

  // 1. What travels: state blocks by new numbers, entries one behind the other.
  find_blocks(args);
  kv_slots_.assign(static_cast<std::size_t>(tokens), -1);
  entries_.clear();
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t slot = at<std::int64_t>(args.kv_slots, i), position = at<std::int64_t>(args.positions, i);
    if (!ops::slot_in_cache(args.cache, slot) || position < 0) continue;
    if (position % args.compress_ratio != args.compress_ratio - 1) continue;
    kv_slots_[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(entries_.size());
    entries_.push_back(slot);
  }
  const auto num_entries = static_cast<std::int64_t>(entries_.size());
  const auto row_bytes = static_cast<std::size_t>(args.state.size(2) * dtype_bytes(args.state.dtype()));
  const std::size_t block_bytes = static_cast<std::size_t>(args.state.size(1)) * row_bytes;
  const auto entry_bytes = static_cast<std::size_t>(ops::page_payload_bytes(args.cache.layout, args.cache.head_dim, 1));

  Layout layout{};
  std::size_t end = 0;
  const auto place = [&](std::size_t& offset, std::size_t bytes) {
    offset = (end + kAlignment - 1) / kAlignment * kAlignment;
    end = offset + bytes;
  };
  place(layout.kv, bytes_of(args.kv));
  place(layout.gate, bytes_of(args.gate));
  place(layout.positions, bytes_of(args.positions));
  place(layout.token_to_request, bytes_of(args.token_to_request));
  place(layout.query_start_loc, bytes_of(args.query_start_loc));
  place(layout.table, table_.size() * sizeof(table_[0]));
  place(layout.slots, slots_.size() * sizeof(slots_[0]));
  place(layout.kv_slots, kv_slots_.size() * sizeof(kv_slots_[0]));
  // At least one block and one entry, so that no view is without memory.
  place(layout.state, std::max<std::size_t>(1, blocks_.host.size()) * block_bytes);
  // Entries go there, too: a token that completes one but does not write it leaves what is there.
  place(layout.entries, std::max<std::size_t>(1, entries_.size()) * entry_bytes);
  const std::size_t travels = end;
  place(layout.workspace, 0);

  const auto make_room = [&](std::size_t bytes) {
    if (bytes <= room_) return;
    const std::size_t wanted = std::max(bytes, room_ + room_ / 2);
    room_ = 0;  // if one of the next lines throws, there is none
    host_ = new_host_block(wanted);
    device_block_ = new_device_block(wanted);
    room_ = wanted;
  };
  make_room(layout.workspace);
  CompressArgs device = device_args(args, layout, std::max<std::int64_t>(1, num_entries));
  device.workspace_bytes = compress_workspace_bytes(device);
  make_room(layout.workspace + device.workspace_bytes);
  device = device_args(args, layout, std::max<std::int64_t>(1, num_entries));
  device.workspace_bytes = room_ - layout.workspace;
  device.workspace = device_block_ + layout.workspace;

  // 2. There, run, and back.
  const auto put = [&](std::size_t offset, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(host_ + offset, from, bytes);
  };
  copy_rows(args.kv, host_ + layout.kv);
  copy_rows(args.gate, host_ + layout.gate);
  put(layout.positions, args.positions.data(), bytes_of(args.positions));
  put(layout.token_to_request, args.token_to_request.data(), bytes_of(args.token_to_request));
  put(layout.query_start_loc, args.query_start_loc.data(), bytes_of(args.query_start_loc));
  put(layout.table, table_.data(), table_.size() * sizeof(table_[0]));
  put(layout.slots, slots_.data(), slots_.size() * sizeof(slots_[0]));
  put(layout.kv_slots, kv_slots_.data(), kv_slots_.size() * sizeof(kv_slots_[0]));
  const auto each_row = [&](const auto& move) {
    for (std::size_t b = 0; b < blocks_.host.size(); ++b) {
      for (std::int64_t r = 0; r < args.state.size(1); ++r) {
        const std::int64_t there = blocks_.host[b] * args.state.stride(0) + r * args.state.stride(1);
        move(static_cast<std::byte*>(args.state.data()) + there * dtype_bytes(args.state.dtype()),
             host_ + layout.state + b * block_bytes + static_cast<std::size_t>(r) * row_bytes);
      }
    }
  };
  const auto data_bytes = static_cast<std::size_t>(ops::entry_data_bytes(args.cache.layout, args.cache.head_dim));
  const auto each_entry = [&](const auto& move) {
    auto* cache = static_cast<std::byte*>(args.cache.data);
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      std::byte* here = host_ + layout.entries + e * entry_bytes;
      move(cache + ops::data_offset(args.cache, entries_[e]), here, data_bytes);
      move(cache + ops::scale_offset(args.cache, entries_[e]), here + data_bytes, entry_bytes - data_bytes);
    }
  };
  each_row([&](const std::byte* state, std::byte* here) { std::memcpy(here, state, row_bytes); });
  each_entry([](const std::byte* cache, std::byte* here, std::size_t bytes) { std::memcpy(here, cache, bytes); });
  upload(travels);
  tamis::compress(device);
  download(layout.state, travels - layout.state);
  each_row([&](std::byte* state, const std::byte* here) { std::memcpy(state, here, row_bytes); });
  each_entry([](std::byte* cache, const std::byte* here, std::size_t bytes) { std::memcpy(cache, here, bytes); });
}

}  // namespace tamis::engine
