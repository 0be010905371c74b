#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tamis/status.hpp"

namespace tamis::test {

/// Status and text of the tamis::Error that body() throws; kOk and "nothing was thrown" if it does not.
template <typename Body>
std::pair<Status, std::string> error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
  return {Status::kOk, "nothing was thrown"};
}

/// EXPECT_TRUE(throws(Status::kInvalidArgument, "topk: k is -1, must be >= 0", [&] { topk(args); })): the whole text.
template <typename Body>
::testing::AssertionResult throws(Status status, const std::string& text, const Body& body) {
  const auto [got_status, got_text] = error_of(body);
  if (got_status == status && got_text == text) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "got      " << status_name(got_status) << ": " << got_text << "\nexpected "
                                       << status_name(status) << ": " << text;
}

}  // namespace tamis::test
