#pragma once

#include <string_view>

#include "indexer/params.hpp"

namespace tamis::indexer {

/// Checks what index_logits() and index_topk() have in common and turns it into params.
/// @param op  Operation as it stands at the front of an error's text.
IndexScoreParams check_score_args(const IndexScoreArgs& args, std::string_view op);

/// Throws kInvalidArgument unless num_threads >= 0.
void check_num_threads(int num_threads, std::string_view op);

/// Name of a format as it stands in errors: fp32, bf16, fp8, mxfp4.
const char* index_format_name(IndexFormat format) noexcept;

}  // namespace tamis::indexer
