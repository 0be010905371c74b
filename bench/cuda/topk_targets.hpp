#pragma once

// What top-k on the GPU is measured against.

#include <cstdint>

#include "tamis/tensor.hpp"

namespace tamis::bench {

/// A shape with its goal and what others reach. All times are of an H200 (driver 580, CUDA 13.0), measured as here:
/// graph replay, inputs rotated past the L2. Others neither order by position nor fix ties nor rank NaN.
struct TopkTarget {
  std::int64_t rows, width, k;
  DType dtype;
  double goal_us;
  double best_other_us;     // of FlashInfer's two exact kernels, DeepSelect and torch.topk
  const char* best_other;   // which that is
  double torch_us;          // torch.topk 2.11
  bool every_kind = false;  // other distributions are measured, too
};

inline constexpr char kFlashInfer[] = "FlashInfer 0.6.18", kDeepSelect[] = "DeepSelect sm_90a";

inline constexpr TopkTarget kTopkTargets[] = {
    {1, 8192, 2048, DType::kFloat32, 4, 6.5, kDeepSelect, 37.3},
    {1, 131072, 2048, DType::kFloat32, 6, 13.6, kFlashInfer, 53.0},
    {1, 262144, 512, DType::kFloat32, 6, 18.8, kFlashInfer, 63.8},
    {1, 1048576, 512, DType::kFloat32, 9, 43.8, kFlashInfer, 109.0},
    {16, 65536, 512, DType::kFloat32, 7, 15.3, kFlashInfer, 63.3},
    {16, 262144, 512, DType::kFloat32, 11, 26.6, kFlashInfer, 90.1},
    {64, 8192, 2048, DType::kFloat32, 5, 7.8, kDeepSelect, 49.0},
    {64, 65536, 512, DType::kFloat32, 9, 16.9, kDeepSelect, 93.3},
    {64, 131072, 2048, DType::kFloat32, 15, 41.9, kFlashInfer, 139.1, true},
    {64, 262144, 512, DType::kFloat32, 21, 37.0, kDeepSelect, 248.0, true},
    {64, 262144, 2048, DType::kFloat32, 22, 70.3, kFlashInfer, 250.0},
    {64, 1048576, 512, DType::kFloat32, 65, 103.0, kDeepSelect, 818.0},
    {256, 8192, 512, DType::kFloat32, 7, 12.6, kDeepSelect, 69.4},
    {256, 65536, 512, DType::kFloat32, 22, 34.2, kDeepSelect, 251.8, true},
    {256, 262144, 512, DType::kFloat32, 65, 82.7, kDeepSelect, 816.0},
    {256, 1048576, 512, DType::kFloat32, 250, 280.0, kDeepSelect, 2977.0},
    {256, 1048576, 2048, DType::kFloat32, 255, 369.0, kDeepSelect, 2989.0},
    {1, 262144, 512, DType::kBFloat16, 6, 14.7, kFlashInfer, 41.6},
    {16, 262144, 512, DType::kBFloat16, 8, 22.6, kFlashInfer, 66.0},
    {64, 65536, 512, DType::kBFloat16, 8, 12.5, kDeepSelect, 69.5},
    {64, 262144, 512, DType::kBFloat16, 14, 29.2, kDeepSelect, 156.8},
    {256, 65536, 512, DType::kBFloat16, 14, 19.8, kDeepSelect, 165.0},
    {256, 1048576, 512, DType::kBFloat16, 128, 144.0, kDeepSelect, 1953.0},
};

/// Other distributions may take this much longer than the normal one.
inline constexpr double kOtherKindsGoal = 1.1;

}  // namespace tamis::bench
