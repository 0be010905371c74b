#pragma once

// The definition of top-k, slow and obvious: decode to double, sort all positions of the window by rank, take k.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "core/float_formats.hpp"
#include "tamis/topk.hpp"
#include "topk/cpu/row_output.hpp"

namespace tamis::reference {

/// One row's answer.
struct TopkRow {
  std::vector<std::int64_t> positions;  // relative to the window's start, in the order asked for
  std::int64_t start = 0;
  TopkCertificate certificate{};
};

/// Score (row, column) as a number; every fp32, bf16 and fp16 is a double.
inline double topk_score(const ConstTensorView& scores, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * scores.stride(0) + column;
  switch (scores.dtype()) {
    case DType::kBFloat16: return core::bf16_to_float(topk_cpu::load_at<std::uint16_t>(scores.data(), at));
    case DType::kFloat16: return core::fp16_to_float(topk_cpu::load_at<std::uint16_t>(scores.data(), at));
    default: return topk_cpu::load_at<float>(scores.data(), at);
  }
}

/// a ranks strictly above b: NaN < -inf < finite < +inf. Doubles already compare -0 and +0 equal.
inline bool topk_ranks_above(double a, double b) {
  if (std::isnan(a)) return false;
  return std::isnan(b) || a > b;
}

inline TopkRow topk_row(const TopkArgs& args, std::int64_t row) {
  const std::int64_t width = args.scores.size(1);
  const auto bound = [&](const ConstTensorView& view, std::int64_t absent) -> std::int64_t {
    return view.present() ? topk_cpu::load_at<std::int32_t>(view.data(), row) : absent;
  };
  TopkRow result;
  result.start = std::clamp<std::int64_t>(bound(args.row_starts, 0), 0, width);
  const std::int64_t end = std::clamp(bound(args.row_ends, width), result.start, width);

  std::vector<double> window;
  for (std::int64_t column = result.start; column < end; ++column)
    window.push_back(topk_score(args.scores, row, column));
  std::vector<std::int64_t> order(window.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](std::int64_t position) { return window[static_cast<std::size_t>(position)]; };
  // Stable: equal scores stay in ascending position.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return topk_ranks_above(score(a), score(b)); });
  order.resize(static_cast<std::size_t>(std::min<std::int64_t>(args.k, static_cast<std::int64_t>(order.size()))));

  result.certificate.threshold = std::numeric_limits<float>::quiet_NaN();
  if (!order.empty()) {
    const double last = score(order.back());
    const auto equal = [&](double s) { return !topk_ranks_above(s, last) && !topk_ranks_above(last, s); };
    result.certificate.threshold = static_cast<float>(last);
    for (double s : window) {
      result.certificate.num_above += topk_ranks_above(s, last) ? 1 : 0;
      result.certificate.num_equal += equal(s) ? 1 : 0;
    }
    for (std::int64_t position : order) result.certificate.num_equal_won += equal(score(position)) ? 1 : 0;
  }
  if (args.order != TopkOrder::kByValue) std::sort(order.begin(), order.end());
  result.positions = order;
  return result;
}

/// What indices[row, :] must hold for these winners: mapped, then -1.
inline std::vector<std::int64_t> topk_mapped(const TopkArgs& args, std::int64_t row, const TopkRow& winners) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(args.k), -1);
  const auto int_at = [](const ConstTensorView& view, std::int64_t at) -> std::int64_t {
    return view.dtype() == DType::kInt64 ? topk_cpu::load_at<std::int64_t>(view.data(), at)
                                         : topk_cpu::load_at<std::int32_t>(view.data(), at);
  };
  for (std::size_t i = 0; i < winners.positions.size(); ++i) {
    const std::int64_t position = winners.positions[i];
    if (args.mapping == TopkMapping::kNone) out[i] = position;
    if (args.mapping == TopkMapping::kRagged) out[i] = position + int_at(args.ragged_offsets, row);
    if (args.mapping == TopkMapping::kPageTable) {
      const std::int64_t table = args.row_to_table.present() ? int_at(args.row_to_table, row) : row;
      const std::int64_t entry = position + (args.page_starts.present() ? int_at(args.page_starts, row) : 0);
      if (table < 0 || table >= args.page_table.size(0) || entry < 0) continue;
      const std::int64_t page_index = entry / args.page_size;
      if (page_index >= args.page_table.size(1)) continue;
      const std::int64_t page = int_at(args.page_table, table * args.page_table.stride(0) + page_index);
      if (page >= 0) out[i] = page * args.page_size + entry % args.page_size;
    }
    if (args.indices.dtype() == DType::kInt32 && out[i] != static_cast<std::int32_t>(out[i])) out[i] = -1;
  }
  return out;
}

}  // namespace tamis::reference
