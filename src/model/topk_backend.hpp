#pragma once

#include <cstdint>
#include <string>

#include "tamis/indexer.hpp"

namespace tamis::model {

/// The largest selections that steps will ask for.
struct TopkBounds {
  std::int64_t rows = 0;     ///< of a step
  std::int64_t columns = 0;  ///< visible entries
  std::int64_t k = 0;
  std::int64_t page_size = 1;  ///< entries a page of the cache attended to
  int num_threads = 0;
};

/// Who runs the selection of a C4 layer in place of tamis::index_topk(), a GPU for instance. The result is the same.
class TopkBackend {
 public:
  TopkBackend() = default;
  TopkBackend(const TopkBackend&) = delete;
  TopkBackend& operator=(const TopkBackend&) = delete;
  virtual ~TopkBackend() = default;

  /// Writes what tamis::index_topk(args) would. All memory of args is the host's; args.workspace is not needed.
  virtual void index_topk(const IndexTopkArgs& args) = 0;

  /// Takes memory for selections up to these bounds, so that steps take none.
  virtual void reserve(const TopkBounds& bounds) = 0;

  /// Where the top-k runs, e.g. "cuda:0 (NVIDIA H200)".
  virtual std::string where() const = 0;
};

}  // namespace tamis::model
