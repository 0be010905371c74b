// Kernels that floors are measured with. None of them is an operation of the library: they only read, or only multiply
// and add, as fast as the run-time dispatched instruction set allows.

#include "bench/floors.hpp"

#include <algorithm>
#include <chrono>
#include <map>

#include "core/float_formats.hpp"
#include "core/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/floors.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tamis::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// An addition takes 3 or 4 cycles and two start in each: 8 accumulators keep both units busy.
float SumFp32(const float* values, std::size_t count) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  std::size_t i = 0;
  for (; i + 8 * lanes <= count; i += 8 * lanes) {
    a0 = hn::Add(a0, hn::LoadU(d, values + i));
    a1 = hn::Add(a1, hn::LoadU(d, values + i + lanes));
    a2 = hn::Add(a2, hn::LoadU(d, values + i + 2 * lanes));
    a3 = hn::Add(a3, hn::LoadU(d, values + i + 3 * lanes));
    a4 = hn::Add(a4, hn::LoadU(d, values + i + 4 * lanes));
    a5 = hn::Add(a5, hn::LoadU(d, values + i + 5 * lanes));
    a6 = hn::Add(a6, hn::LoadU(d, values + i + 6 * lanes));
    a7 = hn::Add(a7, hn::LoadU(d, values + i + 7 * lanes));
  }
  const V low = hn::Add(hn::Add(a0, a1), hn::Add(a2, a3));
  const V high = hn::Add(hn::Add(a4, a5), hn::Add(a6, a7));
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
  for (; i < count; ++i) sum += values[i];
  return sum;
}

// Each 32-bit word holds two bf16: the upper one as it is, the lower one shifted up.
float SumBf16(const std::uint16_t* bits, std::size_t count) {
#if HWY_TARGET == HWY_SCALAR  // has no vector that two bf16 fit into
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += core::bf16_to_float(bits[i]);
  return sum;
#else
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::Repartition<std::uint16_t, D> d16;
  const std::size_t lanes = hn::Lanes(d16);
  const auto upper = hn::Set(du, 0xFFFF0000U);
  V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto w0 = hn::BitCast(du, hn::LoadU(d16, bits + i));
    const auto w1 = hn::BitCast(du, hn::LoadU(d16, bits + i + lanes));
    const auto w2 = hn::BitCast(du, hn::LoadU(d16, bits + i + 2 * lanes));
    const auto w3 = hn::BitCast(du, hn::LoadU(d16, bits + i + 3 * lanes));
    a0 = hn::Add(a0, hn::BitCast(d, hn::And(w0, upper)));
    a1 = hn::Add(a1, hn::BitCast(d, hn::ShiftLeft<16>(w0)));
    a2 = hn::Add(a2, hn::BitCast(d, hn::And(w1, upper)));
    a3 = hn::Add(a3, hn::BitCast(d, hn::ShiftLeft<16>(w1)));
    a4 = hn::Add(a4, hn::BitCast(d, hn::And(w2, upper)));
    a5 = hn::Add(a5, hn::BitCast(d, hn::ShiftLeft<16>(w2)));
    a6 = hn::Add(a6, hn::BitCast(d, hn::And(w3, upper)));
    a7 = hn::Add(a7, hn::BitCast(d, hn::ShiftLeft<16>(w3)));
  }
  const V low = hn::Add(hn::Add(a0, a1), hn::Add(a2, a3));
  const V high = hn::Add(hn::Add(a4, a5), hn::Add(a6, a7));
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
  for (; i < count; ++i) sum += core::bf16_to_float(bits[i]);
  return sum;
#endif
}

// Fused multiply-adds of 10 independent chains: latency 4 or 5, two a cycle. With two operands that is 12 registers,
// which every target has. x tends to 1 (x = 0.5 x + 0.5), so no value slows the units down.
// Returns the operations done; `sink` keeps the compiler from dropping the loop.
double RunFma(std::int64_t iterations, float* sink) {
  const D d;
  const V half = hn::Set(d, 0.5F);
  const V add = hn::Set(d, *sink);
  // Each chain begins elsewhere: chains that are equal throughout are merged by the compiler.
  V x0 = hn::Iota(d, *sink), x1 = hn::Add(x0, add), x2 = hn::Add(x1, add), x3 = hn::Add(x2, add), x4 = hn::Add(x3, add);
  V x5 = hn::Add(x4, add), x6 = hn::Add(x5, add), x7 = hn::Add(x6, add), x8 = hn::Add(x7, add), x9 = hn::Add(x8, add);
  for (std::int64_t i = 0; i < iterations; ++i) {
    x0 = hn::MulAdd(x0, half, add);
    x1 = hn::MulAdd(x1, half, add);
    x2 = hn::MulAdd(x2, half, add);
    x3 = hn::MulAdd(x3, half, add);
    x4 = hn::MulAdd(x4, half, add);
    x5 = hn::MulAdd(x5, half, add);
    x6 = hn::MulAdd(x6, half, add);
    x7 = hn::MulAdd(x7, half, add);
    x8 = hn::MulAdd(x8, half, add);
    x9 = hn::MulAdd(x9, half, add);
  }
  const V sum = hn::Add(hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(hn::Add(x4, x5), hn::Add(x6, x7))),
                        hn::Add(x8, x9));
  *sink = 0.5F + 0.0F * hn::GetLane(hn::SumOfLanes(d, sum));
  return 2.0 * 10.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(iterations);
}

}  // namespace HWY_NAMESPACE
}  // namespace tamis::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::bench {
HWY_EXPORT(SumFp32);
HWY_EXPORT(SumBf16);
HWY_EXPORT(RunFma);

float sum_fp32(const float* values, std::size_t count) { return HWY_DYNAMIC_DISPATCH(SumFp32)(values, count); }
float sum_bf16(const std::uint16_t* bits, std::size_t count) { return HWY_DYNAMIC_DISPATCH(SumBf16)(bits, count); }

double fma_flops_per_us(int num_threads) {
  static std::map<int, double> known;
  const int workers = core::num_workers(num_threads);
  if (const auto found = known.find(workers); found != known.end()) return found->second;
  constexpr std::int64_t kIterations = 20'000;  // about 30 us: short enough to fall between two interruptions
  constexpr int kSamples = 200, kSamplesApiece = 16;
  double best = 0;
  // Several threads run a longer sample, so that their start does not count.
  const int apiece = workers == 1 ? 1 : kSamplesApiece;
  for (int sample = 0; sample < kSamples / apiece + 10; ++sample) {
    std::vector<double> flops(static_cast<std::size_t>(workers));
    const auto start = std::chrono::steady_clock::now();
    core::parallel_for(workers, 1, workers, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        float sink = 0.5F;
        flops[static_cast<std::size_t>(i)] = HWY_DYNAMIC_DISPATCH(RunFma)(kIterations * apiece, &sink);
      }
    });
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    double total = 0;
    for (const double f : flops) total += f;
    best = std::max(best, total / us);
  }
  known[workers] = best;
  return best;
}

ReadWork::ReadWork(std::int64_t bytes, int num_threads)
    : values_(static_cast<std::size_t>((bytes + 3) / 4)), num_threads_(num_threads) {
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i % 17) - 8.0F;
}

Work ReadWork::work() const {
  return {[this] {
    const auto count = static_cast<std::int64_t>(values_.size());
    // Waking a worker takes longer than reading 64 KiB alone.
    const std::int64_t slices = std::clamp<std::int64_t>(count * 4 / 65536, 1, core::num_workers(num_threads_));
    core::parallel_for(slices, 1, num_threads_, [&](std::int64_t begin, std::int64_t end, int) {
      const std::int64_t first = count * begin / slices, last = count * end / slices;
      [[maybe_unused]] volatile float sink = sum_fp32(values_.data() + first, static_cast<std::size_t>(last - first));
    });
  }};
}

}  // namespace tamis::bench
#endif  // HWY_ONCE
