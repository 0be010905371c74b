#pragma once

// Compares a finished TopkCall with the reference, bit for bit: indices, values and certificate of every row.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "topk/reference.hpp"
#include "topk_run.hpp"

namespace tamis::test {

inline void expect_row_as_reference(const TopkCall& c, std::int64_t row) {
  const reference::TopkRow want = reference::topk_row(c.args, row);
  const std::vector<std::int64_t> mapped = reference::topk_mapped(c.args, row, want);
  for (std::int64_t i = 0; i < c.args.k; ++i) {
    ASSERT_EQ(c.index(row, i), mapped[static_cast<std::size_t>(i)])
        << "row " << row << ", winner " << i << " of " << want.positions.size();
  }
  if (c.args.values.present()) {
    const DType dtype = c.args.values.dtype();
    const std::uint32_t quiet_nan = dtype == DType::kFloat32    ? 0x7FC00000U
                                    : dtype == DType::kBFloat16 ? 0x7FC0U
                                                                : 0x7E00U;
    for (std::int64_t i = 0; i < c.args.k; ++i) {
      std::uint32_t expected = quiet_nan;
      if (i < static_cast<std::int64_t>(want.positions.size())) {
        const std::int64_t at =
            row * c.args.scores.stride(0) + want.start + want.positions[static_cast<std::size_t>(i)];
        expected = dtype == DType::kFloat32 ? topk_cpu::load_at<std::uint32_t>(c.args.scores.data(), at)
                                            : topk_cpu::load_at<std::uint16_t>(c.args.scores.data(), at);
      }
      ASSERT_EQ(c.value_bits(row, i), expected) << "row " << row << ", value " << i;
    }
  }
  if (c.args.certificate.present()) {
    const TopkCertificate got = c.certificate_row(row);
    if (std::isnan(want.certificate.threshold)) EXPECT_TRUE(std::isnan(got.threshold)) << "row " << row;
    else EXPECT_EQ(got.threshold, want.certificate.threshold) << "row " << row;
    EXPECT_EQ(got.num_above, want.certificate.num_above) << "row " << row;
    EXPECT_EQ(got.num_equal, want.certificate.num_equal) << "row " << row;
    EXPECT_EQ(got.num_equal_won, want.certificate.num_equal_won) << "row " << row;
  }
}

inline void expect_as_reference(const TopkCall& c) {
  for (std::int64_t r = 0; r < c.args.scores.size(0) && !testing::Test::HasFailure(); ++r) {
    expect_row_as_reference(c, r);
  }
}

}  // namespace tamis::test
