// Host-side questions around a step (S-3.5, S-3.7, S-3.9): may pooling be skipped, how large is a ring, which rows must
// be there. Nothing here looks at device memory.

#include <algorithm>
#include <cstdint>
#include <span>

#include "compressor/params.hpp"
#include "core/check.hpp"
#include "tamis/compressor.hpp"

namespace tamis {
namespace {

void check_ratio(const char* op, std::int64_t compress_ratio) {
  TAMIS_CHECK(compress_ratio >= 1, Status::kInvalidArgument, op, ": compress_ratio is ", compress_ratio,
              ", must be >= 1");
}

void check_not_negative(const char* op, const char* name, std::size_t i, std::int64_t value) {
  TAMIS_CHECK(value >= 0, Status::kInvalidArgument, op, ": ", name, "[", i, "] is ", value, ", must be >= 0");
}

}  // namespace

CompressPlan compress_plan(std::span<const std::int64_t> starts, std::span<const std::int64_t> query_lens,
                           std::int64_t compress_ratio, bool capturing) {
  return compress_plan(starts, starts, query_lens, compress_ratio, capturing);
}

CompressPlan compress_plan(std::span<const std::int64_t> start_lo, std::span<const std::int64_t> start_hi,
                           std::span<const std::int64_t> query_lens, std::int64_t compress_ratio, bool capturing) {
  constexpr const char* kOp = "compress_plan";
  check_ratio(kOp, compress_ratio);
  TAMIS_CHECK(start_lo.size() == query_lens.size() && start_hi.size() == query_lens.size(), Status::kInvalidArgument,
              kOp, ": ", start_lo.size(), " starts (upper bounds: ", start_hi.size(), ") and ", query_lens.size(),
              " query_lens, must be equally many");
  bool any_certain = false;
  bool any_possible = false;
  for (std::size_t i = 0; i < query_lens.size(); ++i) {
    const std::int64_t lo = start_lo[i];
    const std::int64_t hi = start_hi[i];
    const std::int64_t tokens = query_lens[i];
    check_not_negative(kOp, "start", i, lo);
    check_not_negative(kOp, "query_lens", i, tokens);
    TAMIS_CHECK(hi >= lo, Status::kInvalidArgument, kOp, ": bounds [", lo, ", ", hi, "] of request ", i,
                " are empty, must have lo <= hi");
    if (tokens == 0) continue;  // no token, no entry, wherever the request stands
    // A start s completes an entry iff s mod R >= R - tokens. The sums of the textbook form, s + tokens, could overflow
    // for stale lengths; this form cannot.
    const std::int64_t needed = compress_ratio - std::min(tokens, compress_ratio);
    const bool one_group = lo / compress_ratio == hi / compress_ratio;
    // Inside one group the remainder grows with s, so its ends decide. A range that enters another group holds both
    // the last remainder of a group (completes, since tokens >= 1) and remainder 0 (completes iff needed is 0).
    any_possible |= !one_group || hi % compress_ratio >= needed;
    any_certain |= needed == 0 || (one_group && lo % compress_ratio >= needed);
  }
  if (capturing) return CompressPlan::kUnknown;
  if (any_certain) return CompressPlan::kSome;
  return any_possible ? CompressPlan::kUnknown : CompressPlan::kNone;
}

std::int64_t compress_ring_rows(std::int64_t compress_ratio, bool overlap, std::int64_t max_drafts) {
  constexpr const char* kOp = "compress_ring_rows";
  // The sum below cannot overflow within these bounds; no step has more tokens than an int32 counts.
  constexpr std::int64_t kMaxDrafts = (std::int64_t{1} << 31) - 1;
  TAMIS_CHECK(compress_ratio >= 1 && compress_ratio <= compressor::kMaxRatio, Status::kInvalidArgument, kOp,
              ": compress_ratio is ", compress_ratio, ", must be in [1, ", compressor::kMaxRatio, "]");
  TAMIS_CHECK(max_drafts >= 0 && max_drafts <= kMaxDrafts, Status::kInvalidArgument, kOp, ": max_drafts is ",
              max_drafts, ", must be in [0, ", kMaxDrafts, "]");
  const std::int64_t window = overlap ? 2 * compress_ratio : compress_ratio;
  return (window + max_drafts + compress_ratio - 1) / compress_ratio * compress_ratio;
}

std::int64_t compress_state_begin(std::int64_t start, std::int64_t compress_ratio, bool overlap) {
  constexpr const char* kOp = "compress_state_begin";
  check_ratio(kOp, compress_ratio);
  TAMIS_CHECK(start >= 0, Status::kInvalidArgument, kOp, ": start is ", start, ", must be >= 0");
  const std::int64_t group = start / compress_ratio * compress_ratio;
  return overlap ? std::max<std::int64_t>(0, group - compress_ratio) : group;
}

}  // namespace tamis
