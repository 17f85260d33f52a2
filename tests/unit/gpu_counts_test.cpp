// --gpus 16x4:GH200-96: the cluster that it describes, and the errors of malformed values.
#include "cluster/gpu_counts.hpp"

#include <gtest/gtest.h>

#include <string>

namespace sailor::gpu_counts_test {
namespace {

GpuCatalogue catalogue() {
  auto loaded = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml");
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().what);
  return *loaded;
}

std::string problem_of(const std::string& text) {
  const auto cluster = cluster_of_gpu_counts(text, catalogue());
  return cluster ? "none" : cluster.error().what;
}

TEST(GpuCounts, SayHowManyNodesOfWhichGpusThereAre) {
  const auto cluster = cluster_of_gpu_counts("16x4:gh200,2x8:A100-40@us-central1-a", catalogue());
  ASSERT_TRUE(cluster) << cluster.error().what;
  ASSERT_EQ(cluster->groups.size(), 2U);
  EXPECT_EQ(cluster->groups[0].count, 16);
  EXPECT_EQ(cluster->groups[0].gpus_per_node, 4);
  EXPECT_EQ(cluster->groups[0].gpu, "GH200-96");  // by its alias
  EXPECT_EQ(cluster->groups[0].zone, "");
  EXPECT_EQ(cluster->groups[1].count, 2);
  EXPECT_EQ(cluster->groups[1].zone, "us-central1-a");
  ASSERT_EQ(cluster->zones.size(), 1U);
}

TEST(GpuCounts, NodesAreJoinedByAnAssumedNetworkOrTheOneThatIsSaid) {
  EXPECT_EQ(cluster_of_gpu_counts("4x8:H100-80", catalogue())->network.between_nodes, BytesPerSecond(25e9));
  EXPECT_EQ(cluster_of_gpu_counts("4x8:H100-80,network:50", catalogue())->network.between_nodes, BytesPerSecond(50e9));
  EXPECT_EQ(problem_of("4x8:H100-80,network:fast"),
            "--gpus network:fast: the network's GB/s are no whole number from 1 on");
  EXPECT_EQ(problem_of("network:50"), "--gpus network:50: there are no GPUs");
}

TEST(GpuCounts, AreNoPathOfACatalogue) {
  EXPECT_TRUE(are_gpu_counts("16x4:GH200-96"));
  EXPECT_TRUE(are_gpu_counts("16x4"));  // mistakes that are explained
  EXPECT_TRUE(are_gpu_counts("32:H100-80"));
  EXPECT_TRUE(are_gpu_counts("0x4:GH200-96"));
  EXPECT_TRUE(are_gpu_counts("16"));
  EXPECT_TRUE(are_gpu_counts("2X4:A100-40"));
  EXPECT_TRUE(are_gpu_counts("A100-40"));
  EXPECT_FALSE(are_gpu_counts("lists/gpus"));
  EXPECT_FALSE(are_gpu_counts("gpus.toml"));
  EXPECT_FALSE(are_gpu_counts(""));
}

TEST(GpuCounts, NameWhatIsWrong) {
  EXPECT_EQ(problem_of("16x4"), "--gpus 16x4: the GPU type is missing");
  EXPECT_EQ(problem_of("A100-40"), "--gpus A100-40: it is no file, and no number of nodes begins it");
  EXPECT_EQ(problem_of("32:H100-80"), "--gpus 32:H100-80: how many GPUs a node has is missing");
  EXPECT_EQ(problem_of("0x4:GH200-96"), "--gpus 0x4:GH200-96: the number of nodes is not from 1 to 1048576");
  EXPECT_EQ(problem_of("2x9999:GH200-96"),
            "--gpus 2x9999:GH200-96: the number of GPUs of a node is not from 1 to 4096");
  EXPECT_NE(problem_of("2x4:GH2000").find("GH2000"), std::string::npos);
  EXPECT_EQ(problem_of("2x4:cpu"),
            "--gpus 2x4:cpu: cpu is not a GPU, and how much memory its nodes have only a cluster.toml says");
}

}  // namespace
}  // namespace sailor::gpu_counts_test
