#include "gpu_test_main.hpp"
#include "step_on_gpu.hpp"

int main(int argc, char** argv) { return tamis::test::run_gpu_tests(argc, argv, "steps", tamis::test::steps_compared); }
