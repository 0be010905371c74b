#pragma once

// A step of launches in the graph modes of serving engines (S-7.2).

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "core/cuda/cuda_check.hpp"

namespace tamis::core {

enum class GraphMode : std::uint8_t {
  kNone,       // every piece is enqueued by the host, step by step
  kPiecewise,  // pieces between those that split are graphs; those that split are enqueued by the host
  kFull,       // the whole step is one graph
};
inline constexpr GraphMode kGraphModes[] = {GraphMode::kNone, GraphMode::kPiecewise, GraphMode::kFull};

/// none, piecewise, full.
const char* graph_mode_name(GraphMode mode) noexcept;

/// Runs the same pieces of work step after step. What may change from step to step is the contents of the buffers they
/// work on and, in pieces that run on the host, what the host passes. One runner serves one shape of a step; an engine
/// has one for each number of tokens that it rounds steps up to.
class GraphRunner {
 public:
  /// Enqueues work on the stream. Captured, so it must neither allocate nor wait.
  using Piece = std::function<void(cudaStream_t stream)>;

  explicit GraphRunner(GraphMode mode) : mode_(mode) {}

  /// Adds a piece behind the others, before capture().
  /// @param splits  In kPiecewise the piece runs on the host, at every step.
  /// @throws Error kInternal after capture().
  void add(Piece piece, bool splits = false);

  /// Runs every piece once, so that kernels are loaded, and records the graphs of the mode, with whatever step the
  /// buffers hold: a dummy. Waits for the stream.
  void capture(cudaStream_t stream);

  /// Enqueues a step.
  /// @throws Error kInternal before capture().
  void run(cudaStream_t stream) const;

  GraphMode mode() const { return mode_; }

 private:
  struct Work {
    Piece piece;
    bool splits;
  };
  struct Delete {
    void operator()(CUgraphExec_st* graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
  };
  using Graph = std::unique_ptr<CUgraphExec_st, Delete>;

  Graph record(std::size_t begin, std::size_t end, cudaStream_t stream) const;

  GraphMode mode_;
  bool captured_ = false;
  std::vector<Work> pieces_;
  std::vector<std::variant<std::size_t, Graph>> parts_;  // of a step: a piece by number, or a graph of several
};

}  // namespace tamis::core
