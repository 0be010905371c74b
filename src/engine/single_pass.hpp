#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/transformer.hpp"

namespace tamis::engine {

/// Runs one text through the model in a single step, without a scheduler, for comparisons with golden values.
/// @return [tokens.size(), vocab_size] logits.
std::vector<float> single_pass(model::Transformer& model, std::span<const std::int32_t> tokens,
                               const model::Transformer::StepOptions& options);

}  // namespace tamis::engine
