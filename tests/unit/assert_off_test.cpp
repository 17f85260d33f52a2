// SAILOR_ASSERT as release builds compile it.
#undef SAILOR_ASSERTIONS
#include "core/assert.hpp"

#include <gtest/gtest.h>

namespace sailor::assert_off_test {
namespace {

TEST(Assertions, InReleaseBuildsTheConditionIsNotEvaluated) {
  int evaluated = 0;
  const auto is_broken = [&] {
    ++evaluated;
    return false;
  };
  SAILOR_ASSERT(is_broken(), "never shown");
  EXPECT_EQ(evaluated, 0);
}

}  // namespace
}  // namespace sailor::assert_off_test
