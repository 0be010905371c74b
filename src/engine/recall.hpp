#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine.hpp"
#include "model/tokenizer.hpp"
#include "model/transformer.hpp"

namespace tamis::engine {

/// A text of a given length in which codes are told early and asked for at the end. Whether a model gets them right
/// shows whether its sparse attention finds what it needs.
struct RecallText {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> digit_positions;  ///< positions of the asked-for digits, ascending
};

/// Makes a text of exactly `length` tokens: prose with lines "The code of NAME is DDDDDD." at random places in its
/// first part, and the same lines again, in another order, at its end. The same arguments give the same text
/// everywhere.
/// @throws Error kInvalidArgument if the length has no room for prose (below 256, or below what the tokenizer's first
///         tokens and the lines take); kDataError if the tokenizer gives no tokens for a piece of the text.
RecallText make_recall_text(const model::Tokenizer& tokenizer, std::int64_t length, std::uint64_t seed);

struct RecallResult {
  std::int64_t digits = 0;
  std::int64_t right = 0;  ///< digits that the model finds likeliest where they stand, the text before them given
};

/// Seed of the text of one trial. Neighbouring seeds share no texts.
std::uint64_t recall_text_seed(std::uint64_t seed, std::int64_t trial);

/// Reads `trials` texts with the engine's settings.
/// @throws Error kInvalidArgument if the length is above the model's limit, and what make_recall_text throws.
/// @param on_trial  Called with the number of texts done, for progress; may be empty.
RecallResult measure_recall(model::Transformer& model, const model::Tokenizer& tokenizer, EngineConfig config,
                            std::int64_t length, std::int64_t trials, std::uint64_t seed,
                            const std::function<void(std::int64_t)>& on_trial = {});

}  // namespace tamis::engine
