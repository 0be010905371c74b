// One pass over a row with a rising threshold, and the exact cut of what survives.
//
// Filter:  64 scores at a time are compared with the threshold, and the numbers of the stretches that hold a survivor
//          go to a short list without a branch (a survivor every few hundred scores would mispredict each time). Only
//          listed stretches are looked at again, for a mask of survivors that are taken out one by one or, when they
//          are many, by compressing vectors.
// Compare: on the raw bits, one or two instructions a vector. T >= 0: signed bits > T. T < 0: unsigned bits < bits of
// T,
//          which takes in all positives. Either lets positive NaN through; it is stopped at the second look.
// Cut:     repeated halving of the key range with SIMD partition, at most 32 rounds over a shrinking set.
// Definition: topk/reference.hpp.

#include "topk/cpu/candidates.hpp"

#include <cmath>
#include <type_traits>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "topk/cpu/candidates.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "topk/cpu/row_output.hpp"

#ifndef TAMIS_TOPK_COMPRESS_ORDER
#define TAMIS_TOPK_COMPRESS_ORDER
namespace tamis::topk_cpu {
// For each mask of 8 lanes: the lanes it picks in ascending order, then lane 0.
struct CompressOrder {
  std::uint8_t lanes[256][8];
};
constexpr CompressOrder make_compress_order() {
  CompressOrder order{};
  for (int mask = 0; mask < 256; ++mask) {
    int n = 0;
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) order.lanes[mask][n++] = static_cast<std::uint8_t>(lane);
    }
  }
  return order;
}
inline constexpr CompressOrder kCompressOrder = make_compress_order();
}  // namespace tamis::topk_cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tamis::topk_cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of at most 16 scores, so that a group of 64 bytes is a whole number of vectors on every target.
using DKey = hn::CappedTag<std::int32_t, 16>;
using DBits = hn::Rebind<std::uint32_t, DKey>;
using DHalf = hn::Rebind<std::uint16_t, DKey>;
using VKey = hn::Vec<DKey>;
using VBits = hn::Vec<DBits>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(DKey()));
static_assert(kLanes <= 16 && 16 % kLanes == 0, "a group of 16 scores is a whole number of vectors");

// Scores that are looked at together: their survivors fit one 64-bit mask.
constexpr std::int64_t kStretch = 64;
// Stretches scanned before their survivors are appended: 64 KiB of fp32 scores. Few of them are revisited, from the
// second-level cache; shorter blocks end their loops, and mispredict, more often.
constexpr std::int64_t kStretchesPerBlock = 256;
// From this many survivors in a stretch on, compressing whole vectors beats taking scores out one by one.
constexpr int kDense = 8;

// first, first + 1, ... Highway 1.0.3 builds Iota(d, variable) through memory; this keeps the constant in a register.
HWY_INLINE VBits positions_from(std::uint32_t first) {
  const DBits d;
  return hn::Add(hn::Iota(d, 0), hn::Set(d, first));
}

// A mask as an integer, lane 0 in bit 0.
template <class D, class M>
HWY_INLINE std::uint64_t mask_bits(D d, M mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  if constexpr (hn::MaxLanes(D()) <= 8) return bytes[0] & ((1U << hn::MaxLanes(D())) - 1U);
  else if constexpr (hn::MaxLanes(D()) == 16) return load_at<std::uint16_t>(bytes, 0);
  else return load_at<std::uint32_t>(bytes, 0);
}

// The lanes of v that the mask picks, then anything.
// GCC 12 copies the table of Highway 1.0.3's 8-lane Compress to the stack at every use (1 KiB by rep movs, 30 ns); with
// 8 lanes the table here takes its place. With another compiler or Highway, try Compress alone again.
template <class D, class M>
HWY_INLINE auto compress(D d, hn::Vec<D> v, M mask) {
  if constexpr (hn::MaxLanes(D()) == 8) {
    const hn::Rebind<std::uint8_t, D> bytes;
    const auto order = hn::PromoteTo(DBits(), hn::LoadU(bytes, kCompressOrder.lanes[mask_bits(d, mask)]));
    return hn::TableLookupLanes(v, hn::IndicesFromVec(d, order));
  } else {
    return hn::Compress(v, mask);
  }
}

// a >= b; Highway 1.0.3 has it for floats only.
HWY_INLINE hn::Mask<DKey> at_least(VKey a, VKey b) { return hn::Not(hn::Lt(a, b)); }

// Signed magnitude; NaN becomes kNanKey.
HWY_INLINE VKey keys_of(VBits bits, std::uint32_t inf_bits) {
  const DKey d;
  const VKey raw = hn::BitCast(d, bits);
  const VKey magnitude = hn::And(raw, hn::Set(d, 0x7FFFFFFF));
  const VKey sign = hn::ShiftRight<31>(raw);
  const VKey key = hn::Sub(hn::Xor(magnitude, sign), sign);
  const auto is_nan = hn::Gt(magnitude, hn::Set(d, static_cast<std::int32_t>(inf_bits)));
  return hn::IfThenElse(is_nan, hn::Set(d, kNanKey), key);
}

// How scores of T (uint32_t: fp32, uint16_t: bf16 or fp16) come into vectors and bits.
template <typename T>
struct Lane;

template <>
struct Lane<std::uint32_t> {
  using DRaw = DKey;
  static HWY_INLINE VBits load_bits(const char* at) {
    return hn::LoadU(DBits(), reinterpret_cast<const std::uint32_t*>(at));
  }
  static std::uint32_t bits_at(const char* scores, std::int64_t i) { return load_at<std::uint32_t>(scores, i); }
  static std::int32_t raw_threshold(std::int32_t threshold) { return threshold; }
  static std::uint32_t raw_magnitude(std::int32_t threshold) {
    return 0x80000000U | static_cast<std::uint32_t>(-threshold);
  }
};

template <>
struct Lane<std::uint16_t> {
  using DRaw = hn::CappedTag<std::int16_t, 32>;
  static HWY_INLINE VBits load_bits(const char* at) {
    return hn::ShiftLeft<16>(hn::PromoteTo(DBits(), hn::LoadU(DHalf(), reinterpret_cast<const std::uint16_t*>(at))));
  }
  static std::uint32_t bits_at(const char* scores, std::int64_t i) {
    return static_cast<std::uint32_t>(load_at<std::uint16_t>(scores, i)) << 16;
  }
  // score * 65536 > threshold is score > floor(threshold / 65536), and magnitude * 65536 < -threshold is
  // magnitude < ceil(-threshold / 65536).
  static std::int16_t raw_threshold(std::int32_t threshold) { return static_cast<std::int16_t>(threshold >> 16); }
  static std::uint16_t raw_magnitude(std::int32_t threshold) {
    return static_cast<std::uint16_t>(0x8000U | ((static_cast<std::uint32_t>(-threshold) + 0xFFFFU) >> 16));
  }
};

// Which of 64 scores may have a key > threshold. Compares raw bits: signed and above those of a threshold >= 0,
// unsigned and below those of a threshold < 0.
template <typename T, bool kNegative>
class Sieve {
  using L = Lane<T>;
  using S = std::make_signed_t<T>;
  using D = hn::Rebind<std::conditional_t<kNegative, T, S>, typename L::DRaw>;
  using Raw = hn::TFromD<D>;
  static constexpr std::int64_t kRawLanes = static_cast<std::int64_t>(hn::MaxLanes(D()));
  static constexpr std::int64_t kVectorBytes = kRawLanes * static_cast<std::int64_t>(sizeof(T));

 public:
  explicit HWY_INLINE Sieve(std::int32_t threshold)
      : bound_(hn::Set(D(), static_cast<Raw>(kNegative ? static_cast<Raw>(L::raw_magnitude(threshold))
                                                       : static_cast<Raw>(L::raw_threshold(threshold))))) {}

  // Whether there is any: the best lane of all vectors, compared once.
  HWY_INLINE bool any(const char* at) const {
    auto best = load(at);
    for (std::int64_t i = 1; i < kStretch / kRawLanes; ++i) {
      if constexpr (kNegative) best = hn::Min(best, load(at + i * kVectorBytes));
      else best = hn::Max(best, load(at + i * kVectorBytes));
    }
    return !hn::AllFalse(D(), passes(best));
  }

  HWY_INLINE std::uint64_t survivors(const char* at) const {
    std::uint64_t bits = 0;
    for (std::int64_t i = 0; i < kStretch / kRawLanes; ++i) {
      bits |= mask_bits(D(), passes(load(at + i * kVectorBytes))) << (i * kRawLanes);
    }
    return bits;
  }

 private:
  static HWY_INLINE hn::Vec<D> load(const char* at) { return hn::LoadU(D(), reinterpret_cast<const Raw*>(at)); }
  HWY_INLINE hn::Mask<D> passes(hn::Vec<D> v) const {
    if constexpr (kNegative) return hn::Lt(v, bound_);
    else return hn::Gt(v, bound_);
  }

  hn::Vec<D> bound_;
};

// Lists the stretches of [0, num_stretches) that may hold a key > threshold. An entry past the list's end is always
// written and only counted if it belongs: no branch to mispredict.
template <typename T, bool kNegative>
HWY_INLINE std::int64_t scan_stretches(const char* scores, std::int64_t num_stretches, std::int32_t threshold,
                                       std::uint16_t* HWY_RESTRICT hits) {
  constexpr std::int64_t kBytes = kStretch * static_cast<std::int64_t>(sizeof(T));
  const Sieve<T, kNegative> sieve(threshold);
  std::int64_t num_hits = 0, s = 0;
  const auto look = [&](std::int64_t stretch) HWY_ATTR {
    hits[num_hits] = static_cast<std::uint16_t>(stretch);
    num_hits += sieve.any(scores + stretch * kBytes) ? 1 : 0;
  };
  for (; s + 4 <= num_stretches; s += 4) {
    for (std::int64_t i = 0; i < 4; ++i) look(s + i);  // unrolled: half of a short loop is counting
  }
  for (; s < num_stretches; ++s) look(s);
  return num_hits;
}

struct Selected {
  std::int32_t key;
  std::int64_t rank_among_equal;
};

// The rank-th largest (1-based) of keys[0, count), whose minimum and maximum are lo and hi. Destroys both arrays.
// Each round halves [lo, hi], which then shrinks to the keys that are really there.
HWY_INLINE Selected select_key(std::int32_t* keys, std::int32_t* other, std::int64_t count, std::int64_t rank,
                               std::int32_t lo, std::int32_t hi) {
  const DKey d;
  while (lo < hi) {
    const auto middle = static_cast<std::int32_t>(((static_cast<std::int64_t>(lo) + hi) >> 1) + 1);
    const VKey pivot = hn::Set(d, middle);
    VKey lowest_high = hn::Set(d, hi);
    VKey highest_low = hn::Set(d, lo);
    std::int64_t num_high = 0, num_low = 0;
    const auto partition = [&](VKey v, hn::Mask<DKey> high, hn::Mask<DKey> low) HWY_ATTR {
      lowest_high = hn::Min(lowest_high, hn::IfThenElse(high, v, lowest_high));
      highest_low = hn::Max(highest_low, hn::IfThenElse(low, v, highest_low));
      hn::StoreU(compress(d, v, high), d, other + num_high);
      hn::StoreU(compress(d, v, low), d, keys + num_low);  // never past what has been read
      num_high += static_cast<std::int64_t>(hn::CountTrue(d, high));
      num_low += static_cast<std::int64_t>(hn::CountTrue(d, low));
    };
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const VKey v = hn::LoadU(d, keys + i);
      const auto high = at_least(v, pivot);
      partition(v, high, hn::Not(high));
    }
    if (i < count) {
      const VKey v = hn::LoadU(d, keys + i);
      const auto valid = hn::FirstN(d, static_cast<std::size_t>(count - i));
      const auto high = at_least(v, pivot);
      partition(v, hn::And(valid, high), hn::AndNot(high, valid));
    }
    if (num_high >= rank) {
      std::swap(keys, other);
      count = num_high;
      lo = hn::GetLane(hn::MinOfLanes(d, lowest_high));
    } else {
      rank -= num_high;
      count = num_low;
      hi = hn::GetLane(hn::MaxOfLanes(d, highest_low));
    }
  }
  return {lo, rank};
}

HWY_INLINE void raise_threshold(Candidates& c, std::int32_t key) {
  // Above NaN means everything but NaN: the key just below -inf.
  c.threshold = std::max(key, -static_cast<std::int32_t>(c.inf_bits) - 1);
  c.open = false;
}

void keep_best(Candidates& c) {
  const DKey d;
  const DBits du;
  // 1. Keys of all candidates and their range.
  VKey lowest = hn::Set(d, std::numeric_limits<std::int32_t>::max());
  VKey highest = hn::Set(d, kNanKey);
  std::int64_t i = 0;
  for (; i + kLanes <= c.count; i += kLanes) {
    const VKey keys = keys_of(hn::LoadU(du, c.bits + i), c.inf_bits);
    hn::StoreU(keys, d, c.keys_a + i);
    lowest = hn::Min(lowest, keys);
    highest = hn::Max(highest, keys);
  }
  std::int32_t lo = hn::GetLane(hn::MinOfLanes(d, lowest));
  std::int32_t hi = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (; i < c.count; ++i) {
    const std::int32_t key = key_of_bits(c.bits[i], c.inf_bits);
    c.keys_a[i] = key;
    lo = std::min(lo, key);
    hi = std::max(hi, key);
  }
  // 2. The k-th largest key.
  const Selected last = select_key(c.keys_a, c.keys_b, c.count, c.k, lo, hi);

  // 3. Keep, in order, all above it and the first of its equals.
  const VKey threshold = hn::Set(d, last.key);
  std::int64_t kept = 0, equal_left = last.rank_among_equal;
  const auto keep_one = [&](std::int64_t j) {
    const std::int32_t key = key_of_bits(c.bits[j], c.inf_bits);
    if (key < last.key || (key == last.key && equal_left-- <= 0)) return;
    c.bits[kept] = c.bits[j];
    c.positions[kept] = c.positions[j];
    ++kept;
  };
  i = 0;
  for (; i + kLanes <= c.count; i += kLanes) {
    const VBits bits = hn::LoadU(du, c.bits + i);
    const VKey keys = keys_of(bits, c.inf_bits);
    auto keep = hn::Gt(keys, threshold);
    const auto num_equal = static_cast<std::int64_t>(hn::CountTrue(d, hn::Eq(keys, threshold)));
    if (num_equal <= equal_left) {
      keep = at_least(keys, threshold);
      equal_left -= num_equal;
    } else if (equal_left > 0) {  // at most once: the equals run out inside this vector
      for (std::int64_t j = i; j < i + kLanes; ++j) keep_one(j);
      equal_left = 0;
      continue;
    }
    const VBits positions = hn::LoadU(du, c.positions + i);
    const auto mask = hn::RebindMask(du, keep);
    hn::StoreU(compress(du, bits, mask), du, c.bits + kept);
    hn::StoreU(compress(du, positions, mask), du, c.positions + kept);
    kept += static_cast<std::int64_t>(hn::CountTrue(du, mask));
  }
  for (; i < c.count; ++i) keep_one(i);
  c.count = kept;
  raise_threshold(c, last.key);
}

// Appends those of kLanes scores whose keys are above the threshold. Returns the new count.
template <typename T>
HWY_INLINE std::int64_t append_vector(Candidates& c, std::int64_t count, const char* at, std::uint32_t first,
                                      VKey threshold) {
  const DBits du;
  const VBits bits = Lane<T>::load_bits(at);
  const auto mask = hn::RebindMask(du, hn::Gt(keys_of(bits, c.inf_bits), threshold));
  hn::StoreU(compress(du, bits, mask), du, c.bits + count);
  hn::StoreU(compress(du, positions_from(first), mask), du, c.positions + count);
  return count + static_cast<std::int64_t>(hn::CountTrue(du, mask));
}

HWY_INLINE void append_one(Candidates& c, std::uint32_t bits, std::uint32_t position) {
  if (!c.open && key_of_bits(bits, c.inf_bits) <= c.threshold) return;
  c.bits[c.count] = bits;
  c.positions[c.count] = position;
  ++c.count;
}

// Appends the scores of the listed stretches whose keys are above the threshold. Cuts when there are too many, and
// stops there: the list is of a threshold that no longer holds, and most of what follows may now fail it. Returns how
// many of the block's stretches are done. `first` is the position of the block's first score.
template <typename T, bool kNegative>
HWY_INLINE std::int64_t append_stretches(Candidates& c, const char* block, std::uint32_t first,
                                         const std::uint16_t* hits, std::int64_t num_hits, std::int64_t num_stretches) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
  const Sieve<T, kNegative> sieve(c.threshold);
  const VKey threshold = hn::Set(DKey(), c.threshold);
  std::int64_t count = c.count;  // a local, so that its chain of additions does not run through memory
  for (std::int64_t h = 0; h < num_hits; ++h) {
    const std::int64_t begin = static_cast<std::int64_t>(hits[h]) * kStretch;
    const char* at = block + begin * kBytes;
    const std::uint32_t stretch_first = first + static_cast<std::uint32_t>(begin);
    std::uint64_t left = sieve.survivors(at);
    if (hwy::PopCount(left) < kDense) {
      for (; left != 0; left &= left - 1) {
        const auto i = static_cast<std::int64_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(left));
        const std::uint32_t bits = Lane<T>::bits_at(at, i);
        c.bits[count] = bits;
        c.positions[count] = stretch_first + static_cast<std::uint32_t>(i);
        count += (bits & 0x7FFFFFFFU) > c.inf_bits ? 0 : 1;  // the sieve lets NaN through
      }
    } else {
      for (std::int64_t i = 0; i < kStretch; i += kLanes) {
        count = append_vector<T>(c, count, at + i * kBytes, stretch_first + static_cast<std::uint32_t>(i), threshold);
      }
    }
    if (count > c.limit) {
      c.count = count;
      keep_best(c);
      return static_cast<std::int64_t>(hits[h]) + 1;
    }
  }
  c.count = count;
  return num_stretches;
}

template <typename T>
HWY_INLINE void append_all(Candidates& c, const char* scores, std::int64_t count, std::uint32_t first) {
  const DBits du;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VBits bits = Lane<T>::load_bits(scores + i * static_cast<std::int64_t>(sizeof(T)));
    hn::StoreU(bits, du, c.bits + c.count + i);
    hn::StoreU(positions_from(first + static_cast<std::uint32_t>(i)), du, c.positions + c.count + i);
  }
  for (; i < count; ++i) {
    c.bits[c.count + i] = Lane<T>::bits_at(scores, i);
    c.positions[c.count + i] = first + static_cast<std::uint32_t>(i);
  }
  c.count += count;
}

// A block of whole stretches, or its first part. Returns how many stretches are done.
template <typename T, bool kNegative>
HWY_INLINE std::int64_t feed_block(Candidates& c, const char* block, std::int64_t num_stretches, std::uint32_t first) {
  std::uint16_t hits[kStretchesPerBlock + 1];
  const std::int64_t num_hits = scan_stretches<T, kNegative>(block, num_stretches, c.threshold, hits);
  return append_stretches<T, kNegative>(c, block, first, hits, num_hits, num_stretches);
}

template <typename T>
HWY_INLINE void feed(Candidates& c, const char* scores, std::int64_t count, std::uint32_t first) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
  std::int64_t i = 0;
  // 1. Until there is a threshold everything is a candidate.
  while (c.open && i < count) {
    const std::int64_t take = std::min(count - i, c.limit - c.count);
    append_all<T>(c, scores + i * kBytes, take, first + static_cast<std::uint32_t>(i));
    i += take;
    if (i == count) return;
    if (c.count < c.k) return;  // more scores than the set was made for: outside the contract, but not out of memory
    keep_best(c);
  }
  // 2. Whole stretches, a block at a time.
  while (count - i >= kStretch) {
    const std::int64_t num_stretches = std::min((count - i) / kStretch, kStretchesPerBlock);
    const char* block = scores + i * kBytes;
    const std::uint32_t block_first = first + static_cast<std::uint32_t>(i);
    i += kStretch * (c.threshold < 0 ? feed_block<T, true>(c, block, num_stretches, block_first)
                                     : feed_block<T, false>(c, block, num_stretches, block_first));
  }
  // 3. The rest, fewer than a stretch.
  const VKey threshold = hn::Set(DKey(), c.threshold);
  for (; count - i >= kLanes; i += kLanes) {
    c.count = append_vector<T>(c, c.count, scores + i * kBytes, first + static_cast<std::uint32_t>(i), threshold);
  }
  for (; i < count; ++i) append_one(c, Lane<T>::bits_at(scores, i), first + static_cast<std::uint32_t>(i));
  if (c.count > c.limit) keep_best(c);
}

void feed_32(Candidates& c, const void* scores, std::int64_t count, std::uint32_t first) {
  feed<std::uint32_t>(c, static_cast<const char*>(scores), count, first);
}
void feed_16(Candidates& c, const void* scores, std::int64_t count, std::uint32_t first) {
  feed<std::uint16_t>(c, static_cast<const char*>(scores), count, first);
}

void feed_candidates(Candidates& c, const std::uint32_t* bits, const std::uint32_t* positions, std::int64_t count) {
  const DKey d;
  const DBits du;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VBits v = hn::LoadU(du, bits + i);
    // All pass while the set is open, NaN too.
    const VKey keys = keys_of(v, c.inf_bits);
    const auto keep = c.open ? hn::Eq(keys, keys) : hn::Gt(keys, hn::Set(d, c.threshold));
    const auto mask = hn::RebindMask(du, keep);
    hn::StoreU(compress(du, v, mask), du, c.bits + c.count);
    hn::StoreU(compress(du, hn::LoadU(du, positions + i), mask), du, c.positions + c.count);
    c.count += static_cast<std::int64_t>(hn::CountTrue(du, mask));
    if (c.count > c.limit) keep_best(c);
  }
  for (; i < count; ++i) append_one(c, bits[i], positions[i]);
  if (c.count > c.limit) keep_best(c);
}

// Where in [0, room) the j-th piece of a sample begins: pseudo-random, so that no period of the scores agrees with it.
HWY_INLINE std::int64_t sample_offset(std::int64_t j, std::int64_t room) {
  const std::uint32_t hash = static_cast<std::uint32_t>(j + 1) * 0x9E3779B1U;
  return static_cast<std::int64_t>((hash * static_cast<std::uint64_t>(room)) >> 32);
}

// Gathers the keys >= floor among one chunk of 16 scores from each of `num_chunks` equal parts of the row.
template <typename T>
HWY_INLINE std::int64_t gather_sample(const Candidates& c, const char* scores, std::int64_t count,
                                      std::int64_t num_chunks, std::int32_t floor, std::int32_t* keys) {
  const DKey d;
  const VKey lowest = hn::Set(d, floor);
  const std::int64_t part = count / num_chunks;
  std::int64_t gathered = 0;
  for (std::int64_t j = 0; j < num_chunks; ++j) {
    const std::int64_t begin = j * part + sample_offset(j, part - 16 + 1);
    for (std::int64_t i = 0; i < 16; i += kLanes) {
      const char* at = scores + (begin + i) * static_cast<std::int64_t>(sizeof(T));
      const VKey v = keys_of(Lane<T>::load_bits(at), c.inf_bits);
      const auto mask = at_least(v, lowest);
      hn::StoreU(compress(d, v, mask), d, keys + gathered);
      gathered += static_cast<std::int64_t>(hn::CountTrue(d, mask));
    }
  }
  return gathered;
}

HWY_NOINLINE std::int32_t select_from(std::int32_t* keys, std::int32_t* other, std::int64_t count, std::int64_t rank) {
  const DKey d;
  VKey lowest = hn::Set(d, std::numeric_limits<std::int32_t>::max());
  VKey highest = hn::Set(d, kNanKey);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VKey v = hn::LoadU(d, keys + i);
    lowest = hn::Min(lowest, v);
    highest = hn::Max(highest, v);
  }
  std::int32_t lo = hn::GetLane(hn::MinOfLanes(d, lowest));
  std::int32_t hi = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (; i < count; ++i) {
    lo = std::min(lo, keys[i]);
    hi = std::max(hi, keys[i]);
  }
  return select_key(keys, other, count, rank, lo, hi).key;
}

// A rank that an expected number of `expected` better ones exceeds once in about a thousand rows (three sigma of a
// Poisson count, and a constant for small ones).
HWY_INLINE std::int64_t safe_rank(double expected) {
  return static_cast<std::int64_t>(expected + 3.0 * std::sqrt(expected) + 3.0);
}

template <typename T>
HWY_INLINE void sample_threshold(Candidates& c, const char* scores, std::int64_t count, std::int64_t widening) {
  if (count <= c.limit || count < 1024) return;
  const std::int64_t sample = std::clamp<std::int64_t>(count / 16 / 16 * 16, 512, kMaxSample);
  const std::int64_t rank =
      safe_rank(static_cast<double>(c.k) * static_cast<double>(sample) / static_cast<double>(count)) * widening;
  if (rank >= sample / 2) return;
  // 256 single scores, far apart, give a floor; what lies below it need not be sorted out. If the floor was too high,
  // the whole sample is sorted out.
  constexpr std::int64_t kSmall = 256;
  const std::int64_t small_rank =
      std::min(kSmall, safe_rank(static_cast<double>(rank) * kSmall / static_cast<double>(sample)));
  const std::int64_t part = count / kSmall;
  for (std::int64_t j = 0; j < kSmall; ++j) {
    c.keys_a[j] = key_of_bits(Lane<T>::bits_at(scores, j * part + sample_offset(j, part)), c.inf_bits);
  }
  const std::int32_t floor = select_from(c.keys_a, c.keys_b, kSmall, small_rank);
  std::int64_t gathered = gather_sample<T>(c, scores, count, sample / 16, floor, c.keys_a);
  if (gathered < rank) gathered = gather_sample<T>(c, scores, count, sample / 16, kNanKey, c.keys_a);
  const std::int32_t key = select_from(c.keys_a, c.keys_b, gathered, rank);
  if (key != kNanKey) raise_threshold(c, key - 1);
}

void sample_threshold_32(Candidates& c, const void* scores, std::int64_t count, std::int64_t widening) {
  sample_threshold<std::uint32_t>(c, static_cast<const char*>(scores), count, widening);
}
void sample_threshold_16(Candidates& c, const void* scores, std::int64_t count, std::int64_t widening) {
  sample_threshold<std::uint16_t>(c, static_cast<const char*>(scores), count, widening);
}

template <typename T>
HWY_INLINE std::int64_t count_key(const char* scores, std::int64_t count, std::int32_t key, std::uint32_t inf_bits) {
  const DKey d;
  const VKey wanted = hn::Set(d, key);
  std::int64_t equal = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VBits bits = Lane<T>::load_bits(scores + i * static_cast<std::int64_t>(sizeof(T)));
    equal += static_cast<std::int64_t>(hn::CountTrue(d, hn::Eq(keys_of(bits, inf_bits), wanted)));
  }
  for (; i < count; ++i) equal += key_of_bits(Lane<T>::bits_at(scores, i), inf_bits) == key ? 1 : 0;
  return equal;
}

std::int64_t count_key_32(const void* scores, std::int64_t count, std::int32_t key, std::uint32_t inf_bits) {
  return count_key<std::uint32_t>(static_cast<const char*>(scores), count, key, inf_bits);
}
std::int64_t count_key_16(const void* scores, std::int64_t count, std::int32_t key, std::uint32_t inf_bits) {
  return count_key<std::uint16_t>(static_cast<const char*>(scores), count, key, inf_bits);
}

}  // namespace tamis::topk_cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::topk_cpu {

HWY_EXPORT(feed_32);
HWY_EXPORT(feed_16);
HWY_EXPORT(feed_candidates);
HWY_EXPORT(keep_best);
HWY_EXPORT(sample_threshold_32);
HWY_EXPORT(sample_threshold_16);
HWY_EXPORT(count_key_32);
HWY_EXPORT(count_key_16);

void feed_32(Candidates& c, const void* scores, std::int64_t count, std::uint32_t first) {
  HWY_DYNAMIC_DISPATCH(feed_32)(c, scores, count, first);
}
void feed_16(Candidates& c, const void* scores, std::int64_t count, std::uint32_t first) {
  HWY_DYNAMIC_DISPATCH(feed_16)(c, scores, count, first);
}
void feed_candidates(Candidates& c, const std::uint32_t* bits, const std::uint32_t* positions, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(feed_candidates)(c, bits, positions, count);
}
void cut(Candidates& c) { HWY_DYNAMIC_DISPATCH(keep_best)(c); }
void sample_threshold_32(Candidates& c, const void* scores, std::int64_t count, std::int64_t widening) {
  HWY_DYNAMIC_DISPATCH(sample_threshold_32)(c, scores, count, widening);
}
void sample_threshold_16(Candidates& c, const void* scores, std::int64_t count, std::int64_t widening) {
  HWY_DYNAMIC_DISPATCH(sample_threshold_16)(c, scores, count, widening);
}
std::int64_t count_key_32(const void* scores, std::int64_t count, std::int32_t key, std::uint32_t inf_bits) {
  return HWY_DYNAMIC_DISPATCH(count_key_32)(scores, count, key, inf_bits);
}
std::int64_t count_key_16(const void* scores, std::int64_t count, std::int32_t key, std::uint32_t inf_bits) {
  return HWY_DYNAMIC_DISPATCH(count_key_16)(scores, count, key, inf_bits);
}

namespace {
constexpr std::int64_t round_up_64(std::int64_t n) { return (n + 63) / 64 * 64; }
std::int64_t scratch_keys(std::int64_t k, std::int64_t max_count, bool sampled) {
  return std::max(candidate_limit(k, max_count), sampled ? kMaxSample : std::int64_t{0});
}
}  // namespace

std::size_t candidates_bytes(std::int64_t k, std::int64_t max_count, bool sampled) {
  const std::int64_t held = round_up_64(candidate_limit(k, max_count) + kSlack);
  const std::int64_t scratch = round_up_64(scratch_keys(k, max_count, sampled) + kSlack);
  return static_cast<std::size_t>(2 * held + 2 * scratch) * sizeof(std::uint32_t);
}

Candidates make_candidates(std::int64_t k, std::int64_t max_count, bool sampled, std::uint32_t inf_bits, void* memory) {
  const std::int64_t held = round_up_64(candidate_limit(k, max_count) + kSlack);
  const std::int64_t scratch = round_up_64(scratch_keys(k, max_count, sampled) + kSlack);
  Candidates c;
  c.bits = static_cast<std::uint32_t*>(memory);
  c.positions = c.bits + held;
  c.keys_a = reinterpret_cast<std::int32_t*>(c.positions + held);
  c.keys_b = c.keys_a + scratch;
  c.k = k;
  c.limit = candidate_limit(k, max_count);
  c.inf_bits = inf_bits;
  return c;
}

}  // namespace tamis::topk_cpu
#endif  // HWY_ONCE
