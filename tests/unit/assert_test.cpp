// SAILOR_ASSERT as the developers' builds compile it.
#ifndef SAILOR_ASSERTIONS
#define SAILOR_ASSERTIONS
#endif
#include "core/assert.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace sailor::assert_test {
namespace {

TEST(Assertions, AFailedOneSaysWhatAndWhereAndEndsTheProgram) {
  const int batch = 7;
  EXPECT_DEATH(SAILOR_ASSERT(batch == 8, fmt::format("{} of 8 sequences", batch)),
               "sailor: assertion failed at .*assert_test.cpp:[0-9]+: 7 of 8 sequences \\(batch == 8\\); "
               "this is a bug in Sailor, please report it");
}

TEST(Assertions, TheMessageIsMadeOnlyWhenItIsShown) {
  bool made = false;
  const auto message = [&] {
    made = true;
    return std::string("text");
  };
  SAILOR_ASSERT(1 + 1 == 2, message());
  EXPECT_FALSE(made);
}

}  // namespace
}  // namespace sailor::assert_test
