#include "tamis/sparse_mla.hpp"

#include "c_api/args.hpp"
#include "c_api/guard.hpp"

namespace tamis::c_api {
namespace {

SparseMlaArgs sparse_mla_args(const tamis_sparse_mla_args* args) {
  using C = tamis_sparse_mla_args;
  const ArgsReader read("sparse_mla", args);
  SparseMlaArgs out;
  out.q = read(&C::q, "q");
  out.main = {read(&C::cache, "main.cache"), read(&C::topk_indices, "main.topk_indices"),
              read(&C::topk_lens, "main.topk_lens")};
  out.extra = {read(&C::extra_cache, "extra.cache"), read(&C::extra_topk_indices, "extra.topk_indices"),
               read(&C::extra_topk_lens, "extra.topk_lens")};
  out.attn_sink = read(&C::attn_sink, "attn_sink");
  out.softmax_scale = read(&C::softmax_scale);
  out.out = read(&C::out, "out");
  out.lse = read(&C::lse, "lse");
  out.max_logits = read(&C::max_logits, "max_logits");
  out.num_threads = read(&C::num_threads);
  out.workspace = read(&C::workspace);
  out.workspace_bytes = read(&C::workspace_bytes);
  out.stream.handle = read(&C::stream);
  return out;
}

}  // namespace
}  // namespace tamis::c_api

using namespace tamis::c_api;  // NOLINT(google-build-using-namespace): the entries below are the end of the file

extern "C" {

tamis_status tamis_sparse_mla_workspace_bytes(const tamis_sparse_mla_args* args, size_t* bytes) noexcept {
  return guarded([&] {
    require({"sparse_mla", "bytes"}, bytes);
    *bytes = tamis::sparse_mla_workspace_bytes(sparse_mla_args(args));
  });
}

tamis_status tamis_sparse_mla(const tamis_sparse_mla_args* args) noexcept {
  return guarded([&] { tamis::sparse_mla(sparse_mla_args(args)); });
}

}  // extern "C"
