#pragma once

#include <cstddef>
#include <cstdint>

#include "compressor/params.hpp"
#include "tamis/compressor.hpp"

namespace tamis::compressor {

/// Scratch bytes of one worker, a multiple of 64. A call works with one, and uses as many workers as it has.
std::size_t worker_scratch_bytes(std::int64_t window, std::int64_t head_dim);

/// One step. Parameters are checked; `workspace` is 64-byte aligned and holds `workers` scratch areas, workers >= 1.
void compress_cpu(const CompressorParams& params, CompressPlan plan, int workers, std::byte* workspace);

}  // namespace tamis::compressor
