#include "gpu_run.hpp"
#include "gpu_test_main.hpp"

int main(int argc, char** argv) { return tamis::test::run_gpu_tests(argc, argv, "calls", tamis::test::gpu_run_counts); }
