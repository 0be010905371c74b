#include "model/attention.hpp"

#include <algorithm>
#include <unordered_set>

#include "tamis/indexer.hpp"
#include "tamis/ops.hpp"
#include "tamis/sparse_mla.hpp"

namespace tamis::model {
namespace {

constexpr std::int64_t kIndexDim = 128;
constexpr auto kF32 = DType::kFloat32;

ConstTensorView view(const std::vector<std::int32_t>& v) {
  return {v.data(), DType::kInt32, {static_cast<std::int64_t>(v.size())}};
}
ConstTensorView view(const std::vector<std::int64_t>& v) {
  return {v.data(), DType::kInt64, {static_cast<std::int64_t>(v.size())}};
}
ConstTensorView view(const std::vector<float>& v) { return {v.data(), kF32, {static_cast<std::int64_t>(v.size())}}; }
ConstTensorView view(const PageTable& table, std::int64_t requests) {
  return {table.pages.data(), DType::kInt32, {requests, table.max_pages}};
}

// SplitMix64: a counter in, well mixed bits out. Enough for a control that only has to be arbitrary and repeatable.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

Attention::Compressor::Compressor(const Checkpoint& checkpoint, const std::string& prefix, std::int64_t hidden,
                                  std::int64_t head_dim_in, std::int64_t ratio_in)
    : ratio(ratio_in), coff(ratio_in == 4 ? 2 : 1), head_dim(head_dim_in) {
  const std::int64_t width = coff * head_dim;
  wkv = gemm::Linear(checkpoint.read_fp32(prefix + "wkv.weight", {width, hidden}), width, hidden);
  wgate = gemm::Linear(checkpoint.read_fp32(prefix + "wgate.weight", {width, hidden}), width, hidden);
  ape = checkpoint.read_fp32(prefix + "ape", {ratio, width});
  norm = checkpoint.read_fp32(prefix + "norm.weight", {head_dim});
}

void Attention::Compressor::forward(const float* x, const Context& context, const PagedCache& cache,
                                    const TensorView& state, bool hadamard, float rms_norm_eps) {
  const StepBatch& batch = context.batch;
  const std::int64_t tokens = batch.num_tokens(), width = coff * head_dim;
  const RatioTables& tables = ratio == 4 ? batch.c4 : batch.c128;
  float* kv_rows = kv.get(tokens * width);
  float* gate_rows = gate.get(tokens * width);
  wkv(x, tokens, kv_rows, context.num_threads);
  wgate(x, tokens, gate_rows, context.num_threads);

  CompressArgs args;
  args.compress_ratio = ratio;
  args.overlap = coff == 2;
  args.kv = {kv_rows, kF32, {tokens, width}};
  args.gate = {gate_rows, kF32, {tokens, width}};
  args.ape = {ape.data(), kF32, {ratio, width}};
  args.norm_weight = view(norm);
  args.rms_norm_eps = rms_norm_eps;
  args.cos_sin = context.rope.compressed;
  args.hadamard = hadamard;
  args.positions = view(batch.positions);
  args.token_to_request = view(batch.token_to_request);
  args.query_start_loc = view(batch.query_start_loc);
  args.state = state;
  args.state_table = view(tables.state_pages, batch.num_requests());
  args.state_slots = view(tables.state_slots);
  args.cache = cache;
  args.kv_slots = view(tables.kv_slots);
  args.plan = tables.plan;
  args.num_threads = context.num_threads;
  if (context.compressor_backend != nullptr) return context.compressor_backend->compress(args);
  args.workspace_bytes = compress_workspace_bytes(args);
  args.workspace = workspace.get(static_cast<std::int64_t>(args.workspace_bytes));
  compress(args);
}

Attention::Attention(const Checkpoint& checkpoint, const ModelConfig& config, int layer)
    : layer_(layer),
      ratio_(config.layers[static_cast<std::size_t>(layer)].compress_ratio),
      hidden_(config.hidden_size),
      heads_(config.num_attention_heads),
      head_dim_(config.head_dim),
      q_lora_(config.q_lora_rank),
      groups_(config.o_groups),
      o_lora_(config.o_lora_rank),
      index_heads_(config.index_n_heads),
      index_topk_(config.index_topk),
      eps_(static_cast<float>(config.rms_norm_eps)) {
  const std::string prefix = "layers." + std::to_string(layer) + ".attn.";
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    return gemm::Linear(checkpoint.read_fp32(prefix + name + ".weight", {out, in}), out, in);
  };
  wq_a_ = linear("wq_a", q_lora_, hidden_);
  wq_b_ = linear("wq_b", heads_ * head_dim_, q_lora_);
  wkv_ = linear("wkv", head_dim_, hidden_);
  wo_b_ = linear("wo_b", hidden_, groups_ * o_lora_);
  // Group g maps its own heads' outputs to its own slice of the latent: one product a group, strided in and out.
  const std::int64_t group_width = heads_ / groups_ * head_dim_;
  const std::vector<float> wo_a = checkpoint.read_fp32(prefix + "wo_a.weight", {groups_ * o_lora_, group_width});
  for (std::int64_t g = 0; g < groups_; ++g) {
    const std::span<const float> rows(wo_a.data() + g * o_lora_ * group_width,
                                      static_cast<std::size_t>(o_lora_ * group_width));
    wo_a_.emplace_back(rows, o_lora_, group_width, heads_ * head_dim_, groups_ * o_lora_);
  }
  q_norm_ = checkpoint.read_fp32(prefix + "q_norm.weight", {q_lora_});
  kv_norm_ = checkpoint.read_fp32(prefix + "kv_norm.weight", {head_dim_});
  sink_ = checkpoint.read_fp32(prefix + "attn_sink", {heads_});
  if (ratio_ > 0) compressor_.emplace(checkpoint, prefix + "compressor.", hidden_, head_dim_, ratio_);
  if (ratio_ == 4) {
    indexer_.emplace(Indexer{linear("indexer.wq_b", index_heads_ * kIndexDim, q_lora_),
                             linear("indexer.weights_proj", index_heads_, hidden_),
                             Compressor(checkpoint, prefix + "indexer.compressor.", hidden_, kIndexDim, 4),
                             {},
                             {},
                             {},
                             {},
                             {},
                             {}});
  }
}

std::string Attention::tensor_name(const char* name) const { return "layers." + std::to_string(layer_) + "." + name; }

void Attention::forward(const float* x, float* out, const Context& context) {
  const StepBatch& batch = context.batch;
  const std::int64_t tokens = batch.num_tokens();
  const int threads = context.num_threads;
  const ConstTensorView positions = view(batch.positions);
  const ConstTensorView table = ratio_ > 0 ? context.rope.compressed : context.rope.plain;

  float* q_lora = q_lora_buffer_.get(tokens * q_lora_);
  float* q = q_.get(tokens * heads_ * head_dim_);
  {
    const StageTimer timer(context.times, Stage::kProject);
    float* kv = kv_.get(tokens * head_dim_);
    wq_a_(x, tokens, q_lora, threads);
    const TensorView q_lora_view(q_lora, kF32, {tokens, q_lora_});
    rmsnorm(q_lora_view, view(q_norm_), eps_, q_lora_view);
    wq_b_(q_lora, tokens, q, threads);
    const TensorView heads_view(q, kF32, {tokens * heads_, head_dim_});
    rmsnorm(heads_view, {}, eps_, heads_view);
    rope({q, kF32, {tokens, heads_, head_dim_}}, positions, table);

    wkv_(x, tokens, kv, threads);
    const TensorView kv_view(kv, kF32, {tokens, head_dim_});
    rmsnorm(kv_view, view(kv_norm_), eps_, kv_view);
    rope({kv, kF32, {tokens, 1, head_dim_}}, positions, table);
    cache_write(kv_view, view(batch.window_slots), context.caches.window);
  }
  if (compressor_) {
    const StageTimer timer(context.times, Stage::kCompress);
    compressor_->forward(x, context, context.caches.compressed, context.caches.state, false, eps_);
  }
  if (indexer_) {
    {
      const StageTimer timer(context.times, Stage::kCompress);
      indexer_->compressor.forward(x, context, context.caches.index_k, context.caches.index_state, context.hadamard,
                                   eps_);
    }
    const StageTimer timer(context.times, Stage::kIndex);
    select(x, q_lora, context);
  }
  if (context.observer != nullptr && compressor_) {
    observe_compressed(context, context.caches.compressed, tensor_name("compressed_kv"));
  }

  float* attended = attended_.get(tokens * heads_ * head_dim_);
  {
    const StageTimer timer(context.times, Stage::kAttend);
    const StepIndices& indices = context.indices;
    SparseMlaArgs args;
    args.q = {q, kF32, {tokens, heads_, head_dim_}};
    args.main = {context.caches.window,
                 {indices.window_slots.data(), DType::kInt32, {tokens, indices.window_width}},
                 view(indices.window_lens)};
    if (ratio_ == 4 && selected_width_ > 0) {
      args.extra = {context.caches.compressed, {selected_slots_, DType::kInt32, {tokens, selected_width_}}, {}};
    } else if (ratio_ == 128 && indices.c128_width > 0) {
      args.extra = {context.caches.compressed,
                    {indices.c128_slots.data(), DType::kInt32, {tokens, indices.c128_width}},
                    view(indices.c128_lens)};
    }
    args.attn_sink = view(sink_);
    args.out = {attended, kF32, {tokens, heads_, head_dim_}};
    args.num_threads = threads;
    args.workspace_bytes = sparse_mla_workspace_bytes(args);
    args.workspace = workspace_.get(static_cast<std::int64_t>(args.workspace_bytes));
    sparse_mla(args);
  }
  {
    const StageTimer timer(context.times, Stage::kOutput);
    // Values carry their rotation; the query's position takes it back (S-2.6).
    rope({attended, kF32, {tokens, heads_, head_dim_}}, positions, table, true);
    float* latent = latent_.get(tokens * groups_ * o_lora_);
    const std::int64_t group_width = heads_ / groups_ * head_dim_;
    for (std::int64_t g = 0; g < groups_; ++g) {
      wo_a_[static_cast<std::size_t>(g)](attended + g * group_width, tokens, latent + g * o_lora_, threads);
    }
    wo_b_(latent, tokens, out, threads);
  }
}

void Attention::select(const float* x, const float* q_lora, const Context& context) {
  const StepBatch& batch = context.batch;
  const std::int64_t tokens = batch.num_tokens(), columns = context.indices.c4_columns;
  const std::int64_t topk = context.selection.topk > 0 ? context.selection.topk : index_topk_;
  selected_width_ = std::min(topk, columns);
  if (selected_width_ == 0) return;
  selected_slots_ = indexer_->slots.get(tokens * selected_width_);
  if (context.selection.random) {
    select_at_random(context, selected_width_);
    return;
  }

  const CacheLayout layout = context.caches.index_k.layout;
  const IndexFormat format = layout == CacheLayout::kIndexerFp8 ? IndexFormat::kFp8 : IndexFormat::kFloat32;
  float* q = indexer_->q.get(tokens * index_heads_ * kIndexDim);
  float* weights = indexer_->weights.get(tokens * index_heads_);
  indexer_->wq_b(q_lora, tokens, q, context.num_threads);
  indexer_->weights_proj(x, tokens, weights, context.num_threads);

  IndexQueryArgs query;
  query.q = {q, kF32, {tokens, index_heads_, kIndexDim}};
  query.weights = {weights, kF32, {tokens, index_heads_}};
  query.positions = view(batch.positions);
  query.cos_sin = context.rope.compressed;
  query.hadamard = context.hadamard;
  query.format = format;
  const DType dtype = format == IndexFormat::kFp8 ? DType::kUInt8 : kF32;
  query.index_q = {indexer_->packed_q.get(tokens * index_heads_ * kIndexDim * dtype_bytes(dtype)),
                   dtype,
                   {tokens, index_heads_, kIndexDim}};
  query.index_weights = {indexer_->folded_weights.get(tokens * index_heads_), kF32, {tokens, index_heads_}};
  query.num_threads = context.num_threads;
  index_query(query);

  IndexTopkArgs args;
  args.score.format = format;
  args.score.index_q = query.index_q;
  args.score.index_weights = query.index_weights;
  args.score.index_k = context.caches.index_k;
  args.score.page_table = view(batch.compressed_pages, batch.num_requests());
  args.score.row_to_table = view(batch.token_to_request);
  args.score.row_ends = view(context.indices.c4_ends);
  args.score.max_columns = columns;
  args.k = selected_width_;
  args.indices = {selected_slots_, DType::kInt32, {tokens, selected_width_}};
  args.num_threads = context.num_threads;
  const auto run = [&] {
    if (context.topk_backend != nullptr) return context.topk_backend->index_topk(args);
    args.workspace_bytes = index_topk_workspace_bytes(args);
    args.workspace = indexer_->workspace.get(static_cast<std::int64_t>(args.workspace_bytes));
    index_topk(args);
  };
  if (context.observer != nullptr) {
    run();  // entry numbers, before the run that maps them to slots
    context.observer->tensor(tensor_name("topk"), args.indices);
    context.observer->tensor(tensor_name("index_q"), query.index_q);
    observe_compressed(context, context.caches.index_k, tensor_name("index_k"));
    std::vector<std::int32_t> all(static_cast<std::size_t>(tokens), static_cast<std::int32_t>(columns));
    std::vector<float> scores(static_cast<std::size_t>(tokens * columns));
    IndexLogitsArgs logits;
    logits.score = args.score;
    logits.score.row_ends = view(all);
    logits.logits = {scores.data(), kF32, {tokens, columns}};
    index_logits(logits);
    context.observer->tensor(tensor_name("index_scores"), logits.logits);
  }
  args.mapping = TopkMapping::kPageTable;
  args.mapping_page_table = args.score.page_table;
  args.mapping_page_size = context.caches.compressed.page_size;
  run();
}

void Attention::select_at_random(const Context& context, std::int64_t topk) {
  const StepBatch& batch = context.batch;
  const std::int64_t page_size = context.caches.compressed.page_size;
  std::unordered_set<std::int64_t> chosen;
  std::vector<std::int64_t> entries;
  for (std::int64_t t = 0; t < batch.num_tokens(); ++t) {
    const auto token = static_cast<std::size_t>(t);
    const std::int64_t visible = context.indices.c4_ends[token], count = std::min(topk, visible);
    std::uint64_t counter = mix(mix(context.selection.seed + static_cast<std::uint64_t>(layer_)) +
                                static_cast<std::uint64_t>(batch.positions[token]));
    // Floyd's sampling: `count` distinct entries of `visible`, each set equally likely.
    chosen.clear();
    for (std::int64_t j = visible - count; j < visible; ++j) {
      const auto candidate = static_cast<std::int64_t>(mix(++counter) % static_cast<std::uint64_t>(j + 1));
      if (!chosen.insert(candidate).second) chosen.insert(j);
    }
    entries.assign(chosen.begin(), chosen.end());
    std::sort(entries.begin(), entries.end());
    const std::int32_t* pages =
        batch.compressed_pages.pages.data() + batch.token_to_request[token] * batch.compressed_pages.max_pages;
    std::int32_t* slots = selected_slots_ + t * topk;
    std::fill_n(slots, topk, -1);
    for (std::int64_t e : entries) {
      *slots++ = static_cast<std::int32_t>(pages[e / page_size] * page_size + e % page_size);
    }
  }
}

void Attention::observe_compressed(const Context& context, const PagedCache& cache, const std::string& name) {
  const StepBatch& batch = context.batch;
  const std::int64_t entries = batch.num_tokens() / ratio_;
  std::vector<std::int64_t> slots;
  for (std::int64_t e = 0; e < entries; ++e) {
    slots.push_back(batch.compressed_pages.pages[static_cast<std::size_t>(e / cache.page_size)] * cache.page_size +
                    e % cache.page_size);
  }
  std::vector<float> rows(static_cast<std::size_t>(entries * cache.head_dim));
  const TensorView rows_view(rows.data(), kF32, {entries, cache.head_dim});
  cache_read(cache, view(slots), rows_view);
  context.observer->tensor(name, rows_view);
}

}  // namespace tamis::model
