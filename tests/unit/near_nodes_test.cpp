// Job options that keep the nodes of a job near each other.
#include "slurm/near_nodes.hpp"

#include <gtest/gtest.h>

namespace sailor::slurm::near_nodes_test {
namespace {

class NearNodesOfAJob : public ::testing::Test {
 protected:
  /// Nodes of four GH200, so many at each leaf.
  void add(const std::vector<int>& counts) {
    NodeGroup group{.gpu = "GH200-96", .gpus_per_node = 4, .partitions = {"normal"}};
    for (std::size_t leaf = 0; leaf < counts.size(); ++leaf)
      for (int i = 0; i < counts[leaf]; ++i) {
        group.nodes.push_back("n" + std::to_string(++group.count));
        group.switches.push_back("s" + std::to_string(leaf));
      }
    cluster.groups.push_back(group);
  }
  /// "switches segment"
  [[nodiscard]] std::string asked(int nodes, int pipelines, std::optional<Seconds> time = {}) const {
    const NearNodes near = near_nodes(
        cluster, facts,
        {.partition = "normal", .device = "GH200-96", .devices_per_node = 4, .nodes = nodes, .pipelines = pipelines},
        time);
    return near.switches + " " + std::to_string(near.segment);
  }

  Cluster cluster;
  ControllerFacts facts{.version = "24.05.1"};
};

TEST_F(NearNodesOfAJob, AreAtTheFewestSwitchesThatHoldThem) {
  cluster.topology = "tree";
  add({2, 4, 3});
  EXPECT_EQ(asked(2, 1), "1@05:00 0");
  EXPECT_EQ(asked(4, 1), "1@05:00 0");
  EXPECT_EQ(asked(5, 1), "2@05:00 0");
  EXPECT_EQ(asked(8, 1), " 0");  // any way they are at all three
  EXPECT_EQ(asked(1, 1), " 0");
  // A short job does not wait half its time.
  EXPECT_EQ(asked(4, 1, Seconds(600)), "1@01:00 0");
  EXPECT_EQ(asked(4, 1, Seconds(5)), " 0");
  cluster.groups[0].switches[1].clear();
  EXPECT_EQ(asked(4, 1), " 0");
}

TEST_F(NearNodesOfAJob, AreSegmentsOfBlocksWithWholePipelines) {
  cluster.topology = "block";
  add({8, 8, 8});
  EXPECT_EQ(asked(8, 2), " 8");
  EXPECT_EQ(asked(16, 4), " 8");
  EXPECT_EQ(asked(12, 4), " 6");  // two pipelines of three nodes; twelve have no block
  EXPECT_EQ(asked(12, 1), " 0");  // a pipeline larger than any block
  EXPECT_EQ(asked(16, 3), " 8");  // pipelines that share nodes
  facts.version = "23.11.10";
  EXPECT_EQ(asked(8, 2), " 0");  // has no --segment
}

TEST_F(NearNodesOfAJob, AreAnyWhereThereIsOneLeafOrNoneIsKnown) {
  add({8});
  for (const char* topology : {"tree", "block", ""}) {
    cluster.topology = topology;
    EXPECT_EQ(asked(4, 2), " 0") << topology;
  }
}

}  // namespace
}  // namespace sailor::slurm::near_nodes_test
