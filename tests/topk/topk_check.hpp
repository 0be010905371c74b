#pragma once

// Compares a finished TopkCase with the reference, bit for bit: indices, values and certificate of every row.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "topk/reference.hpp"
#include "topk_cases.hpp"

namespace tamis {

inline void expect_row_as_reference(const cases::TopkCase& c, std::int64_t row) {
  const reference::TopkRow want = reference::topk_row(c.args, row);
  const std::vector<std::int64_t> mapped = reference::topk_mapped(c.args, row, want);
  const std::vector<std::int64_t> got = c.index_row(row);
  for (std::size_t i = 0; i < mapped.size(); ++i) {
    ASSERT_EQ(got[i], mapped[i]) << "row " << row << ", winner " << i << " of " << want.positions.size();
  }
  if (c.args.values.present()) {
    const auto bytes = static_cast<std::size_t>(dtype_bytes(c.args.values.dtype()));
    const std::uint32_t quiet = c.args.values.dtype() == DType::kFloat32    ? 0x7FC00000U
                                : c.args.values.dtype() == DType::kBFloat16 ? 0x7FC0U
                                                                            : 0x7E00U;
    for (std::size_t i = 0; i < mapped.size(); ++i) {
      std::uint32_t value = 0, expected = quiet;
      std::memcpy(&value, c.values.data() + (static_cast<std::size_t>(row * c.args.values.stride(0)) + i) * bytes,
                  bytes);
      if (i < want.positions.size()) {
        const std::int64_t at = row * c.args.scores.stride(0) + want.start + want.positions[i];
        expected = 0;
        std::memcpy(&expected, static_cast<const char*>(c.args.scores.data()) + static_cast<std::size_t>(at) * bytes,
                    bytes);
      }
      ASSERT_EQ(value, expected) << "row " << row << ", value " << i;
    }
  }
  if (c.args.certificate.present()) {
    const TopkCertificate certificate = c.certificate_row(row);
    if (std::isnan(want.certificate.threshold)) EXPECT_TRUE(std::isnan(certificate.threshold)) << "row " << row;
    else EXPECT_EQ(certificate.threshold, want.certificate.threshold) << "row " << row;
    EXPECT_EQ(certificate.num_above, want.certificate.num_above) << "row " << row;
    EXPECT_EQ(certificate.num_equal, want.certificate.num_equal) << "row " << row;
    EXPECT_EQ(certificate.num_equal_won, want.certificate.num_equal_won) << "row " << row;
  }
}

inline void expect_as_reference(const cases::TopkCase& c) {
  EXPECT_TRUE(c.guards_intact);
  for (std::int64_t r = 0; r < c.args.scores.size(0) && !testing::Test::HasFatalFailure(); ++r) {
    expect_row_as_reference(c, r);
  }
}

}  // namespace tamis
