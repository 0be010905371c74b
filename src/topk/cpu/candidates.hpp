#pragma once

// The candidate set behind every CPU selection: scores that may still be among a row's k largest, in ascending
// position.
//
// A score is held as 32 bits whose integer order (sign and magnitude) is the order of the numbers: fp32 as it is, a
// 16-bit format shifted left by 16. Its key is the signed magnitude, so that -0 and +0 share key 0, and every NaN has
// the key kNanKey below -inf. Keys are compared as integers: the result depends neither on the payload of a NaN nor on
// whether the calling thread flushes subnormals.
//
// Invariant: every position seen so far that belongs to the k best seen so far is in the set. Because positions arrive
// in ascending order and ties go to the lower position, once k candidates have keys >= t only keys > t are of interest.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tamis::topk_cpu {

inline constexpr std::int32_t kNanKey = std::numeric_limits<std::int32_t>::min();
inline constexpr std::uint32_t kInfBits32 = 0x7F800000U;  // +inf of fp32, and of bf16 shifted left by 16
inline constexpr std::uint32_t kInfBits16 = 0x7C000000U;  // +inf of fp16 shifted left by 16

/// Key of a score given as bits; `inf_bits` is +inf in the same form.
inline std::int32_t key_of_bits(std::uint32_t bits, std::uint32_t inf_bits) {
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFU);
  if (magnitude > static_cast<std::int32_t>(inf_bits)) return kNanKey;
  return (bits >> 31) != 0 ? -magnitude : magnitude;
}

/// Bits of a key: zero is +0, NaN is the quiet NaN of the format.
inline std::uint32_t bits_of_key(std::int32_t key, std::uint32_t inf_bits) {
  if (key == kNanKey) return inf_bits == kInfBits16 ? 0x7E000000U : 0x7FC00000U;
  return key < 0 ? 0x80000000U | static_cast<std::uint32_t>(-key) : static_cast<std::uint32_t>(key);
}

/// A 64-bit number whose ascending order is the contract's order, best first: larger key, then lower position.
inline std::uint64_t rank_code(std::int32_t key, std::uint32_t position) {
  const auto descending = ~(static_cast<std::uint32_t>(key) ^ 0x80000000U);
  return (static_cast<std::uint64_t>(descending) << 32) | position;
}
inline std::uint32_t position_of_code(std::uint64_t code) { return static_cast<std::uint32_t>(code); }
inline std::int32_t key_of_code(std::uint64_t code) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(code >> 32) ^ 0x80000000U);
}

/// Most scores that a first threshold is sampled from: 1/64 of a row of 262,144, so that sampling stays a small part.
inline constexpr std::int64_t kMaxSample = 8192;
/// Elements past an array's end that stores may touch: a stretch of 64 scores and one vector of 16.
inline constexpr std::int64_t kSlack = 128;

struct Candidates {
  std::uint32_t* bits = nullptr;       // [limit + kSlack]
  std::uint32_t* positions = nullptr;  // [limit + kSlack]
  std::int32_t* keys_a = nullptr;      // [scratch + kSlack], with keys_b right behind: together room for rank codes
  std::int32_t* keys_b = nullptr;      // [scratch + kSlack]
  std::int64_t k = 0;
  std::int64_t limit = 0;  // more candidates than this are cut down to k
  std::uint32_t inf_bits = kInfBits32;

  std::int64_t count = 0;
  bool open = true;            // no threshold yet: everything is a candidate, NaN included
  std::int32_t threshold = 0;  // when not open: only keys > threshold are of interest

  void begin_row() {
    count = 0;
    open = true;
  }
};

/// Candidates held before a cut. A cut costs a few passes over all of them and admits limit - k more, so twice k
/// amortises it; the constant keeps cuts rare for small k. A row never has more candidates than positions.
inline std::int64_t candidate_limit(std::int64_t k, std::int64_t max_count) {
  const std::int64_t generous = k > max_count ? max_count : 2 * k + 1024;
  return std::min(generous, max_count);
}

/// Sizes of the arrays of a Candidates; `sampled` makes room for sample_threshold().
std::size_t candidates_bytes(std::int64_t k, std::int64_t max_count, bool sampled);

/// Lays a Candidates out in `memory` (64-byte aligned, candidates_bytes(...), contents irrelevant).
Candidates make_candidates(std::int64_t k, std::int64_t max_count, bool sampled, std::uint32_t inf_bits, void* memory);

/// Offers `count` scores at positions first, first + 1, ... which are above all positions offered before.
void feed_32(Candidates& c, const void* scores, std::int64_t count, std::uint32_t first);  // fp32
void feed_16(Candidates& c, const void* scores, std::int64_t count, std::uint32_t first);  // bf16 or fp16

/// Offers candidates of another set, again in ascending position.
void feed_candidates(Candidates& c, const std::uint32_t* bits, const std::uint32_t* positions, std::int64_t count);

/// Keeps the k best candidates, in ascending position, and raises the threshold to the last of them. Only with
/// count >= k >= 1.
void cut(Candidates& c);

/// Sets a first threshold that about `k` scores of the row are expected to reach, from a sample: an ascending row is
/// then as cheap as a random one. `widening` >= 1 lowers it. May leave the set open. A guess: if the row ends with
/// fewer than k candidates, the threshold was too high and the row must be offered again.
void sample_threshold_32(Candidates& c, const void* scores, std::int64_t count, std::int64_t widening);
void sample_threshold_16(Candidates& c, const void* scores, std::int64_t count, std::int64_t widening);

/// How many of the scores have exactly this key.
std::int64_t count_key_32(const void* scores, std::int64_t count, std::int32_t key, std::uint32_t inf_bits);
std::int64_t count_key_16(const void* scores, std::int64_t count, std::int32_t key, std::uint32_t inf_bits);

}  // namespace tamis::topk_cpu
