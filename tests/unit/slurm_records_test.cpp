// What slurmctld says of nodes, switches and accounts, as values: no Slurm needed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "slurm/accounting.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {
namespace {

GpuCatalogue catalogue() { return GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value(); }

template <class T>
std::string message_of(const Result<T>& result) {
  return result ? "no error" : result.error().message();
}

NodeRecord gh200(std::string name) {
  NodeRecord node;
  node.name = std::move(name);
  node.gres = "gpu:gh200:4(S:0-3)";
  node.cpus = 288;
  node.cores = 288;
  node.memory_mib = 800000;
  node.partitions = {"normal"};
  return node;
}

TEST(GpuSockets, AreThoseOfTheGpus) {
  EXPECT_EQ(gpu_sockets("gpu:gh200:4(S:0-3)"), "0-3");
  EXPECT_EQ(gpu_sockets("craynetwork:4,gpu:a100:2(S:0,1),shard:8"), "0,1");
  EXPECT_EQ(gpu_sockets("gpu:a100:4,shard:8(S:0)"), "");
  EXPECT_EQ(gpu_sockets("gpu:4"), "");
  EXPECT_EQ(gpu_sockets("nic:1(S:0)"), "");
  EXPECT_EQ(gpu_sockets(""), "");
}

TEST(FreeDevices, AreTheGpusThatNoJobHas) {
  NodeRecord node = gh200("n");
  EXPECT_EQ(free_devices(node, 4), 4);
  node.gres_used = "gpu:gh200:1(IDX:2)";
  EXPECT_EQ(free_devices(node, 4), 3);
  node.gres_used = "gpu:gh200:0(IDX:N/A)";
  EXPECT_EQ(free_devices(node, 4), 4);
  node.gres_used = "gpu:gh200:4(IDX:0-3)";
  EXPECT_EQ(free_devices(node, 4), 0);
}

TEST(FreeDevices, NeedTheirShareOfCoresAndMemory) {
  NodeRecord node = gh200("n");
  node.gres_used = "gpu:gh200:1(IDX:0)";
  node.cpus_used = 73;  // of 288: 215 are left, 72 for each device -> 2
  EXPECT_EQ(free_devices(node, 4), 2);
  node.cpus_used = 72;
  EXPECT_EQ(free_devices(node, 4), 3);
  node.memory_used_mib = 600000;  // of 800000: 200000 are left, for one device
  EXPECT_EQ(free_devices(node, 4), 1);
  node.memory_used_mib = 900000;
  EXPECT_EQ(free_devices(node, 4), 0);
  NodeRecord cpu;  // 64 cores of two threads, 3 of these in use
  cpu.cpus = 128;
  cpu.cores = 64;
  cpu.cpus_used = 3;
  EXPECT_EQ(free_devices(cpu, 64), 62);
}

TEST(ParseTopology, FindsTheLeafOfEachNode) {
  const auto leaves = parse_topology(
      "SwitchName=root Level=1 LinkSpeed=1 Nodes=gh[1-4] Switches=s[0-1] \n"
      "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=gh[1-2] \n"
      "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=gh3,gh4 \n");
  ASSERT_TRUE(leaves.has_value()) << message_of(leaves);
  EXPECT_EQ(*leaves, (std::map<std::string, std::string>{{"gh1", "s0"}, {"gh2", "s0"}, {"gh3", "s1"}, {"gh4", "s1"}}));
  EXPECT_TRUE(parse_topology("No topology information available\n")->empty());
  EXPECT_EQ(message_of(parse_topology("SwitchName=s0 Level=0 Nodes=gh[1-\n")).find("switch s0: "), 0U);
}

TEST(AssembleCluster, KeepsSwitchesBesideTheNodes) {
  std::vector<NodeRecord> nodes{gh200("n1"), gh200("n2"), gh200("n3")};
  set_switches(nodes, {{"n1", "s0"}, {"n3", "s1"}});
  const auto reading = assemble_cluster("x", {{.name = "normal"}}, nodes, catalogue());
  ASSERT_TRUE(reading.has_value()) << message_of(reading);
  ASSERT_EQ(reading->cluster.groups.size(), 1U);
  EXPECT_EQ(reading->cluster.groups[0].switches, (std::vector<std::string>{"s0", "", "s1"}));
}

TEST(AssembleCluster, SaysWhatSlurmKnowsOfANode) {
  NodeRecord node = gh200("n1");
  node.features = {"gh200", "thp_never"};
  node.state = NodeState::mixed;
  node.gres_used = "gpu:gh200:1(IDX:0)";
  node.cpus_used = 72;
  const auto reading = assemble_cluster("x", {{.name = "normal"}}, {node}, catalogue());
  ASSERT_TRUE(reading.has_value());
  const NodeGroup& group = reading->cluster.groups[0];
  EXPECT_EQ(group.features, (std::vector<std::string>{"gh200", "thp_never"}));
  EXPECT_EQ(group.cores_per_node, 288);
  EXPECT_EQ(group.gpu_sockets, "0-3");
  EXPECT_EQ(group.gres_type, "gh200");
  EXPECT_EQ(group.gpus_free, 3);
  const auto again = parse_cluster(cluster_to_toml(reading->cluster), "slurm", catalogue());
  ASSERT_TRUE(again.has_value()) << message_of(again);
  EXPECT_EQ(cluster_to_toml(*again), cluster_to_toml(reading->cluster));
  EXPECT_EQ(again->groups[0].gpus_free, 3);
}

TEST(AssembleCluster, FoldsTenThousandNodesOfAThousandSwitches) {
  std::vector<NodeRecord> nodes;
  std::map<std::string, std::string> leaves;
  for (int i = 0; i < 10000; ++i) {
    nodes.push_back(gh200("nid" + std::to_string(i)));
    leaves[nodes.back().name] = "s" + std::to_string(i / 10);
  }
  set_switches(nodes, leaves);
  const auto reading = assemble_cluster("x", {{.name = "normal"}}, nodes, catalogue());
  ASSERT_TRUE(reading.has_value());
  ASSERT_EQ(reading->cluster.groups.size(), 1U);
  EXPECT_EQ(reading->cluster.groups[0].count, 10000);
  EXPECT_EQ(reading->cluster.groups[0].switches[9999], "s999");
}

TEST(RequirePartition, SaysWhichOfSlurmsStatesItIsIn) {
  Cluster cluster;
  cluster.partitions = {{.name = "up"},
                        {.name = "down", .up = false},
                        {.name = "drain", .takes_jobs = false},
                        {.name = "inactive", .up = false, .takes_jobs = false}};
  EXPECT_TRUE(require_partition(cluster, "up").has_value());
  const std::string hint = "; use another one with --partition NAME, or wait for the administrator to set it up";
  EXPECT_EQ(message_of(require_partition(cluster, "down")), "partition 'down' is down: it starts no jobs" + hint);
  EXPECT_EQ(message_of(require_partition(cluster, "drain")),
            "partition 'drain' is draining: it takes no new jobs" + hint);
  EXPECT_EQ(message_of(require_partition(cluster, "inactive")),
            "partition 'inactive' is inactive: it takes no jobs and starts none" + hint);
  EXPECT_TRUE(known_partition(cluster, "inactive").has_value());
}

TEST(Accounting, ReadsAssociations) {
  const auto rows = parse_associations(
      "ml||normal,long|normal|gres/gpu=64,node=16|1-00:00:00|\n"
      "debug|test|||||cpu=100,gres/gpu:a100=4,gres/gpu=8\n");
  ASSERT_TRUE(rows.has_value()) << message_of(rows);
  ASSERT_EQ(rows->size(), 2U);
  EXPECT_EQ((*rows)[0].account, "ml");
  EXPECT_EQ((*rows)[0].qos, (std::vector<std::string>{"normal", "long"}));
  EXPECT_EQ((*rows)[0].per_job.gpus, 64);
  EXPECT_EQ((*rows)[0].per_job.nodes, 16);
  EXPECT_EQ((*rows)[0].per_job.time, Seconds(86400));
  EXPECT_EQ((*rows)[1].partition, "test");
  EXPECT_EQ((*rows)[1].all_jobs.gpus, 8);
  EXPECT_FALSE((*rows)[1].per_job.gpus.has_value());
  Accounting accounting;
  accounting.associations = *rows;
  EXPECT_NE(accounting.find("ml", "normal"), nullptr);
  EXPECT_EQ(accounting.find("debug", "normal"), nullptr);
  EXPECT_NE(accounting.find("debug", "test"), nullptr);
  EXPECT_EQ(accounting.accounts(), (std::vector<std::string>{"ml", "debug"}));
}

TEST(Accounting, KnowsTheQosOfAJobThatNamesNone) {
  // As slurmctld 22.05 does it.
  const auto chosen = [](std::vector<std::string> qos, std::string usual) {
    return Association{.account = "ml",
                       .partition = {},
                       .qos = std::move(qos),
                       .default_qos = std::move(usual),
                       .per_job = {},
                       .all_jobs = {}}
        .qos_unless_named();
  };
  EXPECT_EQ(chosen({"normal", "long"}, "long"), "long");
  EXPECT_EQ(chosen({"short"}, ""), "short");
  EXPECT_EQ(chosen({"long", "normal"}, ""), "normal");
  EXPECT_EQ(chosen({"long", "short"}, ""), "");
}

TEST(Accounting, ReadsAccountsWithoutTheirUsers) {
  const auto rows = parse_accounts("team|project||\nteam||root|node=9\nproject|root||node=4,gres/gpu=16\n");
  ASSERT_TRUE(rows.has_value()) << message_of(rows);
  ASSERT_EQ(rows->size(), 2U);
  EXPECT_FALSE((*rows)[0].all_jobs.nodes.has_value());
  EXPECT_EQ((*rows)[1].all_jobs.nodes, 4);
  Accounting accounting;
  accounting.known_accounts = *rows;
  const auto chain = accounting.chain("team");
  ASSERT_EQ(chain.size(), 2U);
  EXPECT_EQ(chain[0]->name, "team");
  EXPECT_EQ(chain[1]->name, "project");
  EXPECT_TRUE(accounting.chain("other").empty());
  accounting.known_accounts[1].parent = "team";  // a circle
  EXPECT_EQ(accounting.chain("team").size(), 2U);
}

TEST(Accounting, ReadsQos) {
  const auto rows = parse_qos("normal||||\nlong|node=4|7-00:00:00|gres/gpu=32|\n");
  ASSERT_TRUE(rows.has_value()) << message_of(rows);
  EXPECT_EQ((*rows)[1].per_job.nodes, 4);
  EXPECT_EQ((*rows)[1].per_job.time, Seconds(7 * 86400));
  EXPECT_EQ((*rows)[1].per_user.gpus, 32);
}

/// A sacctmgr in PATH that answers as Slurm 22.05's did, or does what `script` says.
class FakeSacctmgr {
 public:
  explicit FakeSacctmgr(const std::string& script) {
    std::filesystem::create_directories(folder_);
    const std::filesystem::path program = folder_ / "sacctmgr";
    std::ofstream(program) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    ::setenv("PATH", (folder_.string() + ":" + before_).c_str(), 1);
  }
  ~FakeSacctmgr() {
    ::setenv("PATH", before_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

 private:
  std::string before_ = std::getenv("PATH");
  std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("sacctmgr." + std::to_string(::getpid()));
};

TEST(Accounting, AsksForTheUserOnThisCluster) {
  const FakeSacctmgr fake(R"(case "$*" in
"-n -P show user name=anna "*) echo ml ;;
"-n -P show assoc user=anna cluster=alps "*)
  echo 'ml||normal,short||gres/gpu=8|1-00:00:00|'
  echo 'root||normal,short||||' ;;
"-n -P show assoc cluster=alps account=ml,root "*)
  echo 'ml|physics||'
  echo 'ml||anna|'
  echo 'root|||' ;;
"-n -P show assoc cluster=alps account=physics "*) echo 'physics|root||node=8' ;;
"-n -P show qos "*)
  echo 'normal||||'
  echo 'short|node=1|00:20:00|gres/gpu=4|' ;;
*) exit 1 ;;
esac
)");
  const auto accounting = read_accounting("anna", "alps", Seconds(20));
  ASSERT_TRUE(accounting.has_value()) << message_of(accounting);
  EXPECT_EQ(accounting->default_account, "ml");
  EXPECT_EQ(accounting->accounts(), (std::vector<std::string>{"ml", "root"}));
  ASSERT_EQ(accounting->chain("ml").size(), 3U);
  EXPECT_EQ(accounting->chain("ml")[1]->all_jobs.nodes, 8);
  ASSERT_NE(accounting->find_qos("short"), nullptr);
  EXPECT_EQ(accounting->find_qos("short")->per_job.time, Seconds(1200));
}

TEST(Accounting, AsksForEachAccountOnce) {
  const FakeSacctmgr fake(R"(case "$*" in
*" show user "*) echo ml ;;
*" user=anna "*) echo 'ml||normal||||' ;;
*ParentName*) echo 'ml|ghost||' ;;
*) echo 'normal||||' ;;
esac
)");
  const auto accounting = read_accounting("anna", "alps", Seconds(20));
  ASSERT_TRUE(accounting.has_value()) << message_of(accounting);
  EXPECT_EQ(accounting->chain("ml").size(), 1U);
}

TEST(Accounting, SaysWhatSacctmgrComplainsOf) {
  const FakeSacctmgr fake("echo 'sacctmgr: error: Connection refused' >&2; exit 1\n");
  EXPECT_EQ(message_of(read_accounting("anna", "alps", Seconds(20))), "sacctmgr: Connection refused");
}

TEST(Accounting, GivesUpAtTheDeadline) {
  const FakeSacctmgr fake("exec sleep 60\n");
  EXPECT_EQ(message_of(read_accounting("anna", "alps", Seconds(0.2))), "sacctmgr: no answer within 0.2 s");
}

TEST(Accounting, RefusesWhatItCannotRead) {
  EXPECT_EQ(message_of(parse_qos("normal|||\n")), "sacctmgr says 'normal|||', which has 4 columns, not 5");
  EXPECT_EQ(message_of(parse_qos("normal|node=x|||\n")), "sacctmgr says 'node=x', which is no limit");
}

}  // namespace
}  // namespace sailor::slurm
