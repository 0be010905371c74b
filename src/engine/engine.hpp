#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/batch_builder.hpp"
#include "engine/kv_caches.hpp"
#include "engine/sampler.hpp"
#include "model/step.hpp"
#include "model/transformer.hpp"

namespace tamis::engine {

struct EngineConfig {
  model::KvPrecision kv_precision = model::KvPrecision::kFloat8;
  std::int64_t prefill_chunk = 512;   ///< most prompt tokens of one request in a step
  std::int64_t step_tokens = 2048;    ///< most tokens of a step over all requests
  std::int64_t cache_tokens = 65536;  ///< tokens that requests may hold in all; sizes the page pools
  std::int64_t max_requests = 64;     ///< requests that may run at once
  model::Selection selection;
  int num_threads = 0;
  model::TopkBackend* topk_backend = nullptr;  ///< who runs the indexer's selection, see make_topk_backend(); must
                                               ///< outlive the engine. Null: the CPU. Never changes a token.
  model::CompressorBackend* compressor_backend = nullptr;  ///< the same for the compressors: make_compressor_backend()
};

using RequestId = std::int64_t;

struct RequestSpec {
  std::vector<std::int32_t> prompt;
  std::int64_t max_new_tokens = 0;
  SamplingParams sampling;
  std::vector<std::int32_t> stop_tokens;             ///< one of these ends the request; it is not passed on
  std::function<void(std::int32_t token)> on_token;  ///< called for every new token, in order

  /// Prompt positions, each above the one before it, whose logits are wanted (scoring a given text), and who takes
  /// them.
  std::vector<std::int64_t> scored_positions;
  std::function<void(std::int64_t position, std::span<const float> logits)> on_scores;
};

/// Whether a prompt and its new tokens fit a model; before memory is taken for them.
/// @throws Error kInvalidArgument naming both and the model's limit. Both must be at least 0.
void check_length(std::int64_t prompt_tokens, std::int64_t new_tokens, const model::ModelConfig& model);

/// Counters since the engine was made.
struct EngineStats {
  std::int64_t steps = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t new_tokens = 0;     ///< drawn in all
  std::int64_t decode_tokens = 0;  ///< of them, drawn in steps without prompt tokens
  double prefill_seconds = 0;      ///< steps that hold prompt tokens
  double decode_seconds = 0;       ///< steps that hold none
  std::int64_t c4_skipped = 0;     ///< steps whose C4 layers had no entry to complete
  std::int64_t c128_skipped = 0;   ///< likewise C128
  model::StageTimes stages;
};

/// Runs requests of a model: chunked prefill and decode of many requests in one step, over paged caches.
///
/// Decode goes first in every step, prompts fill what is left. A request is admitted, in order of arrival, when all
/// pages it can ever need are free, so a running request never runs out; until then it waits. What a request produces
/// does not depend on the others.
class Engine {
 public:
  /// The model must outlive the engine. @throws Error kInvalidArgument naming a setting outside its range.
  Engine(model::Transformer& model, const EngineConfig& config);
  ~Engine();

  /// Queues a request.
  /// @throws Error kInvalidArgument for an empty prompt, a token outside the vocabulary, more tokens than the model's
  ///         limit, or scored positions that do not ascend within the prompt; kResourceExhausted if it needs more pages
  ///         than a pool has, naming need and pool. No other request is touched.
  RequestId add(RequestSpec spec);

  /// Runs one step. Returns false when there was nothing to do.
  ///
  /// A request ends if its logits are not finite (Error kDataError naming the position) or if one of its callbacks
  /// throws. The other requests of the step get what is theirs; then the first of these errors is thrown. If the model
  /// itself throws, no request has moved and the step may be run again.
  bool step();
  void run() {
    while (step()) {
    }
  }

  /// Ends a request early, waiting or running; its pages go back (at the end of the step when called from a callback).
  /// False if there is none of that id.
  bool cancel(RequestId id);

  std::int64_t num_unfinished() const;
  /// Prompt tokens of a request that are processed; absent once it ended.
  std::optional<std::int64_t> num_processed(RequestId id) const;
  const EngineStats& stats() const { return stats_; }
  const KvCaches& caches() const { return *caches_; }

 private:
  struct Request;

  struct LogitRow {
    Request* request;
    std::int64_t position;
    bool next_token;  ///< draw from it
    bool scored;      ///< pass it on
  };

  /// What a request does in the step that is being built.
  struct Advance {
    Request* request;
    std::int64_t end;  ///< its tokens processed once the step is through
  };

  void admit();
  void build_batch();
  void deliver(const LogitRow& row, std::span<const float> logits);
  void sweep();

  model::Transformer& model_;
  EngineConfig config_;
  std::unique_ptr<KvCaches> caches_;
  std::vector<std::unique_ptr<Request>> waiting_, running_;
  RequestId next_id_ = 0;
  BatchBuilder builder_;
  std::vector<LogitRow> logit_rows_;
  std::vector<Advance> advances_;
  std::int64_t batch_prompt_tokens_ = 0;
  bool in_step_ = false;
  std::vector<float> logits_;
  EngineStats stats_;
};

}  // namespace tamis::engine
