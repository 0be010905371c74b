#include "engine/page_pool.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tamis/status.hpp"

namespace tamis::engine {
namespace {

TEST(PagePool, HandsOutEachPageOnceAndTakesItBack) {
  PagePool pool("test", 5);
  std::set<std::int32_t> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.take());
  EXPECT_EQ(pages, (std::set<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.num_taken(), 5);
  pool.give_back(3);
  EXPECT_EQ(pool.take(), 3);
}

TEST(PagePool, AnEmptyPoolIsABrokenPromise) {
  PagePool pool("window", 1);
  pool.take();
  try {
    pool.take();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kInternal);
    EXPECT_STREQ(error.what(), "pool window: all 1 pages are taken; a request took more than it reserved");
  }
}

TEST(PagePool, ReservationsAreCountedApartFromTaking) {
  PagePool pool("test", 4);
  pool.reserve(3);
  EXPECT_TRUE(pool.can_reserve(1));
  EXPECT_FALSE(pool.can_reserve(2));
  EXPECT_THROW(pool.reserve(2), Error);
  pool.unreserve(3);
  EXPECT_TRUE(pool.can_reserve(4));
}

TEST(PageList, AWindowGivesPagesBackBehindIt) {
  PagePool pool("test", 3);
  PageList list(pool, 4);
  std::int64_t most = 0;
  for (std::int64_t p = 0; p < 100; ++p) {  // a window of 5 positions over pages of 4: at most 3 pages at once
    list.drop_below(std::max<std::int64_t>(0, p - 4));
    list.grow(p + 1);
    most = std::max(most, pool.num_taken());
    EXPECT_EQ(list.slot(p) % 4, p % 4);
    EXPECT_GE(list.slot(std::max<std::int64_t>(0, p - 4)), 0) << "still in the window";
  }
  EXPECT_LE(most, 3);
  EXPECT_EQ(list.pages()[0], -1);
  list.release();
  EXPECT_EQ(pool.num_taken(), 0);
}

}  // namespace
}  // namespace tamis::engine
