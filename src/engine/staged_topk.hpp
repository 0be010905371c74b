#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/topk_backend.hpp"
#include "tamis/indexer.hpp"
#include "tamis/topk.hpp"

namespace tamis::engine {

/// index_topk() in steps, for a top-k that runs elsewhere: index_logits() scores some rows on the CPU, scores, row ends
/// and page tables go to a device, topk() runs there, its indices come back. Equal to index_topk(), element for
/// element.
///
/// Rows go in chunks, so that memory is bounded by chunk_bytes (or one row) and not by rows x columns. Host and device
/// each have one block of the same layout, so that inputs travel in one copy. Where memory lies and how it is copied is
/// the derived class's part.
class StagedTopk : public model::TopkBackend {
 public:
  /// Enough for rows that keep a GPU busy: 1,024 of 16,384 columns.
  static constexpr std::int64_t kChunkBytes = std::int64_t{64} << 20;

  /// @throws Error kUnsupported for what no layer asks for: values, row_starts, page_starts, int64 indices, kRagged.
  void index_topk(const IndexTopkArgs& args) final;
  void reserve(const model::TopkBounds& bounds) final;

 protected:
  explicit StagedTopk(Device device, std::int64_t chunk_bytes = kChunkBytes)
      : device_(device), chunk_bytes_(chunk_bytes) {}

  /// Blocks of at least so many bytes, 256-byte aligned; the ones before are given up. Never called for less than
  /// before.
  virtual std::byte* new_host_block(std::size_t bytes) = 0;
  virtual std::byte* new_device_block(std::size_t bytes) = 0;
  /// Copies the first bytes of the host's block to those of the device's.
  virtual void upload(std::size_t bytes) = 0;
  /// Copies bytes of the device's block back to the same place of the host's, and waits.
  virtual void download(std::size_t offset, std::size_t bytes) = 0;
  virtual Stream stream() const { return {}; }

 private:
  struct Shape {
    std::int64_t rows, columns, tables, pages, k;
  };
  /// Offsets of both blocks. The workspace is the device's alone.
  struct Layout {
    std::size_t row_ends, row_to_table, page_table, scores, indices, workspace;
    std::int64_t row_stride;  // scores, in elements
  };

  static Layout lay_out(const Shape& shape);
  std::int64_t rows_a_chunk(const IndexTopkArgs& args) const;
  TopkArgs topk_args(const IndexTopkArgs& args, const Shape& shape, const Layout& layout, std::byte* block) const;
  void make_room(std::size_t host_bytes, std::size_t device_bytes);
  void run_chunk(const IndexTopkArgs& args, std::int64_t begin, std::int64_t count);

  Device device_;
  std::int64_t chunk_bytes_;
  std::byte *host_ = nullptr, *device_block_ = nullptr;
  std::size_t host_bytes_ = 0, device_bytes_ = 0;
  std::vector<std::int32_t> score_ends_, tables_;  // [rows of a chunk]
};

}  // namespace tamis::engine
