// What a device offers, on machines with and without a GPU and in builds with and without CUDA.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/gpu_list.hpp"
#include "expect_error.hpp"
#include "tamis/topk.hpp"
#include "topk/rules.hpp"
#include "topk/support.hpp"

namespace tamis {
namespace {

std::vector<TopkAlgorithm> algorithms(const std::vector<TopkSupport>& support) {
  std::vector<TopkAlgorithm> list;
  for (const TopkSupport& entry : support) list.push_back(entry.algorithm);
  return list;
}

TEST(TopkSupport, TheCpuHasAllOfItsAlgorithms) {
  const std::vector<TopkSupport> support = topk_support({});
  EXPECT_EQ(algorithms(support),
            (std::vector<TopkAlgorithm>{TopkAlgorithm::kIdentity, TopkAlgorithm::kSimdFilter, TopkAlgorithm::kSelect}));
  for (const TopkSupport& entry : support) {
    EXPECT_TRUE(entry.available) << topk_algorithm_name(entry.algorithm);
    EXPECT_EQ(entry.why, "");
  }
}

TEST(TopkSupport, CudaListsEveryAlgorithmOfItsRulesOnce) {
  const std::vector<TopkSupport> support = topk_support({Device::Kind::kCuda, 0});
  std::set<TopkAlgorithm> of_rules;
  for (const TopkCudaRule& rule : topk_cuda_rules()) of_rules.insert(rule.algorithm);
  const std::vector<TopkAlgorithm> listed = algorithms(support);
  EXPECT_EQ(std::set<TopkAlgorithm>(listed.begin(), listed.end()), of_rules);
  EXPECT_EQ(listed.size(), of_rules.size());
  for (const TopkSupport& entry : support) {
    EXPECT_EQ(entry.available, entry.why.empty()) << topk_algorithm_name(entry.algorithm) << ": " << entry.why;
  }
}

// A device that cannot be there: always a reason, the same for every algorithm, and never an error.
TEST(TopkSupport, SaysWhyThereIsNoSuchDevice) {
  const core::GpuList gpus = core::list_gpus();
  for (const TopkSupport& entry : topk_support({Device::Kind::kCuda, 9999})) {
    EXPECT_FALSE(entry.available);
    if (core::cuda_archs().empty()) {
      EXPECT_EQ(entry.why, "this build has no CUDA kernels");
    } else if (gpus.gpus.empty()) {
      EXPECT_EQ(entry.why, gpus.why_none);
      EXPECT_TRUE(entry.why.starts_with("no CUDA device: ")) << entry.why;
    } else {
      EXPECT_EQ(entry.why, "cuda:9999 was asked for, there are " + std::to_string(gpus.gpus.size()) + " CUDA devices");
    }
  }
}

TEST(TopkSupport, RefusesAKindThatDoesNotExist) {
  EXPECT_TRUE(test::throws(Status::kInvalidArgument, "topk_support: device has kind 7, must be kCpu or kCuda", [] {
    topk_support({static_cast<Device::Kind>(7), 0});
  }));
}

TEST(TopkSupport, ChoosesWhatTheDeviceHas) {
  std::string why;
  const std::optional<TopkGpu> gpu = find_topk_gpu(0, why);
  if (!gpu) GTEST_SKIP() << why;
  std::set<TopkAlgorithm> available;
  for (const TopkSupport& entry : topk_support({Device::Kind::kCuda, 0})) {
    if (entry.available) available.insert(entry.algorithm);
  }
  for (const std::int64_t rows : {1, 64, 4096}) {
    for (const std::int64_t width : {100, 10000, 100000, 1 << 23}) {
      for (const std::int64_t k : {64, 2048, 8192}) {
        for (const TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
          const TopkCudaRule& rule = choose_topk_cuda_rule({rows, width, k, order}, *gpu);
          EXPECT_TRUE(available.contains(rule.algorithm)) << rule.name;
        }
      }
    }
  }
}

// The layout that `tamis explain` prints, where the plan of a call can be had without a GPU.
TEST(TopkSupport, LayoutFollowsTheRules) {
  const TopkCase c{4, 131072, 2048};
  EXPECT_EQ(topk_cuda_layout(c, TopkAlgorithm::kGrid, kTopkH200).blocks_per_row,
            topk_grid_slices(4, 131072, kTopkH200));
  EXPECT_EQ(topk_cuda_layout(c, TopkAlgorithm::kStream, kTopkH200).capacity, topk_capacity(2048, kTopkH200));
  EXPECT_EQ(topk_cuda_layout(c, TopkAlgorithm::kSelect, kTopkH200).capacity, 0U);
  if (core::cuda_archs().empty()) GTEST_SKIP() << "this build has no CUDA kernels: workspaces are not known";
  EXPECT_EQ(topk_cuda_layout(c, TopkAlgorithm::kStream, kTopkH200).workspace_bytes, 0U);
  EXPECT_GT(topk_cuda_layout(c, TopkAlgorithm::kGrid, kTopkH200).workspace_bytes, 0U);
}

}  // namespace
}  // namespace tamis
