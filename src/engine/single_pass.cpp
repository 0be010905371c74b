#include "engine/single_pass.hpp"

#include "engine/batch_builder.hpp"
#include "engine/kv_caches.hpp"

namespace tamis::engine {

std::vector<float> single_pass(model::Transformer& model, std::span<const std::int32_t> tokens,
                               const model::Transformer::StepOptions& options) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  KvCaches caches(model.config(), options.kv_precision, pages_needed(count, count, model.config()));
  RequestPages pages = caches.make_request_pages();
  BatchBuilder builder(model.config());
  builder.add(pages, 0, tokens);
  for (std::int64_t row = 0; row < count; ++row) builder.want_logits(count - 1 - row);
  std::vector<float> logits(static_cast<std::size_t>(count * model.config().vocab_size));
  model::StageTimes times;
  model.forward(builder.finish(), caches.layers(), options, logits.data(), times);
  return logits;
}

}  // namespace tamis::engine
