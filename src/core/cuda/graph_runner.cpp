#include "core/cuda/graph_runner.hpp"

namespace tamis::core {

const char* graph_mode_name(GraphMode mode) noexcept {
  switch (mode) {
    case GraphMode::kNone: return "none";
    case GraphMode::kPiecewise: return "piecewise";
    case GraphMode::kFull: return "full";
  }
  return "?";
}

GraphRunner::Graph GraphRunner::record(std::size_t begin, std::size_t end, cudaStream_t stream) const {
  // Of this thread only: what other threads of the program do meanwhile is not forbidden.
  TAMIS_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    for (std::size_t i = begin; i < end; ++i) pieces_[i].piece(stream);
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));  // the stream must not stay in capture
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    throw;
  }
  TAMIS_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  TAMIS_CUDA_CHECK(error);
  return Graph(executable);
}

void GraphRunner::add(Piece piece, bool splits) {
  TAMIS_CHECK(!captured_, Status::kInternal, "GraphRunner: add() after capture()");
  pieces_.push_back({std::move(piece), splits});
}

void GraphRunner::capture(cudaStream_t stream) {
  captured_ = false;  // until all of it is done
  for (const Work& work : pieces_) work.piece(stream);
  TAMIS_CUDA_CHECK(cudaStreamSynchronize(stream));
  parts_.clear();
  std::size_t begin = 0;  // of the pieces that wait for a graph
  const auto close = [&](std::size_t end) {
    if (begin < end) parts_.emplace_back(record(begin, end, stream));
  };
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const bool on_host = mode_ == GraphMode::kNone || (mode_ == GraphMode::kPiecewise && pieces_[i].splits);
    if (!on_host) continue;
    close(i);
    parts_.emplace_back(i);
    begin = i + 1;
  }
  close(pieces_.size());
  captured_ = true;
}

void GraphRunner::run(cudaStream_t stream) const {
  TAMIS_CHECK(captured_, Status::kInternal, "GraphRunner: run() before capture()");
  for (const auto& part : parts_) {
    if (const auto* piece = std::get_if<std::size_t>(&part)) pieces_[*piece].piece(stream);
    else TAMIS_CUDA_CHECK(cudaGraphLaunch(std::get<Graph>(part).get(), stream));
  }
}

}  // namespace tamis::core
