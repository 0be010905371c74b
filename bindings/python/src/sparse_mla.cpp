#include "tamis/sparse_mla.hpp"

#include "call.hpp"
#include "operations.hpp"

namespace tamis::python {
namespace {

constexpr std::initializer_list<DType> kFloat = {DType::kFloat32};
constexpr std::initializer_list<DType> kFloatOrBf16 = {DType::kFloat32, DType::kBFloat16};
constexpr std::initializer_list<DType> kInt32 = {DType::kInt32};
constexpr std::int64_t kHeadDimV = 512;

// Errors about the members of the C++ arguments, with the names of the Python function's.
template <typename F>
auto with_python_names(F operation) {
  try {
    return operation();
  } catch (const Error& error) {
    std::string text = error.what();
    for (const auto& [member, argument] : {std::pair{"main.", ""}, std::pair{"extra.", "extra_"}}) {
      if (const std::size_t at = text.find(member); at != std::string::npos) {
        text.replace(at, std::string_view(member).size(), argument);
      }
    }
    throw Error(error.status(), text);
  }
}

nb::object sparse_mla(nb::handle q, nb::handle cache, nb::handle topk_indices, nb::handle topk_lens,
                      nb::handle extra_cache, nb::handle extra_topk_indices, nb::handle extra_topk_lens,
                      nb::handle attn_sink, nb::handle softmax_scale, nb::handle lse, nb::handle max_logits,
                      nb::handle num_threads, nb::handle out, nb::handle workspace) {
  Call call("sparse_mla");
  SparseMlaArgs args;
  args.q = call.input(q, "q", kFloatOrBf16);
  TAMIS_CHECK(args.q.rank() == 3, Status::kInvalidArgument, "sparse_mla: q has ", args.q.rank(),
              " dimensions, must have 3: [rows, num_q_heads, head_dim_qk]");
  args.main = {call.input_cache(cache, "cache"), call.input(topk_indices, "topk_indices", kInt32),
               call.optional_input(topk_lens, "topk_lens", kInt32)};
  if (!extra_cache.is_none()) {
    args.extra = {call.input_cache(extra_cache, "extra_cache"),
                  call.input(extra_topk_indices, "extra_topk_indices", kInt32),
                  call.optional_input(extra_topk_lens, "extra_topk_lens", kInt32)};
  } else {
    call.absent(extra_topk_indices, "extra_topk_indices", "extra_cache");
    call.absent(extra_topk_lens, "extra_topk_lens", "extra_cache");
  }
  args.attn_sink = call.optional_input(attn_sink, "attn_sink", kFloat);
  if (!softmax_scale.is_none()) {
    args.softmax_scale = static_cast<float>(call.number(softmax_scale, "softmax_scale"));
    TAMIS_CHECK(args.softmax_scale != 0, Status::kInvalidArgument, "sparse_mla: softmax_scale is ",
                call.number(softmax_scale, "softmax_scale"), ", must not be 0 as a float32");
  }
  args.num_threads = call.threads(num_threads);
  const std::int64_t rows = args.q.size(0), heads = args.q.size(1);
  const Output attended = call.output_or_new(out, "out", args.q.dtype(), {rows, heads, kHeadDimV}, kFloatOrBf16);
  const Output sums = call.optional_output(lse, "lse", DType::kFloat32, {rows, heads});
  const Output most = call.optional_output(max_logits, "max_logits", DType::kFloat32, {rows, heads});
  args.out = attended.view;
  args.lse = sums.view;
  args.max_logits = most.view;
  const std::size_t bytes = with_python_names([&] { return sparse_mla_workspace_bytes(args); });
  args.workspace = call.workspace(workspace, bytes, &args.workspace_bytes);
  args.stream = call.stream();
  call.check_overlaps();
  with_python_names([&] { call.run([&] { tamis::sparse_mla(args); }); });
  if (!sums.view.present() && !most.view.present()) return call.result(attended);
  if (!most.view.present()) return nb::make_tuple(call.result(attended), call.result(sums));
  if (!sums.view.present()) return nb::make_tuple(call.result(attended), call.result(most));
  return nb::make_tuple(call.result(attended), call.result(sums), call.result(most));
}

}  // namespace

void bind_sparse_mla(nb::module_& m) { define(m, "sparse_mla", &sparse_mla); }

}  // namespace tamis::python
