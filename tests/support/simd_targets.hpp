#pragma once

// Runs a body once for each SIMD target that this machine has and that Highway compiles here, so that a test can
// compare the bits between instruction sets.

#include <hwy/highway.h>

#include <cstdint>

namespace tamis::test {

/// Calls body(name) with dispatch forced to each target in turn. Not for tests that run threads beside it: the choice
/// is one of the whole process.
template <typename Body>
void for_each_simd_target(const Body& body) {
  for (std::int64_t rest = hwy::SupportedTargets() & (HWY_TARGETS); rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace tamis::test
