#include "tamis/topk.hpp"

#include <cstring>
#include <string>
#include <vector>

#include "c_api/args.hpp"
#include "c_api/guard.hpp"

namespace tamis::c_api {
namespace {

static_assert(TAMIS_TOPK_ORDER_POSITION == static_cast<int>(TopkOrder::kPosition) &&
              TAMIS_TOPK_ORDER_UNSORTED == static_cast<int>(TopkOrder::kUnsorted) &&
              TAMIS_TOPK_ORDER_BY_VALUE == static_cast<int>(TopkOrder::kByValue));
static_assert(TAMIS_TOPK_MAPPING_NONE == static_cast<int>(TopkMapping::kNone) &&
              TAMIS_TOPK_MAPPING_PAGE_TABLE == static_cast<int>(TopkMapping::kPageTable) &&
              TAMIS_TOPK_MAPPING_RAGGED == static_cast<int>(TopkMapping::kRagged));
static_assert(TAMIS_TOPK_ALGORITHM_AUTO == static_cast<int>(TopkAlgorithm::kAuto) &&
              TAMIS_TOPK_ALGORITHM_IDENTITY == static_cast<int>(TopkAlgorithm::kIdentity) &&
              TAMIS_TOPK_ALGORITHM_SIMD_FILTER == static_cast<int>(TopkAlgorithm::kSimdFilter) &&
              TAMIS_TOPK_ALGORITHM_SELECT == static_cast<int>(TopkAlgorithm::kSelect) &&
              TAMIS_TOPK_ALGORITHM_REGISTERS == static_cast<int>(TopkAlgorithm::kRegisters) &&
              TAMIS_TOPK_ALGORITHM_STREAM == static_cast<int>(TopkAlgorithm::kStream) &&
              TAMIS_TOPK_ALGORITHM_GRID == static_cast<int>(TopkAlgorithm::kGrid) &&
              TAMIS_TOPK_ALGORITHM_CUB == static_cast<int>(TopkAlgorithm::kCub));
static_assert(sizeof(tamis_topk_certificate) == sizeof(TopkCertificate) &&
              offsetof(tamis_topk_certificate, threshold) == offsetof(TopkCertificate, threshold) &&
              offsetof(tamis_topk_certificate, num_above) == offsetof(TopkCertificate, num_above) &&
              offsetof(tamis_topk_certificate, num_equal) == offsetof(TopkCertificate, num_equal) &&
              offsetof(tamis_topk_certificate, num_equal_won) == offsetof(TopkCertificate, num_equal_won));

TopkArgs topk_args(const tamis_topk_args* args) {
  using C = tamis_topk_args;
  const ArgsReader read("topk", args);
  TopkArgs out;
  out.scores = read(&C::scores, "scores");
  out.row_starts = read(&C::row_starts, "row_starts");
  out.row_ends = read(&C::row_ends, "row_ends");
  out.k = read(&C::k);
  out.indices = read(&C::indices, "indices");
  out.values = read(&C::values, "values");
  out.certificate = read(&C::certificate, "certificate");
  out.order = read(&C::order, "order", TopkOrder::kByValue);
  out.mapping = read(&C::mapping, "mapping", TopkMapping::kRagged);
  out.page_table = read(&C::page_table, "page_table");
  out.row_to_table = read(&C::row_to_table, "row_to_table");
  out.page_starts = read(&C::page_starts, "page_starts");
  out.page_size = read(&C::page_size);
  out.ragged_offsets = read(&C::ragged_offsets, "ragged_offsets");
  out.algorithm = read(&C::algorithm, "algorithm", TopkAlgorithm::kCub);
  out.num_threads = read(&C::num_threads);
  out.workspace = read(&C::workspace);
  out.workspace_bytes = read(&C::workspace_bytes);
  out.stream.handle = read(&C::stream);
  return out;
}

// The reason that tamis_topk_support() last gave on this thread. Fixed, so that nothing is left to free at its end.
constexpr std::size_t kWhyBytes = 1024;
thread_local char why_text[kWhyBytes] = "";

void keep_why(const std::string& why) {
  const std::string text = why.size() < kWhyBytes ? why : why.substr(0, kWhyBytes - 4) + "...";
  std::memcpy(why_text, text.c_str(), text.size() + 1);
}

// Why a device cannot take an algorithm; empty if it can.
std::string why_not(Device device, TopkAlgorithm algorithm) {
  const std::vector<TopkSupport> support = topk_support(device);
  std::string why;
  for (const TopkSupport& entry : support) {
    if (algorithm == TopkAlgorithm::kAuto) {
      if (entry.available) return {};
      if (why.empty()) why = entry.why;
    } else if (entry.algorithm == algorithm) {
      return entry.why;
    }
  }
  if (algorithm == TopkAlgorithm::kAuto) return why;
  return core::concat(topk_algorithm_name(algorithm), " is no algorithm of ",
                      device.kind == Device::Kind::kCpu ? "the CPU" : "CUDA");
}

}  // namespace
}  // namespace tamis::c_api

using namespace tamis::c_api;  // NOLINT(google-build-using-namespace): the entries below are the end of the file

extern "C" {

const char* tamis_topk_algorithm_name(tamis_topk_algorithm algorithm) noexcept {
  if (algorithm < 0 || algorithm > TAMIS_TOPK_ALGORITHM_CUB) return "unknown algorithm";
  return tamis::topk_algorithm_name(static_cast<tamis::TopkAlgorithm>(algorithm));
}

tamis_status tamis_topk_workspace_bytes(const tamis_topk_args* args, size_t* bytes) noexcept {
  return guarded([&] {
    require({"topk", "bytes"}, bytes);
    *bytes = tamis::topk_workspace_bytes(topk_args(args));
  });
}

tamis_status tamis_topk(const tamis_topk_args* args) noexcept {
  return guarded([&] { tamis::topk(topk_args(args)); });
}

tamis_status tamis_topk_choose(const tamis_topk_args* args, tamis_topk_algorithm* algorithm,
                               const char** why) noexcept {
  return guarded([&] {
    const tamis::TopkChoice choice = tamis::topk_choose(topk_args(args));
    if (algorithm != nullptr) *algorithm = static_cast<tamis_topk_algorithm>(choice.algorithm);
    if (why != nullptr) *why = choice.why;
  });
}

tamis_status tamis_topk_support(int32_t device_kind, int32_t device_index, tamis_topk_algorithm algorithm,
                                int32_t* available, const char** why) noexcept {
  return guarded([&] {
    require({"topk_support", "available"}, available);
    const tamis::Device on = device({"topk_support", "device"}, {device_kind, device_index});
    const auto which = enumerator({"topk_support", "algorithm"}, algorithm, tamis::TopkAlgorithm::kCub);
    const std::string reason = why_not(on, which);
    keep_why(reason);
    *available = reason.empty() ? 1 : 0;
    if (why != nullptr) *why = why_text;
  });
}

tamis_status tamis_topk_row_ends(const int32_t* seq_lens, int64_t num_requests, int64_t next_n, int64_t compress_ratio,
                                 int32_t* row_ends) noexcept {
  return guarded([&] {
    const auto in = span("topk_row_ends", "num_requests", "seq_lens", seq_lens, num_requests);
    // The extent of row_ends is ours to say here, so it is next_n that must be sound before the two are multiplied.
    TAMIS_CHECK(next_n >= 1 && next_n <= kMaxCount, tamis::Status::kInvalidArgument, "topk_row_ends: next_n is ",
                next_n, ", must be in [1, ", kMaxCount, "]");
    const auto out = span("topk_row_ends", "num_requests * next_n", "row_ends", row_ends, num_requests * next_n);
    tamis::topk_row_ends(in, next_n, compress_ratio, out);
  });
}

}  // extern "C"
