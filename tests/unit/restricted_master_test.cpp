// The linear program behind the bound on plans: prices worked out by hand.
#include "planner/bound/restricted_master.hpp"

#include <gtest/gtest.h>

namespace sailor::planner::restricted_master_test {
namespace {

/// Four devices of one pool and two of another. Pipelines of one device of the first get through 3 sequences, those of
/// one of each through 5.
RestrictedMaster two_pools(int min_pipelines, int max_pipelines) {
  RestrictedMaster master;
  master.add_resource(4.0, {1.0, 0.0});
  master.add_resource(2.0, {0.0, 1.0});
  master.set_pipelines(min_pipelines, max_pipelines, 100.0);
  master.add_pipeline(3.0, {1.0, 0.0});
  master.add_pipeline(5.0, {1.0, 1.0});
  return master;
}

TEST(RestrictedMaster, PricesWhatIsScarce) {
  DualPrices prices;
  // Two of each kind: 2 x 3 + 2 x 5. Another device of the first pool would give 3, of the second 5 - 3.
  EXPECT_NEAR(two_pools(1, 10).solve(prices), 16.0, 1e-9);
  EXPECT_NEAR(prices.device[0], 3.0, 1e-9);
  EXPECT_NEAR(prices.device[1], 2.0, 1e-9);
  EXPECT_NEAR(prices.each, 0.0, 1e-9);
}

TEST(RestrictedMaster, PricesPipelinesWhenTheyAreFew) {
  DualPrices prices;
  // 2 x 5 + 3; a device of the first pool is left over, another pipeline would give 3.
  EXPECT_NEAR(two_pools(1, 3).solve(prices), 13.0, 1e-9);
  EXPECT_NEAR(prices.device[0], 0.0, 1e-9);
  EXPECT_NEAR(prices.device[1], 2.0, 1e-9);
  EXPECT_NEAR(prices.each, 3.0, 1e-9);
}

TEST(RestrictedMaster, SaysWhenThereAreTooFewDevicesForThePipelines) {
  DualPrices prices;
  // Four of the five that there must be: 16 - 100.
  EXPECT_NEAR(two_pools(5, 10).solve(prices), -84.0, 1e-9);
  EXPECT_NEAR(prices.each, -100.0, 1e-9);
}

TEST(RestrictedMaster, SharesALimitOnAllDevices) {
  DualPrices prices;
  RestrictedMaster limited;
  limited.add_resource(4.0, {1.0, 0.0});
  limited.add_resource(2.0, {0.0, 1.0});
  limited.add_resource(3.0, {1.0, 1.0});
  limited.set_pipelines(1, 10, 100.0);
  limited.add_pipeline(3.0, {1.0, 0.0});
  limited.add_pipeline(5.0, {1.0, 1.0});
  // Three devices: three pipelines of one, 9, rather than 5 + 3.
  EXPECT_NEAR(limited.solve(prices), 9.0, 1e-9);
  EXPECT_NEAR(prices.device[0], 3.0, 1e-9);
  EXPECT_NEAR(prices.device[1], 3.0, 1e-9);
}

#ifdef SAILOR_ASSERTIONS
TEST(RestrictedMaster, DoesNotTakeResourcesAfterTheFirstPipeline) {
  RestrictedMaster master = two_pools(1, 10);
  EXPECT_DEATH(master.add_resource(1.0, {1.0, 1.0}),
               "src/planner/bound/restricted_master.cpp:.*after the first column");
}
#endif

}  // namespace
}  // namespace sailor::planner::restricted_master_test
