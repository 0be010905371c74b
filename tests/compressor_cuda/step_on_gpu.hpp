#pragma once

// A step on the GPU beside the same step on the CPU.

#include <cstdint>
#include <string>
#include <vector>

#include "tamis/compressor.hpp"

namespace tamis::test {

inline constexpr Device kGpu{Device::Kind::kCuda, 0};

/// How often each algorithm was compared, for the count at the end of a test program.
std::string steps_compared();

class StepOnGpu {
 public:
  /// Remembers what the host's step is about to change.
  explicit StepOnGpu(const CompressArgs& host);

  /// After the host's compress(): runs the step with every algorithm that can serve it, by turns with and without a
  /// list and with rows as they lie and packed, and expects all bytes of state and cache as the host has them now (NaN
  /// for NaN), and all other memory unchanged.
  /// @param outcome_is_defined  False: state and cache may hold anything.
  void run_and_compare(bool outcome_is_defined) const;

 private:
  CompressArgs host_;
  std::vector<std::uint8_t> state_before_, cache_before_;
};

}  // namespace tamis::test
