#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv_caches.hpp"
#include "model/step.hpp"

namespace tamis::engine {

/// Puts a step together: tokens of several requests, their pages, slots and the compression plans.
class BatchBuilder {
 public:
  explicit BatchBuilder(const model::ModelConfig& config) : window_tokens_(config.sliding_window) {}

  /// Adds the next tokens of a request, at positions start, start + 1, ...; takes pages for them and gives back those
  /// that no later token can see.
  void add(RequestPages& pages, std::int64_t start, std::span<const std::int32_t> tokens);

  /// Asks for the logits of the token added last but `back`; returns the row they will have.
  std::int64_t want_logits(std::int64_t back = 0);

  bool empty() const { return starts_.empty(); }

  /// The finished step. Valid until the builder is changed; the pages' lists must not change meanwhile.
  const model::StepBatch& finish();

  void clear();

 private:
  std::int64_t window_tokens_;
  model::StepBatch batch_;
  std::vector<const RequestPages*> pages_;
  std::vector<std::int64_t> starts_, lengths_;
};

}  // namespace tamis::engine
