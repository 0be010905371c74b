#include "engine/engine.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

#include "core/check.hpp"

namespace tamis::engine {
namespace {

// Pages have 32-bit numbers, and no sum below overflows.
constexpr std::int64_t kMaxSetting = std::int64_t{1} << 30;

void check_setting(const char* name, std::int64_t value) {
  TAMIS_CHECK(value >= 1, Status::kInvalidArgument, "engine: ", name, " is ", value, ", must be at least 1");
  TAMIS_CHECK(value <= kMaxSetting, Status::kInvalidArgument, "engine: ", name, " is ", value, ", must be at most ",
              kMaxSetting);
}

}  // namespace

struct Engine::Request {
  RequestId id;
  RequestSpec spec;
  Sampler sampler;
  PageCounts reserved;
  RequestPages pages;
  std::vector<std::int32_t> tokens;  // the prompt, then what was drawn
  std::int64_t num_processed = 0;    // of them: their keys are cached
  std::int64_t num_new = 0;          // of them: drawn
  bool done = false;
};

Engine::Engine(model::Transformer& model, const EngineConfig& config)
    : model_(model), config_(config), builder_(model.config()) {
  check_setting("prefill_chunk", config.prefill_chunk);
  check_setting("step_tokens", config.step_tokens);
  check_setting("cache_tokens", config.cache_tokens);
  check_setting("max_requests", config.max_requests);
  TAMIS_CHECK(config.selection.topk >= 0, Status::kInvalidArgument, "engine: index_topk is ", config.selection.topk,
              ", must be at least 1, or 0 for the model's own");
  // Room for one request of all the tokens, or for max_requests that share them: each has its own window and state, and
  // a last page that is not full.
  const model::ModelConfig& m = model.config();
  const std::int64_t requests = std::min(config.max_requests, config.cache_tokens);
  const std::int64_t share = (config.cache_tokens + requests - 1) / requests;
  PageCounts capacity = pages_needed(share, config.prefill_chunk, m);
  capacity.window *= requests;
  capacity.compressed *= requests;
  capacity.c4_state *= requests;
  capacity.c128_state *= requests;
  const PageCounts one = pages_needed(config.cache_tokens, config.prefill_chunk, m);
  capacity.window = std::max(capacity.window, one.window);
  capacity.compressed = std::max(capacity.compressed, one.compressed);
  capacity.c4_state = std::max(capacity.c4_state, one.c4_state);
  capacity.c128_state = std::max(capacity.c128_state, one.c128_state);
  caches_ = std::make_unique<KvCaches>(m, config.kv_precision, capacity);
  if (config.topk_backend != nullptr) {
    const std::int64_t tokens = std::min<std::int64_t>(config.cache_tokens, m.max_position_embeddings);
    config.topk_backend->reserve({.rows = std::min(config.step_tokens, config.cache_tokens),
                                  .columns = tokens / 4,
                                  .k = config.selection.topk > 0 ? config.selection.topk : m.index_topk,
                                  .page_size = model::kPageTokens / 4,
                                  .num_threads = config.num_threads});
  }
}

Engine::~Engine() = default;

void check_length(std::int64_t prompt_tokens, std::int64_t new_tokens, const model::ModelConfig& model) {
  // Unsigned, because the sum of two large numbers would overflow.
  const std::uint64_t total = static_cast<std::uint64_t>(prompt_tokens) + static_cast<std::uint64_t>(new_tokens);
  TAMIS_CHECK(total <= static_cast<std::uint64_t>(model.max_position_embeddings), Status::kInvalidArgument,
              "request: a prompt of ", prompt_tokens, " tokens and ", new_tokens, " new ones make ", total,
              ", the model's limit is ", model.max_position_embeddings);
}

RequestId Engine::add(RequestSpec spec) {
  const model::ModelConfig& m = model_.config();
  TAMIS_CHECK(!spec.prompt.empty(), Status::kInvalidArgument, "request: the prompt has no tokens");
  TAMIS_CHECK(spec.max_new_tokens >= 0, Status::kInvalidArgument, "request: max_new_tokens is ", spec.max_new_tokens,
              ", must be at least 0");
  for (std::int32_t token : spec.prompt) {
    TAMIS_CHECK(token >= 0 && token < m.vocab_size, Status::kInvalidArgument, "request: prompt holds token ", token,
                ", must be in [0, ", m.vocab_size, ")");
  }
  check_length(static_cast<std::int64_t>(spec.prompt.size()), spec.max_new_tokens, m);
  const auto total = static_cast<std::int64_t>(spec.prompt.size()) + spec.max_new_tokens;
  const auto prompt_tokens = static_cast<std::int64_t>(spec.prompt.size());
  for (std::size_t i = 0; i < spec.scored_positions.size(); ++i) {
    const std::int64_t position = spec.scored_positions[i];
    TAMIS_CHECK(position >= 0 && position < prompt_tokens, Status::kInvalidArgument, "request: scored_positions holds ",
                position, ", must be in [0, ", prompt_tokens, ")");
    TAMIS_CHECK(i == 0 || position > spec.scored_positions[i - 1], Status::kInvalidArgument,
                "request: scored_positions holds ", position, " after ", spec.scored_positions[i - 1], ", must ascend");
  }
  const PageCounts need = pages_needed(total, config_.prefill_chunk, m);
  const auto check_pool = [](const char* pool, std::int64_t needed, std::int64_t has) {
    TAMIS_CHECK(needed <= has, Status::kResourceExhausted, "request: needs ", needed, " pages of the ", pool,
                " cache, its pool has ", has);
  };
  check_pool("window", need.window, caches_->capacity().window);
  check_pool("compressed", need.compressed, caches_->capacity().compressed);
  check_pool("C4 state", need.c4_state, caches_->capacity().c4_state);
  check_pool("C128 state", need.c128_state, caches_->capacity().c128_state);
  Sampler sampler(spec.sampling);
  std::vector<std::int32_t> tokens = std::move(spec.prompt);
  const RequestId id = next_id_++;
  waiting_.push_back(std::make_unique<Request>(
      Request{id, std::move(spec), std::move(sampler), need, caches_->make_request_pages(), std::move(tokens)}));
  return id;
}

void Engine::admit() {
  // In order of arrival: a large request at the front is not overtaken for ever by small ones behind it.
  std::size_t admitted = 0;
  while (admitted < waiting_.size() && static_cast<std::int64_t>(running_.size()) < config_.max_requests &&
         caches_->can_reserve(waiting_[admitted]->reserved)) {
    caches_->reserve(waiting_[admitted]->reserved);
    running_.push_back(std::move(waiting_[admitted++]));
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::int64_t>(admitted));
}

void Engine::build_batch() {
  builder_.clear();
  logit_rows_.clear();
  advances_.clear();
  batch_prompt_tokens_ = 0;
  std::int64_t budget = config_.step_tokens;
  // Decode first (a drawn token is pending), then prompts by arrival.
  for (const bool decode : {true, false}) {
    for (const auto& entry : running_) {
      Request& request = *entry;
      if (budget == 0 || (request.num_new > 0) != decode) continue;
      const std::int64_t pending = static_cast<std::int64_t>(request.tokens.size()) - request.num_processed;
      const std::int64_t count = std::min({pending, config_.prefill_chunk, budget});
      const std::int64_t start = request.num_processed, end = start + count;
      builder_.add(request.pages, start,
                   std::span(request.tokens).subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(count)));
      advances_.push_back({&request, end});
      budget -= count;
      if (!decode) batch_prompt_tokens_ += count;
      const auto& scored = request.spec.scored_positions;
      auto next = std::lower_bound(scored.begin(), scored.end(), start);
      for (; next != scored.end() && *next < end - 1; ++next) {
        builder_.want_logits(end - 1 - *next);
        logit_rows_.push_back({&request, *next, false, true});
      }
      const bool last = count == pending, last_scored = next != scored.end() && *next == end - 1;
      if (last || last_scored) {
        builder_.want_logits();
        logit_rows_.push_back({&request, end - 1, last, last_scored});
      }
    }
  }
}

bool Engine::step() {
  admit();
  build_batch();
  if (builder_.empty()) return false;
  const auto start = std::chrono::steady_clock::now();
  const model::StepBatch& batch = builder_.finish();
  const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
  logits_.resize(logit_rows_.size() * vocab);
  model_.forward(batch, caches_->layers(),
                 {.selection = config_.selection,
                  .kv_precision = config_.kv_precision,
                  .topk_backend = config_.topk_backend,
                  .compressor_backend = config_.compressor_backend,
                  .num_threads = config_.num_threads},
                 logits_.data(), stats_.stages);
  for (const Advance& advance : advances_) advance.request->num_processed = advance.end;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++stats_.steps;
  stats_.prompt_tokens += batch_prompt_tokens_;
  (batch_prompt_tokens_ > 0 ? stats_.prefill_seconds : stats_.decode_seconds) += seconds;
  stats_.c4_skipped += batch.c4.plan == CompressPlan::kNone;
  stats_.c128_skipped += batch.c128.plan == CompressPlan::kNone;

  in_step_ = true;
  std::exception_ptr failure;
  for (std::size_t row = 0; row < logit_rows_.size(); ++row) {
    try {
      deliver(logit_rows_[row], std::span(logits_).subspan(row * vocab, vocab));
    } catch (...) {
      logit_rows_[row].request->done = true;
      if (!failure) failure = std::current_exception();
    }
  }
  in_step_ = false;
  sweep();
  if (failure) std::rethrow_exception(failure);
  return true;
}

void Engine::deliver(const LogitRow& row, std::span<const float> logits) {
  Request& request = *row.request;
  const RequestSpec& spec = request.spec;
  if (request.done) return;  // cancelled, or failed, earlier in this step
  TAMIS_CHECK(std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); }),
              Status::kDataError, "forward: logits of position ", row.position,
              " are not finite; the weights or caches hold NaN or infinity");
  if (row.scored && spec.on_scores) spec.on_scores(row.position, logits);
  if (!row.next_token || request.done) return;
  if (spec.max_new_tokens == 0) {
    request.done = true;
    return;
  }
  const std::int32_t token = request.sampler.sample(logits);
  if (std::find(spec.stop_tokens.begin(), spec.stop_tokens.end(), token) != spec.stop_tokens.end()) {
    request.done = true;
    return;
  }
  ++request.num_new;
  ++stats_.new_tokens;
  stats_.decode_tokens += batch_prompt_tokens_ == 0;
  request.tokens.push_back(token);
  request.done = request.num_new == spec.max_new_tokens;  // the last token's own keys are never needed
  if (spec.on_token) spec.on_token(token);
}

void Engine::sweep() {
  for (const auto& request : running_) {
    if (!request->done) continue;
    request->pages.window.release();
    request->pages.compressed.release();
    request->pages.c4_state.release();
    request->pages.c128_state.release();
    caches_->unreserve(request->reserved);
  }
  std::erase_if(running_, [](const auto& request) { return request->done; });
}

bool Engine::cancel(RequestId id) {
  const auto has_id = [&](const auto& request) { return request->id == id; };
  if (std::erase_if(waiting_, has_id) > 0) return true;
  const auto found = std::find_if(running_.begin(), running_.end(), has_id);
  if (found == running_.end()) return false;
  (*found)->done = true;
  if (!in_step_) sweep();
  return true;
}

std::int64_t Engine::num_unfinished() const { return static_cast<std::int64_t>(waiting_.size() + running_.size()); }

std::optional<std::int64_t> Engine::num_processed(RequestId id) const {
  for (const auto* list : {&waiting_, &running_}) {
    for (const auto& request : *list) {
      if (request->id == id) return request->num_processed;
    }
  }
  return std::nullopt;
}

}  // namespace tamis::engine
