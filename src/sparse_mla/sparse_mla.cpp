#include "tamis/sparse_mla.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/check.hpp"
#include "core/parallel.hpp"
#include "core/tensor_check.hpp"
#include "ops/layouts.hpp"
#include "sparse_mla/cpu/attend.hpp"
#include "sparse_mla/params.hpp"
#include "sparse_mla/rules.hpp"

namespace tamis {
namespace {

using core::check_view;
using core::kAnyExtent;
using sparse_mla_detail::kHeadDimV;
using sparse_mla_detail::Scratch;
using sparse_mla_detail::SourceParams;
using sparse_mla_detail::SparseMlaParams;
using sparse_mla_detail::Split;

constexpr std::string_view kOp = "sparse_mla";

// Names of one source's arguments, spelled out: joining them would allocate in every call.
struct SourceNames {
  std::string_view source, cache, topk_indices, topk_lens;
};
constexpr SourceNames kMainNames = {"main", "main.cache", "main.topk_indices", "main.topk_lens"};
constexpr SourceNames kExtraNames = {"extra", "extra.cache", "extra.topk_indices", "extra.topk_lens"};

SourceParams check_source(const SparseMlaSource& source, const SourceNames& names, std::int64_t rows,
                          std::int64_t head_dim_qk) {
  SourceParams p;
  if (!source.cache.present()) {
    TAMIS_CHECK(!source.topk_indices.present() && !source.topk_lens.present(), Status::kInvalidArgument, kOp, ": ",
                names.cache, " is absent, must be present where ", names.source, " has ",
                source.topk_indices.present() ? "topk_indices" : "topk_lens");
    return p;
  }
  const CacheLayout layout = source.cache.layout;
  TAMIS_CHECK(layout == CacheLayout::kFp8Mla584 || layout == CacheLayout::kFp8Mla656 ||
                  layout == CacheLayout::kBFloat16 || layout == CacheLayout::kFloat32,
              Status::kInvalidArgument, kOp, ": ", names.cache, " has layout ", cache_layout_name(layout),
              ", must be fp8_mla584, fp8_mla656, bf16 or fp32");
  ops::check_cache(source.cache, kOp, names.cache);
  TAMIS_CHECK(source.cache.head_dim == head_dim_qk, Status::kInvalidArgument, kOp, ": ", names.cache, " has head_dim ",
              source.cache.head_dim, ", must be that of q, ", head_dim_qk);
  check_view(source.topk_indices, {kOp, names.topk_indices, {DType::kInt32}, {rows, kAnyExtent}});
  p.cache = source.cache;
  p.topk = source.topk_indices.size(1);
  p.indices = static_cast<const std::int32_t*>(source.topk_indices.data());
  p.indices_stride = source.topk_indices.stride(0);
  if (source.topk_lens.present()) {
    check_view(source.topk_lens, {kOp, names.topk_lens, {DType::kInt32}, {rows}});
    p.lens = static_cast<const std::int32_t*>(source.topk_lens.data());
  }
  return p;
}

SparseMlaParams check_args(const SparseMlaArgs& args) {
  SparseMlaParams p;
  check_view(args.q, {kOp, "q", {DType::kFloat32, DType::kBFloat16}, {kAnyExtent, kAnyExtent, kAnyExtent}});
  p.rows = args.q.size(0);
  p.num_heads = args.q.size(1);
  p.head_dim_qk = args.q.size(2);
  TAMIS_CHECK(p.head_dim_qk == 512 || p.head_dim_qk == 576, Status::kInvalidArgument, kOp, ": q has head_dim_qk ",
              p.head_dim_qk, ", must be 512 or 576");
  p.q = static_cast<const std::byte*>(args.q.data());
  p.q_dtype = args.q.dtype();
  p.q_row_stride = args.q.stride(0);
  p.q_head_stride = args.q.stride(1);

  TAMIS_CHECK(args.main.cache.present(), Status::kInvalidArgument, kOp, ": main.cache is absent, must be present");
  p.sources[0] = check_source(args.main, kMainNames, p.rows, p.head_dim_qk);
  p.sources[1] = check_source(args.extra, kExtraNames, p.rows, p.head_dim_qk);

  if (args.attn_sink.present()) {
    check_view(args.attn_sink, {kOp, "attn_sink", {DType::kFloat32}, {p.num_heads}});
    p.sink = static_cast<const float*>(args.attn_sink.data());
  }
  TAMIS_CHECK(std::isfinite(args.softmax_scale), Status::kInvalidArgument, kOp, ": softmax_scale is ",
              args.softmax_scale, ", must be finite (0 means head_dim_qk^-0.5)");
  p.softmax_scale = args.softmax_scale != 0.0F
                        ? args.softmax_scale
                        : static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim_qk)));

  check_view(args.out, {kOp, "out", {DType::kFloat32, DType::kBFloat16}, {p.rows, p.num_heads, kHeadDimV}});
  core::check_row_stride(args.out, kOp, "out");
  p.out = static_cast<std::byte*>(args.out.data());
  p.out_dtype = args.out.dtype();
  p.out_row_stride = args.out.stride(0);
  p.out_head_stride = args.out.stride(1);
  if (args.lse.present()) {
    check_view(args.lse, {kOp, "lse", {DType::kFloat32}, {p.rows, p.num_heads}});
    core::check_row_stride(args.lse, kOp, "lse");
    p.lse = static_cast<float*>(args.lse.data());
    p.lse_row_stride = args.lse.stride(0);
  }
  if (args.max_logits.present()) {
    check_view(args.max_logits, {kOp, "max_logits", {DType::kFloat32}, {p.rows, p.num_heads}});
    core::check_row_stride(args.max_logits, kOp, "max_logits");
    p.max_logits = static_cast<float*>(args.max_logits.data());
    p.max_logits_row_stride = args.max_logits.stride(0);
  }
  TAMIS_CHECK(args.num_threads >= 0, Status::kInvalidArgument, kOp, ": num_threads is ", args.num_threads,
              ", must be >= 0");
  return p;
}

// How a checked call is cut up and what scratch that takes. The size query and the call both ask here.
struct Plan {
  Split split;
  std::int64_t pieces;
  std::int64_t scratch_floats;  // a worker
  std::size_t workspace_bytes;
};

Plan make_plan(const SparseMlaParams& p, int num_threads) {
  const int workers = core::num_workers(num_threads);
  Plan plan{};
  plan.split = sparse_mla_detail::split_row(p.rows, p.num_heads, workers);
  plan.pieces = p.rows * plan.split.pieces_per_row;
  plan.scratch_floats = Scratch(plan.split.heads_per_piece, p.head_dim_qk).size;
  plan.workspace_bytes = static_cast<std::size_t>(std::min<std::int64_t>(workers, plan.pieces)) *
                         static_cast<std::size_t>(plan.scratch_floats) * sizeof(float);
  return plan;
}

}  // namespace

std::size_t sparse_mla_workspace_bytes(const SparseMlaArgs& args) {
  return make_plan(check_args(args), args.num_threads).workspace_bytes;
}

void sparse_mla(const SparseMlaArgs& args) {
  const SparseMlaParams p = check_args(args);
  const Plan plan = make_plan(p, args.num_threads);
  TAMIS_CHECK(args.workspace_bytes >= plan.workspace_bytes, Status::kInvalidArgument, kOp, ": workspace has ",
              args.workspace_bytes, " bytes, must have ", plan.workspace_bytes);
  if (plan.pieces == 0) return;
  TAMIS_CHECK(args.workspace != nullptr && reinterpret_cast<std::uintptr_t>(args.workspace) % 64 == 0,
              Status::kInvalidArgument, kOp, ": workspace is at ", args.workspace,
              ", must not be null and be a multiple of 64");
  auto* const scratch = static_cast<float*>(args.workspace);
  core::parallel_for(plan.pieces, 1, args.num_threads, [&](std::int64_t begin, std::int64_t end, int worker) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t row = piece / plan.split.pieces_per_row;
      const std::int64_t head_begin = (piece - row * plan.split.pieces_per_row) * plan.split.heads_per_piece;
      const std::int64_t head_end = std::min(p.num_heads, head_begin + plan.split.heads_per_piece);
      sparse_mla_detail::attend_row(p, row, head_begin, head_end, scratch + worker * plan.scratch_floats);
    }
  });
}

}  // namespace tamis
