#pragma once

// main() of a program of GPU tests. Without a GPU nothing of it can run: it says so, with the number of tests, and
// exits with 77, which ctest counts as skipped.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "core/cuda/gpu.hpp"

namespace tamis::test {

/// @param compared  What was compared, in the plural.  @param counts  How often, by algorithm, after the tests.
inline int run_gpu_tests(int argc, char** argv, const char* compared, std::string (*counts)()) {
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  std::string why;
  if (core::num_gpus(&why) == 0) {
    std::printf("%d GPU tests skipped: no CUDA device (%s)\n", testing::UnitTest::GetInstance()->total_test_count(),
                why.c_str());
    return 77;
  }
  const int result = RUN_ALL_TESTS();
  std::printf("%s compared, by algorithm: %s\n", compared, counts().c_str());
  return result;
}

}  // namespace tamis::test
