#pragma once

#include "topk/cpu/candidates.hpp"

namespace tamis::topk_cpu {

/// Sorts the candidates by the contract's order: larger score first, equal scores by ascending position, NaN last.
/// Uses the key scratch, which holds at least `count` rank codes. Does not allocate.
void order_by_value(Candidates& c);

}  // namespace tamis::topk_cpu
