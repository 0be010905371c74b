#pragma once

#include <cstdint>

namespace tamis::test {

/// Calls of operator new (every form) by the calling thread so far. support/allocation_counter.cpp, linked into every
/// test program, replaces the operator.
std::int64_t allocations_of_this_thread() noexcept;

/// Counts from its construction on:
///   AllocationCounter counter;
///   topk(args);
///   EXPECT_EQ(counter.count(), 0);
class AllocationCounter {
 public:
  AllocationCounter() : start_(allocations_of_this_thread()) {}
  std::int64_t count() const { return allocations_of_this_thread() - start_; }

 private:
  std::int64_t start_;
};

}  // namespace tamis::test
