#pragma once

// Names of what topk() and index_topk() let a caller choose.

#include <array>
#include <string_view>
#include <utility>

#include "tamis/topk.hpp"

namespace tamis::python {

inline constexpr std::array kTopkOrders = {
    std::pair{std::string_view("position"), TopkOrder::kPosition},
    std::pair{std::string_view("unsorted"), TopkOrder::kUnsorted},
    std::pair{std::string_view("by_value"), TopkOrder::kByValue},
};

inline constexpr std::array kIndexDTypes = {
    std::pair{std::string_view("int32"), DType::kInt32},
    std::pair{std::string_view("int64"), DType::kInt64},
};

inline constexpr std::array kTopkAlgorithms = {
    std::pair{std::string_view("auto"), TopkAlgorithm::kAuto},
    std::pair{std::string_view("identity"), TopkAlgorithm::kIdentity},
    std::pair{std::string_view("simd_filter"), TopkAlgorithm::kSimdFilter},
    std::pair{std::string_view("select"), TopkAlgorithm::kSelect},
    std::pair{std::string_view("registers"), TopkAlgorithm::kRegisters},
    std::pair{std::string_view("stream"), TopkAlgorithm::kStream},
    std::pair{std::string_view("grid"), TopkAlgorithm::kGrid},
    std::pair{std::string_view("cub"), TopkAlgorithm::kCub},
};

}  // namespace tamis::python
