#include "model/transformer.hpp"

#include <algorithm>
#include <array>

#include "core/check.hpp"
#include "tamis/ops.hpp"

namespace tamis::model {
namespace {

constexpr auto kF32 = DType::kFloat32;
constexpr std::int64_t kRopeDim = 64;

TensorView rows_view(float* data, std::int64_t rows, std::int64_t width) { return {data, kF32, {rows, width}}; }

void norm_rows(float* data, std::int64_t rows, const std::vector<float>& weight, float eps) {
  const auto width = static_cast<std::int64_t>(weight.size());
  const TensorView view = rows_view(data, rows, width);
  rmsnorm(view, {weight.data(), kF32, {width}}, eps, view);
}

// Dimensions that the cache layouts and operations fix (S-1.2); a config may say anything.
void check_supported(const ModelConfig& config) {
  const auto check = [](const char* key, int value, int supported) {
    TAMIS_CHECK(value == supported, Status::kUnsupported, "model: ", key, " is ", value, ", only ", supported,
                " is supported");
  };
  check("head_dim", config.head_dim, 512);
  check("qk_rope_head_dim", config.qk_rope_head_dim, kRopeDim);
  for (const LayerConfig& layer : config.layers) {
    if (layer.has_indexer()) check("index_head_dim", config.index_head_dim, 128);
  }
}

}  // namespace

Transformer Transformer::open(const std::filesystem::path& directory) {
  const ModelConfig config = ModelConfig::open(directory);
  return Transformer(Checkpoint::open(directory), config);
}

Transformer::Layer::Layer(const Checkpoint& checkpoint, const ModelConfig& config, int number)
    : attn_norm(checkpoint.read_fp32("layers." + std::to_string(number) + ".attn_norm.weight", {config.hidden_size})),
      ffn_norm(checkpoint.read_fp32("layers." + std::to_string(number) + ".ffn_norm.weight", {config.hidden_size})),
      attn_connection(checkpoint, "layers." + std::to_string(number) + ".hc_attn", config),
      ffn_connection(checkpoint, "layers." + std::to_string(number) + ".hc_ffn", config),
      attention(checkpoint, config, number),
      moe(checkpoint, "layers." + std::to_string(number) + ".ffn.", config,
          config.layers[static_cast<std::size_t>(number)].hash_routing) {}

Transformer::Transformer(const Checkpoint& checkpoint, const ModelConfig& config)
    : config_(config), hyper_head_(checkpoint, config) {
  check_supported(config);
  embedding_ = checkpoint.read_fp32("embed.weight", {config.vocab_size, config.hidden_size});
  norm_ = checkpoint.read_fp32("norm.weight", {config.hidden_size});
  head_ = config.tie_word_embeddings
              ? gemm::Linear(embedding_, config.vocab_size, config.hidden_size)
              : gemm::Linear(checkpoint.read_fp32("head.weight", {config.vocab_size, config.hidden_size}),
                             config.vocab_size, config.hidden_size);
  layers_.reserve(static_cast<std::size_t>(config.num_hidden_layers));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) layers_.emplace_back(checkpoint, config, layer);
}

void Transformer::grow_rope_tables(std::int64_t positions) {
  if (positions <= rope_positions_) return;
  rope_positions_ = std::min<std::int64_t>(std::max<std::int64_t>({positions, 2 * rope_positions_, 1024}),
                                           config_.max_position_embeddings);
  const auto fill = [&](double base, const RopeScaling& scaling, std::vector<float>& table) {
    std::array<double, kRopeDim / 2> frequencies{};
    rope_frequencies(base, scaling, frequencies);
    table.resize(static_cast<std::size_t>(rope_positions_ * kRopeDim));
    rope_table(frequencies, rows_view(table.data(), rope_positions_, kRopeDim));
  };
  fill(config_.rope_theta, {}, plain_rope_);
  fill(config_.compress_rope_theta, config_.compress_rope_scaling, compressed_rope_);
}

StepIndices Transformer::make_indices(const StepBatch& batch, std::span<const LayerCaches> caches) const {
  StepIndices out;
  const auto tokens = static_cast<std::size_t>(batch.num_tokens());
  const std::int64_t window = config_.sliding_window;
  const std::int64_t page_size = caches[0].window.page_size;
  // A config may say any window; rows are no wider than there are positions.
  out.window_width = std::min(window, *std::max_element(batch.positions.begin(), batch.positions.end()) + 1);
  out.window_slots.assign(tokens * static_cast<std::size_t>(out.window_width), -1);
  out.window_lens.resize(tokens);
  out.c128_lens.resize(tokens);
  out.c4_ends.resize(tokens);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::int64_t p = batch.positions[t];
    const std::int64_t length = std::min(p + 1, window);
    const std::int32_t* pages =
        batch.window_pages.pages.data() + batch.token_to_request[t] * batch.window_pages.max_pages;
    std::int32_t* slots = out.window_slots.data() + static_cast<std::int64_t>(t) * out.window_width;
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t position = p - length + 1 + i;
      slots[i] = static_cast<std::int32_t>(pages[position / page_size] * page_size + position % page_size);
    }
    out.window_lens[t] = static_cast<std::int32_t>(length);
    out.c128_lens[t] = static_cast<std::int32_t>((p + 1) / 128);
    out.c4_ends[t] = static_cast<std::int32_t>((p + 1) / 4);
    out.c128_width = std::max<std::int64_t>(out.c128_width, out.c128_lens[t]);
    out.c4_columns = std::max<std::int64_t>(out.c4_columns, out.c4_ends[t]);
  }
  constexpr std::int64_t kC128PageEntries = kPageTokens / 128;
  out.c128_slots.assign(tokens * static_cast<std::size_t>(out.c128_width), -1);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::int32_t* pages =
        batch.compressed_pages.pages.data() + batch.token_to_request[t] * batch.compressed_pages.max_pages;
    std::int32_t* slots = out.c128_slots.data() + static_cast<std::int64_t>(t) * out.c128_width;
    for (std::int64_t e = 0; e < out.c128_lens[t]; ++e) {
      slots[e] = static_cast<std::int32_t>(pages[e / kC128PageEntries] * kC128PageEntries + e % kC128PageEntries);
    }
  }
  return out;
}

void Transformer::forward(const StepBatch& batch, std::span<const LayerCaches> caches, const StepOptions& options,
                          float* logits, StageTimes& times) {
  const std::int64_t tokens = batch.num_tokens(), hidden = config_.hidden_size, mult = config_.hc_mult;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const int threads = options.num_threads;
  if (tokens == 0) return;
  for (std::int32_t token : batch.tokens) {
    TAMIS_CHECK(token >= 0 && token < config_.vocab_size, Status::kInvalidArgument, "forward: token id ", token,
                ", must be in [0, ", config_.vocab_size, ")");
  }
  const std::int64_t last_position = *std::max_element(batch.positions.begin(), batch.positions.end());
  TAMIS_CHECK(last_position < config_.max_position_embeddings, Status::kInvalidArgument, "forward: position ",
              last_position, ", the model ends at ", config_.max_position_embeddings);
  const auto rows = static_cast<std::int64_t>(batch.logit_rows.size());
  for (std::int64_t row : batch.logit_rows) {
    TAMIS_CHECK(row >= 0 && row < tokens, Status::kInvalidArgument, "forward: logits of row ", row, ", must be in [0, ",
                tokens, ")");
  }

  float* streams = streams_.get(tokens * mult * hidden);
  StepIndices indices;
  {
    const StageTimer timer(times, Stage::kEmbed);
    grow_rope_tables(last_position + 1);
    indices = make_indices(batch, caches);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* row = embedding_.data() + batch.tokens[static_cast<std::size_t>(t)] * hidden;
      for (std::int64_t i = 0; i < mult; ++i) std::copy_n(row, hidden, streams + (t * mult + i) * hidden);
    }
  }
  const RopeTables rope = {rows_view(plain_rope_.data(), rope_positions_, kRopeDim),
                           rows_view(compressed_rope_.data(), rope_positions_, kRopeDim)};
  float* x = collapsed_.get(std::max(tokens, rows) * hidden);  // At the end it holds the rows whose logits are wanted.
  float* u = sublayer_out_.get(tokens * hidden);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const auto observe = [&](const char* name, float* data) {
      if (options.observer == nullptr) return;
      options.observer->tensor("layers." + std::to_string(l) + "." + name, rows_view(data, tokens, hidden));
    };
    const auto collapse = [&](HyperConnection& connection, const std::vector<float>& norm) {
      const StageTimer timer(times, Stage::kHyper);
      connection.collapse(streams, tokens, x, threads);
      norm_rows(x, tokens, norm, eps);
    };
    const auto expand = [&](const HyperConnection& connection) {
      const StageTimer timer(times, Stage::kHyper);
      connection.expand(u, tokens, streams, threads);
    };

    collapse(layer.attn_connection, layer.attn_norm);
    observe("attn_in", x);
    layer.attention.forward(
        x, u,
        {batch, indices, rope, caches[l], options.selection, options.kv_precision == KvPrecision::kFloat8, times,
         options.observer, options.topk_backend, options.compressor_backend, threads});
    observe("attn_out", u);
    expand(layer.attn_connection);

    collapse(layer.ffn_connection, layer.ffn_norm);
    {
      const StageTimer timer(times, Stage::kExperts);
      layer.moe.forward(x, batch.tokens.data(), tokens, u, threads);
    }
    observe("ffn_out", u);
    expand(layer.ffn_connection);
    if (options.observer != nullptr) {
      options.observer->tensor("layers." + std::to_string(l) + ".out",
                               TensorView(streams, kF32, {tokens, mult, hidden}));
    }
  }

  const StageTimer timer(times, Stage::kHead);
  if (rows == 0) return;
  float* picked = picked_.get(rows * mult * hidden);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy_n(streams + batch.logit_rows[static_cast<std::size_t>(r)] * mult * hidden, mult * hidden,
                picked + r * mult * hidden);
  }
  hyper_head_.collapse(picked, rows, x, threads);
  norm_rows(x, rows, norm_, eps);
  head_(x, rows, logits, threads);
}

}  // namespace tamis::model
