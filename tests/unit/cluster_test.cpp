#include <gtest/gtest.h>

#include "cluster/cluster.hpp"
#include "cluster/node_filter.hpp"
#include "core/files.hpp"

namespace sailor::cluster_test {
namespace {

const GpuCatalogue& catalogue() {
  static const GpuCatalogue loaded = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  return loaded;
}

constexpr const char* example = R"(schema_version = 1
name = "two kinds"
[[partitions]]
name = "normal"
default = true
time_limit_s = 3600.0
most_nodes = 2
[[partitions]]
name = "down"
up = false
[[zones]]
name = "a"
[[zones.prices]]
gpu = "gh200"
usd_per_hour = 5.0
[[nodes]]
nodes = ["n1", "n2"]
gpu = "gh200"
gpus_per_node = 4
memory_per_node_bytes = 800e9
zone = "a"
partitions = ["normal"]
[[nodes]]
nodes = ["n3"]
gpu = "cpu"
gpus_per_node = 2
memory_per_node_bytes = 8e9
state = "unavailable"
state_reason = "broken fan"
partitions = ["normal", "down"]
)";

std::string error_with(const std::string& from, const std::string& to) {
  std::string text = example;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto cluster = parse_cluster(text, "c.toml", catalogue());
  return cluster ? "" : cluster.error().message();
}

TEST(Cluster, LinkWithoutBandwidthSaysOnlyWhatBytesCost) {
  const auto linked = [](const std::string& keys) {
    return parse_cluster(std::string(example) + "[[zones]]\nname = \"b\"\n[[links]]\nfrom = \"a\"\nto = \"b\"\n" + keys,
                         "c.toml", catalogue());
  };
  const auto cluster = linked("egress_usd_per_byte = 1e-11\n");
  ASSERT_TRUE(cluster.has_value()) << cluster.error().message();
  EXPECT_FALSE(cluster->links[0].bandwidth.has_value());
  const std::string text = cluster_to_toml(*cluster);
  EXPECT_EQ(text.find("bandwidth"), std::string::npos) << text;
  const auto again = parse_cluster(text, "c.toml", catalogue());
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->links[0].egress_usd_per_byte, 1e-11);

  EXPECT_EQ(
      linked("").error().message(),
      "c.toml:34:8: the link a - b has neither bandwidth_bytes_per_s nor egress_usd_per_byte; add one of them, or "
      "remove the link: times are then those of the profile");
  EXPECT_EQ(linked("latency_s = 0.1\negress_usd_per_byte = 1e-11\n").error().message(),
            "c.toml:36:13: 'latency_s' is there without bandwidth_bytes_per_s; add the bandwidth; without both, times "
            "are those of the profile");
}

TEST(GpuCatalogue, NamesAliasesAndGresFindTheSameType) {
  EXPECT_EQ(catalogue().find("gh-96")->name, "GH200-96");
  EXPECT_EQ(catalogue().find("GH200")->name, "GH200-96");
  ASSERT_NE(catalogue().find_gres("GH200"), nullptr);
  EXPECT_EQ(catalogue().find_gres("GH200")->name, "GH200-96");
  EXPECT_EQ(catalogue().find_gres("mi300"), nullptr);
  ASSERT_NE(catalogue().cpu(), nullptr);
  EXPECT_NE(catalogue().find("B300").error().message().find("GPU type 'B300' is not in the catalogue; known: A100-40"),
            std::string::npos);
}

TEST(GpuCatalogue, NameUsedTwiceIsRefused) {
  const std::string row = R"([[gpus]]
name = "X"
memory_bytes = 1e9
peak_fp32_flop_per_s = 1e12
memory_bandwidth_bytes_per_s = 1e12
price_usd_per_hour = 1.0
source = "test"
)";
  const auto twice = GpuCatalogue::parse("schema_version = 1\n" + row + row, "g.toml");
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().message(), "g.toml:9:1: the name 'X' of X already means X");
}

TEST(Cluster, ReadsNodesPartitionsAndPrices) {
  const auto cluster = parse_cluster(example, "c.toml", catalogue());
  ASSERT_TRUE(cluster.has_value()) << cluster.error().message();
  EXPECT_EQ(cluster->groups[0].gpu, "GH200-96");
  EXPECT_EQ(cluster->groups[0].count, 2);
  EXPECT_EQ(cluster->find_partition("normal")->most_nodes, 2);
  const GpuType gh200 = catalogue().find("GH200").value();
  EXPECT_DOUBLE_EQ(device_price(*cluster, gh200, "a").value(), 5.0);
  EXPECT_DOUBLE_EQ(device_price(*cluster, gh200, "b").value(), 11.06);
  EXPECT_DOUBLE_EQ(device_memory(*catalogue().cpu(), cluster->groups[1]).value(), 4e9);
}

TEST(Cluster, UnavailableNodesAreNotUsable) {
  const auto cluster = parse_cluster(example, "c.toml", catalogue());
  ASSERT_TRUE(cluster.has_value());
  EXPECT_EQ(cluster->usable("normal", false).size(), 1U);
  EXPECT_EQ(cluster->usable("", false).size(), 1U);
  EXPECT_TRUE(cluster->usable("down", false).empty());
}

/// Nodes of one kind, by state; `free` GPUs of the mixed one.
Cluster busy_cluster() {
  const auto nodes = [](std::string name, NodeState state, std::vector<std::string> partitions) {
    return NodeGroup{.nodes = {std::move(name)},
                     .count = 1,
                     .gpu = "GH200-96",
                     .gpus_per_node = 4,
                     .cpus_per_node = 288,
                     .memory_per_node = Bytes(800e9),
                     .state = state,
                     .state_reason = state == NodeState::unavailable ? "drained: fan" : "",
                     .zone = {},
                     .partitions = std::move(partitions)};
  };
  Cluster cluster;
  cluster.partitions = {{.name = "normal"}, {.name = "whole", .exclusive_nodes = true}};
  cluster.groups = {
      nodes("idle", NodeState::idle, {"normal", "whole"}), nodes("mixed", NodeState::mixed, {"normal", "whole"}),
      nodes("taken", NodeState::allocated, {"normal"}), nodes("broken", NodeState::unavailable, {"whole"})};
  cluster.groups[1].gpus_free = 3;
  return cluster;
}

std::string names_of(const std::vector<NodeGroup>& groups) {
  std::string names;
  for (const NodeGroup& group : groups) names += (names.empty() ? "" : " ") + group.nodes.front();
  return names;
}

TEST(Cluster, AvailabilitySaysWhichNodesMayBeUsed) {
  const Cluster cluster = busy_cluster();
  EXPECT_EQ(names_of(cluster.usable({}, Availability::idle)), "idle mixed");
  EXPECT_EQ(names_of(cluster.usable({}, Availability::up)), "idle mixed taken");
  EXPECT_EQ(names_of(cluster.usable({}, Availability::all)), "idle mixed taken broken");
}

TEST(Cluster, OfAPartlyTakenNodeOnlyTheFreePartIsIdle) {
  const std::vector<NodeGroup> idle = busy_cluster().usable({}, Availability::idle);
  EXPECT_EQ(idle[1].gpus_per_node, 3);
  EXPECT_EQ(idle[1].cpus_per_node, 216);  // 3/4 of 288
  EXPECT_DOUBLE_EQ(idle[1].memory_per_node.value(), 600e9);
  EXPECT_EQ(busy_cluster().usable({}, Availability::up)[1].gpus_per_node, 4);
}

TEST(Cluster, APartitionOfWholeNodesHasNothingOfAPartlyTakenOne) {
  const Cluster cluster = busy_cluster();
  const std::vector<std::string> whole{"whole"};
  const std::vector<std::string> both{"whole", "normal"};
  EXPECT_EQ(names_of(cluster.usable(whole, Availability::idle)), "idle");
  EXPECT_EQ(names_of(cluster.usable(both, Availability::idle)), "idle mixed");
}

TEST(Cluster, NodesOfSeveralPartitionsCountOnce) {
  const Cluster cluster = busy_cluster();
  const std::vector<std::string> both{"normal", "whole"};
  EXPECT_EQ(names_of(cluster.usable(both, Availability::all)), "idle mixed taken broken");
}

TEST(Cluster, APartOfItHasTheNodesThatAreKept) {
  Cluster cluster;
  cluster.groups = {{.nodes = {"a1", "a2", "a3"}, .count = 3, .switches = {"s1", "s2", "s3"}},
                    {.nodes = {"b1"}, .count = 1},
                    {.nodes = {}, .count = 7}};  // hypothetical
  const Cluster part = with_nodes(cluster, [](const std::string& node) { return node == "a1" || node == "a3"; });
  ASSERT_EQ(part.groups.size(), 2U);
  EXPECT_EQ(part.groups[0].nodes, (std::vector<std::string>{"a1", "a3"}));
  EXPECT_EQ(part.groups[0].switches, (std::vector<std::string>{"s1", "s3"}));
  EXPECT_EQ(part.groups[0].count, 2);
  EXPECT_EQ(part.groups[1].count, 7);
}

TEST(Cluster, WhatSlurmKnowsReadsBackTheSame) {
  Cluster cluster = busy_cluster();
  cluster.name = "alps";
  Partition& partition = cluster.partitions[0];
  partition.takes_jobs = false;
  partition.default_time = Seconds(1800);
  partition.least_nodes = 2;
  partition.most_cpus_per_node = 64;
  partition.root_only = true;
  partition.default_memory_per_gpu = Bytes(100e9);
  partition.default_memory_per_cpu = Bytes(1e9);
  partition.most_memory_per_node = Bytes(450e9);
  partition.billing_weights = "CPU=1.0,Mem=0.25G";
  partition.qos = "part";
  partition.allowed_accounts = {"a", "b"};
  partition.denied_accounts = {"c"};
  partition.allowed_groups = {"g"};
  partition.allowed_qos = {"q"};
  partition.denied_qos = {"r"};
  cluster.reservations = {{.name = "fix",
                           .start_unix_s = 100,
                           .end_unix_s = 200,
                           .nodes = {"idle"},
                           .partition = "normal",
                           .users = {"anna"},
                           .accounts = {"-x"},
                           .maintenance = true}};
  cluster.prices = {{"GH200-96", UsdPerHour(2.5)}};
  NodeGroup& group = cluster.groups[0];
  group.nodes = {"n1", "n2"};
  group.count = 2;
  group.switches = {"s0", ""};
  cluster.topology = "block";
  cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(12e9), .latency = Seconds(3e-6)};
  group.features = {"thp_never"};
  group.cores_per_node = 288;
  group.gres_type = "gh200";
  group.gpu_sockets = "0-3";
  const std::string text = cluster_to_toml(cluster);
  const auto again = parse_cluster(text, "again.toml", catalogue());
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(cluster_to_toml(*again), text);
  EXPECT_EQ(again->partitions[0].state(), "drain");
  EXPECT_EQ(again->partitions[0].allowed_accounts, partition.allowed_accounts);
  EXPECT_EQ(again->partitions[0].denied_qos, partition.denied_qos);
  EXPECT_EQ(again->partitions[0].most_cpus_per_node, 64);
  EXPECT_EQ(again->partitions[0].default_memory_per_gpu, Bytes(100e9));
  EXPECT_EQ(again->partitions[0].default_memory_per_cpu, Bytes(1e9));
  EXPECT_EQ(again->partitions[0].most_memory_per_node, Bytes(450e9));
  EXPECT_FALSE(again->partitions[0].most_memory_per_cpu.has_value());
  EXPECT_EQ(again->partitions[0].billing_weights, "CPU=1.0,Mem=0.25G");
  EXPECT_EQ(again->reservations[0].end_unix_s, 200);
  EXPECT_TRUE(again->reservations[0].maintenance);
  EXPECT_EQ(again->groups[0].switches, group.switches);
  EXPECT_EQ(again->topology, "block");
  ASSERT_TRUE(again->across_switches.has_value());
  EXPECT_EQ(again->across_switches->bandwidth, BytesPerSecond(12e9));
  EXPECT_EQ(again->across_switches->latency, Seconds(3e-6));
  EXPECT_EQ(again->groups[1].gpus_free, 3);
  EXPECT_DOUBLE_EQ(device_price(*again, catalogue().find("GH200").value(), "").value(), 2.5);
}

TEST(Cluster, WrittenFileReadsBackTheSame) {
  const auto cluster = parse_cluster(example, "c.toml", catalogue());
  ASSERT_TRUE(cluster.has_value());
  const std::string text = cluster_to_toml(*cluster);
  const auto again = parse_cluster(text, "again.toml", catalogue());
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(cluster_to_toml(*again), text);
}

TEST(Cluster, BadFilesAreRefusedWithLineAndReason) {
  EXPECT_TRUE(error_with("gpu = \"cpu\"", "gpu = \"B300\"")
                  .starts_with("c.toml:25:7: GPU type 'B300' is not in the catalogue; known: "));
  EXPECT_EQ(error_with("zone = \"a\"\n", "zone = \"z\"\n"),
            "c.toml:21:8: zone 'z' is not described; add a [[zones]] with this name; known: a");
  EXPECT_EQ(error_with("partitions = [\"normal\"]", "partitions = [\"gpu\"]"),
            "c.toml:22:14: partition 'gpu' is not described; add a [[partitions]] with this name; known: down, normal");
  EXPECT_EQ(error_with("[\"n3\"]", "[\"n2\"]"), "c.toml:24:9: node 'n2' is described twice");
  EXPECT_EQ(error_with("gpus_per_node = 4", "gpus_per_node = 0"),
            "c.toml:19:17: 'nodes[0].gpus_per_node' is 0 but must be at least 1");
  EXPECT_EQ(error_with("state = \"unavailable\"", "state = \"up\""),
            "c.toml:28:9: 'nodes[1].state' is 'up'; use one of: idle, mixed, allocated, unavailable");
  EXPECT_EQ(error_with("gpus_per_node = 4", "gpus_per_node = 4\nswitches = [\"s0\"]"),
            "c.toml:20:12: 2 nodes are named but 1 switches; name the leaf switch of each node, \"\" where it is not "
            "known");
  EXPECT_EQ(error_with("gpus_per_node = 4", "gpus_per_node = 4\ngpus_free = 5"),
            "c.toml:20:13: 'nodes[0].gpus_free' is 5 but must be at most 4");
  EXPECT_EQ(parse_cluster("schema_version = 1\nname = \"x\"\n", "c.toml", catalogue()).error().message(),
            "c.toml:1:1: the cluster has no nodes; add at least one [[nodes]]");
}

}  // namespace
}  // namespace sailor::cluster_test
