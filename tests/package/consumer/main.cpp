#include <tamis/cache.hpp>
#include <tamis/compressor.hpp>
#include <tamis/indexer.hpp>
#include <tamis/ops.hpp>
#include <tamis/sparse_mla.hpp>
#include <tamis/status.hpp>
#include <tamis/tensor.hpp>
#include <tamis/topk.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

int main() {
  std::array<float, 2 * 5> scores{1, 5, 3, 4, 2, 9, 9, 9, 9, 9};
  std::array<std::int32_t, 2 * 2> indices{};
  tamis::TopkArgs args;
  args.scores = {scores.data(), tamis::DType::kFloat32, {2, 5}};
  args.k = 2;
  args.indices = {indices.data(), tamis::DType::kInt32, {2, 2}};
  args.workspace_bytes = tamis::topk_workspace_bytes(args);
  const std::size_t rounded = (args.workspace_bytes + 63) / 64 * 64;
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(64, rounded), &std::free);
  args.workspace = workspace.get();
  tamis::topk(args);
  if (indices != std::array<std::int32_t, 4>{1, 3, 0, 1}) {
    std::printf("topk gave %d %d %d %d\n", indices[0], indices[1], indices[2], indices[3]);
    return 1;
  }
  try {
    args.k = 3;
    tamis::topk(args);
  } catch (const tamis::Error& error) {  // The type must be the same one on both sides of a shared library.
    return error.status() == tamis::Status::kInvalidArgument ? 0 : 2;
  }
  return 3;
}
