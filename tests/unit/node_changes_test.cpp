// Nodes that appear and disappear between two readings of a cluster.
#include "cluster/node_changes.hpp"

#include <gtest/gtest.h>

namespace sailor::node_changes_test {
namespace {

Cluster two_types() {
  Cluster cluster;
  cluster.groups.push_back({.nodes = {"gh1", "gh2", "gh3"}, .count = 3, .gpu = "GH200-96", .gpus_per_node = 4});
  cluster.groups.push_back({.nodes = {"a1"}, .count = 1, .gpu = "A100-40", .gpus_per_node = 8, .zone = "west"});
  return cluster;
}

NodeOffers offers(const Cluster& cluster) { return node_offers(cluster, {}, Availability::up); }

TEST(NodeChanges, AClusterIsToldByItsDevices) {
  EXPECT_EQ(describe(offers(two_types())), "8 A100-40 in west on 1 node, 12 GH200-96 on 3 nodes");
  EXPECT_EQ(describe(NodeOffers{}), "no nodes");
  EXPECT_TRUE(node_changes(offers(two_types()), offers(two_types()), two_types()).empty());
}

TEST(NodeChanges, NodesGoWithTheReasonThatSlurmGives) {
  Cluster now = two_types();
  now.groups[0] = {.nodes = {"gh1"}, .count = 1, .gpu = "GH200-96", .gpus_per_node = 4};
  now.groups.push_back({.nodes = {"gh2"},
                        .count = 1,
                        .gpu = "GH200-96",
                        .gpus_per_node = 4,
                        .state = NodeState::unavailable,
                        .state_reason = "drained: leaking pump"});
  const auto changes = node_changes(offers(two_types()), offers(now), now);
  EXPECT_EQ(describe(changes), "gh2 went (drained: leaking pump), gh3 went (not in the cluster any more)");
  EXPECT_EQ(describe(node_changes(offers(now), offers(two_types()), two_types())), "gh2, gh3 came (4 GH200-96 each)");
}

TEST(NodeChanges, NodesThatHaveOtherDevicesThanBeforeAreNamed) {
  Cluster now = two_types();
  now.groups[1].gpus_per_node = 6;
  EXPECT_EQ(describe(node_changes(offers(two_types()), offers(now), now)),
            "a1 has 6 A100-40 in west instead of 8 A100-40 in west");
}

TEST(NodeChanges, NodesThatJobsHaveTakenGoWhereOnlyIdleOnesCount) {
  Cluster now = two_types();
  now.groups[1].state = NodeState::allocated;
  const auto idle = [](const Cluster& cluster) { return node_offers(cluster, {}, Availability::idle); };
  EXPECT_EQ(describe(node_changes(idle(two_types()), idle(now), now)), "a1 went (allocated)");
  EXPECT_TRUE(node_changes(offers(two_types()), offers(now), now).empty());
}

TEST(NodeChanges, NodesWithoutNamesAreCounted) {
  Cluster cluster;
  cluster.groups.push_back({.nodes = {}, .count = 2, .gpu = "A100-40", .gpus_per_node = 4});
  Cluster more = cluster;
  more.groups[0].count = 3;
  EXPECT_EQ(describe(node_changes(offers(cluster), offers(more), more)), "A100-40 node 3 came (4 A100-40)");
}

}  // namespace
}  // namespace sailor::node_changes_test
