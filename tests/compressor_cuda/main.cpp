// Without a GPU nothing of this program can run: it says so, with the number of tests, and exits with 77, which ctest
// counts as skipped.

#include <gtest/gtest.h>

#include <cstdio>

#include "core/cuda/gpu.hpp"
#include "step_on_gpu.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  std::string why;
  if (tamis::core::num_gpus(&why) == 0) {
    std::printf("%d GPU tests skipped: no CUDA device (%s)\n", testing::UnitTest::GetInstance()->total_test_count(),
                why.c_str());
    return 77;
  }
  const int result = RUN_ALL_TESTS();
  std::printf("steps compared, by algorithm: %s\n", tamis::test::steps_compared().c_str());
  return result;
}
