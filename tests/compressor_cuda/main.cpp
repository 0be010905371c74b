#include <cstdlib>

#include "compressor/cuda/launch.hpp"
#include "gpu_test_main.hpp"
#include "step_on_gpu.hpp"

int main(int argc, char** argv) {
  if (std::getenv("TAMIS_TEST_PORTABLE_CLUSTERS") != nullptr) tamis::compressor_cuda::set_most_cluster_blocks(8);
  return tamis::test::run_gpu_tests(argc, argv, "steps", tamis::test::steps_compared);
}
