#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "model/compressor_backend.hpp"

namespace tamis::engine {

/// A step of a compressor on a device whose memory is not the host's: inputs, places and the state blocks that the step
/// reads or writes go there in one copy, compress() runs there, state blocks and new entries come back in another.
/// Equal to compress() on the host, byte for byte.
///
/// Host and device each have one block of the same layout; blocks grow when a step needs more than any before it. Where
/// memory lies and how it is copied is the derived class's part.
class StagedCompressor : public model::CompressorBackend {
 public:
  /// @throws Error kUnsupported for ring state, which the engine does not use.
  void compress(const CompressArgs& args) final;

 protected:
  explicit StagedCompressor(Device device) : device_(device) {}

  /// Blocks of at least so many bytes, 256-byte aligned; the ones before are given up. Never called for less than
  /// before.
  virtual std::byte* new_host_block(std::size_t bytes) = 0;
  virtual std::byte* new_device_block(std::size_t bytes) = 0;
  /// Copies the first bytes of the host's block to those of the device's.
  virtual void upload(std::size_t bytes) = 0;
  /// Copies bytes of the device's block back to the same place of the host's, and waits.
  virtual void download(std::size_t offset, std::size_t bytes) = 0;
  /// The device's copy of what never changes, made when it is first asked for.
  virtual const void* keep(const void* data, std::size_t bytes) = 0;
  virtual Stream stream() const { return {}; }

 private:
  /// What of the host's state a step touches, numbered anew.
  struct Blocks {
    std::unordered_map<std::int64_t, std::int32_t> number_of;  ///< by the host's block
    std::vector<std::int64_t> host;                            ///< by number
  };
  struct Layout {
    std::size_t kv, gate, positions, token_to_request, query_start_loc, table, slots, kv_slots, state, entries,
        workspace;
  };

  void find_blocks(const CompressArgs& args);
  std::int32_t number(std::int64_t host_block);
  CompressArgs device_args(const CompressArgs& args, const Layout& layout, std::int64_t num_entries);

  Device device_;
  std::byte *host_ = nullptr, *device_block_ = nullptr;
  std::size_t room_ = 0;
  Blocks blocks_;
  std::vector<std::int32_t> table_;     // [requests, max_blocks], numbers
  std::vector<std::int64_t> slots_;     // [tokens], in numbered blocks
  std::vector<std::int64_t> kv_slots_;  // [tokens], in the entries that come back
  std::vector<std::int64_t> entries_;   // the host's slots of those
};

}  // namespace tamis::engine
