#pragma once

// The one function that computes index scores on the CPU. index_logits() stores its results, index_topk() feeds them to
// the selection: both see the same fp32 numbers.
//
// Lanes are keys. A segment of keys is decoded once, transposed, and then met by every row of the request that looks at
// it; each lane runs through the 128 dims in ascending order with FMA, so a score does not depend on its neighbours, on
// the width of the vectors, or on which columns are computed beside it:
//   dot[h, j] = fma over c of q[h, c] * k[c, j]       (from 0, c = 0 .. 127)
//   sum[j]    = fma over h of w[h] * max(0, dot)      (from 0, h = 0 .. heads - 1)
//   score[j]  = sum[j] * key_scale[j]
// AVX2, AVX-512 and NEON give equal bits. SSE4 and the scalar target have no FMA and round each product, so their last
// bits differ.

#include <cstdint>

#include "indexer/params.hpp"

namespace tamis::indexer {

// Keys of a panel: two AVX-512 vectors. A panel of fp32 keys is 16 KiB, half of a 32 KiB L1.
inline constexpr int kPanelKeys = 32;
// Keys of a segment, and so the columns computed at a time. 128 KiB of decoded keys stay in L2 beside one row's
// queries; larger segments would repack the queries more rarely, but packing is 2% of the work at this size.
inline constexpr int kSegmentKeys = 256;
inline constexpr int kSegmentPanels = kSegmentKeys / kPanelKeys;
// Heads that the inner loop takes together: 8 heads x 2 vectors are 16 accumulators, 10 loads for 16 FMAs.
inline constexpr int kHeadGroup = 8;
// Heads packed at a time: all of DeepSeek's 64. More heads run in chunks and carry the sum.
inline constexpr int kChunkHeads = 64;

/// Scratch of one worker, about 165 KiB; contents may be anything before begin_scoring().
struct ScoreScratch {
  // Decoded keys [panel][dim][key], their scales, and where they lie.
  alignas(64) float keys[kSegmentKeys * kHeadDim];
  alignas(64) float key_scales[kSegmentKeys];
  // Queries of one row, [group][dim][head], and their weights; zeros past the last, never added.
  alignas(64) float packed_q[kChunkHeads * kHeadDim];
  alignas(64) float packed_weights[kChunkHeads];
  const std::uint8_t* key_data[kSegmentKeys];
  const std::uint8_t* key_scale_data[kSegmentKeys];
  bool key_missing[kSegmentKeys];
  bool any_missing;
  std::int64_t packed_row;
};

/// Makes a scratch that holds anything ready for a call.
inline void begin_scoring(ScoreScratch& scratch) { scratch.packed_row = -1; }

/// Decodes the keys of columns [begin, end) of a table into the scratch. All of them lie in the segment of
/// kSegmentKeys columns that starts at `segment`, a multiple of kSegmentKeys. No other key is read.
void decode_segment(const IndexScoreParams& p, std::int64_t table, std::int64_t segment, std::int64_t begin,
                    std::int64_t end, ScoreScratch& scratch);

/// Scores of one row against columns [begin, end) of the decoded segment: column j goes to scores[j - segment]. Whole
/// panels are computed, so the other elements of scores [kSegmentKeys] may be overwritten with anything. Missing keys
/// score -inf.
/// @param scores  64-byte aligned.
void score_segment(const IndexScoreParams& p, std::int64_t row, std::int64_t segment, std::int64_t begin,
                   std::int64_t end, ScoreScratch& scratch, float* scores);

}  // namespace tamis::indexer
