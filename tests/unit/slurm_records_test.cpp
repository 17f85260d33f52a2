// Records of slurmctld about nodes, switches and accounts, as plain values: no Slurm needed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "slurm/accounting.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/node_records.hpp"
#include "slurm/topology.hpp"

namespace sailor::slurm::slurm_records_test {
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
  const auto topology = parse_topology(
      "SwitchName=root Level=1 LinkSpeed=1 Nodes=gh[1-4] Switches=s[0-1] \n"
      "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=gh[1-2] \n"
      "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=gh3,gh4 \n");
  ASSERT_TRUE(topology.has_value()) << message_of(topology);
  EXPECT_EQ(topology->kind, TopologyKind::tree);
  EXPECT_EQ(topology->leaf_of_node,
            (std::map<std::string, std::string>{{"gh1", "s0"}, {"gh2", "s0"}, {"gh3", "s1"}, {"gh4", "s1"}}));
  EXPECT_EQ(parse_topology("No topology information available\n")->kind, TopologyKind::flat);
  EXPECT_EQ(message_of(parse_topology("SwitchName=s0 Level=0 Nodes=gh[1-\n")).find("switch s0: "), 0U);
}

const std::map<std::string, std::string> two_leaves{{"n1", "b1"}, {"n2", "b1"}, {"n3", "b2"}};

TEST(ParseTopology, KnowsBlocks) {
  // As scontrol of 24.05 writes them
  const auto topology = parse_topology(
      "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n3 BlockSize=2\n"
      "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-3] BlockSize=4\n");
  ASSERT_TRUE(topology.has_value()) << message_of(topology);
  EXPECT_EQ(topology->kind, TopologyKind::block);
  EXPECT_EQ(topology->leaf_of_node, two_leaves);
}

class TopologyFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const std::string& text) const { std::ofstream(folder_ / name) << text; }

  std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("topology." + std::to_string(::getpid()));
};

TEST_F(TopologyFiles, AreThoseOfSlurm) {
  EXPECT_EQ(load_topology(folder_)->kind, TopologyKind::flat);
  write("topology.conf", "# two\nBlockName=b1 Nodes=n[1-2]\nBlockName=b2 \\\n  Nodes=n3\nBlockSizes=2,4\n");
  auto topology = load_topology(folder_);
  ASSERT_TRUE(topology.has_value()) << message_of(topology);
  EXPECT_EQ(topology->kind, TopologyKind::block);
  EXPECT_EQ(topology->leaf_of_node, two_leaves);
  write("topology.conf", "SwitchName=b1 Nodes=n[1-2]\nSwitchName=b2 Nodes=n3\nSwitchName=root Switches=b[1-2]\n");
  topology = load_topology(folder_);
  ASSERT_TRUE(topology.has_value()) << message_of(topology);
  EXPECT_EQ(topology->kind, TopologyKind::tree);
  EXPECT_EQ(topology->leaf_of_node, two_leaves);
}

TEST_F(TopologyFiles, MayBeYaml) {
  // Several, of which the default counts; in either of YAML's styles.
  write("topology.yaml",
        "---\n- topology: other\n  cluster_default: false\n  flat: true\n- topology: usual\n  cluster_default: true\n"
        "  block:\n    block_sizes:\n      - 2\n      - 4\n    blocks:\n      - block: b1\n        nodes: n[1-2]\n"
        "      - {block: b2, nodes: \"n3\"}\n");
  auto topology = load_topology(folder_);
  if (!topology && topology.error().code == ErrorCode::unavailable) GTEST_SKIP() << topology.error().what;
  ASSERT_TRUE(topology.has_value()) << message_of(topology);
  EXPECT_EQ(topology->kind, TopologyKind::block);
  EXPECT_EQ(topology->leaf_of_node, two_leaves);
  write("topology.yaml",
        "- topology: only\n  tree:\n    switches:\n      - switch: root\n        children: b[1-2]\n      - switch: b1\n"
        "        nodes: n[1-2]\n      - switch: b2\n        nodes: n3\n");
  topology = load_topology(folder_);
  ASSERT_TRUE(topology.has_value()) << message_of(topology);
  EXPECT_EQ(topology->kind, TopologyKind::tree);
  EXPECT_EQ(topology->leaf_of_node, two_leaves);
  write("topology.yaml", "- topology: [\n");
  EXPECT_NE(message_of(load_topology(folder_)).find("topology.yaml:2: "), std::string::npos)
      << message_of(load_topology(folder_));
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
      "ml||normal,long|normal|gres/gpu=64,node=16|mem=1.50G|node=900|1-00:00:00|3|7||||||\n"
      "debug|test|||||||||cpu=100,gres/gpu:a100=4,gres/gpu=8|gres/gpu=1000|node=50|2|5|10:00\n");
  ASSERT_TRUE(rows.has_value()) << message_of(rows);
  ASSERT_EQ(rows->size(), 2U);
  EXPECT_EQ((*rows)[0].account, "ml");
  EXPECT_EQ((*rows)[0].qos, (std::vector<std::string>{"normal", "long"}));
  EXPECT_EQ((*rows)[0].per_job.resources, (Tres{{"gres/gpu", 64}, {"node", 16}}));
  EXPECT_EQ((*rows)[0].per_job.per_node, (Tres{{"mem", 1536}}));
  EXPECT_EQ((*rows)[0].per_job.minutes, (Tres{{"node", 900}}));
  EXPECT_EQ((*rows)[0].per_job.time, Seconds(86400));
  EXPECT_EQ((*rows)[0].most_jobs, 3);
  EXPECT_EQ((*rows)[0].most_submitted, 7);
  EXPECT_EQ((*rows)[1].partition, "test");
  const GroupLimits& all = (*rows)[1].all_jobs;
  EXPECT_EQ(all.resources, (Tres{{"cpu", 100}, {"gres/gpu", 8}, {"gres/gpu:a100", 4}}));
  EXPECT_EQ(all.minutes, (Tres{{"gres/gpu", 1000}}));
  EXPECT_EQ(all.running_minutes, (Tres{{"node", 50}}));
  EXPECT_EQ(all.jobs, 2);
  EXPECT_EQ(all.submitted, 5);
  EXPECT_EQ(all.time, Seconds(600));
  EXPECT_TRUE((*rows)[1].per_job.resources.empty());
  Accounting accounting;
  accounting.associations = *rows;
  EXPECT_NE(accounting.find("ml", "normal"), nullptr);
  EXPECT_EQ(accounting.find("debug", "normal"), nullptr);
  EXPECT_NE(accounting.find("debug", "test"), nullptr);
  EXPECT_EQ(accounting.accounts(), (std::vector<std::string>{"ml", "debug"}));
  // The one for the partition counts before the one for all.
  accounting.associations.push_back({.account = "ml", .partition = "big"});
  EXPECT_EQ(accounting.find("ml", "big")->partition, "big");
  EXPECT_EQ(accounting.find("ml", "normal")->partition, "");
}

TEST(Accounting, KnowsTheQosOfAJobThatNamesNone) {
  // As slurmctld 22.05 does it.
  const auto chosen = [](std::vector<std::string> qos, std::string usual) {
    return Association{.account = "ml", .partition = {}, .qos = std::move(qos), .default_qos = std::move(usual)}
        .qos_unless_named();
  };
  EXPECT_EQ(chosen({"normal", "long"}, "long"), "long");
  EXPECT_EQ(chosen({"short"}, ""), "short");
  EXPECT_EQ(chosen({"long", "normal"}, ""), "normal");
  EXPECT_EQ(chosen({"long", "short"}, ""), "");
}

TEST(Accounting, ReadsAccountsWithoutTheirUsers) {
  const auto rows =
      parse_accounts("team|project|||||||\nteam||root|node=9|||||\nproject|root||node=4,gres/gpu=16|node=500|||9|\n");
  ASSERT_TRUE(rows.has_value()) << message_of(rows);
  ASSERT_EQ(rows->size(), 2U);
  EXPECT_TRUE((*rows)[0].all_jobs.resources.empty());
  EXPECT_EQ((*rows)[1].all_jobs.resources, (Tres{{"gres/gpu", 16}, {"node", 4}}));
  EXPECT_EQ((*rows)[1].all_jobs.minutes, (Tres{{"node", 500}}));
  EXPECT_EQ((*rows)[1].all_jobs.submitted, 9);
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
  // As sacctmgr of 22.05 prints them.
  const auto rows = parse_qos(
      "normal||1.000000|||||||||||||||||||||\n"
      "debug|DenyOnLimit,OverPartQOS|0.500000|1.500000|0.100000|node=4|gres/gpu=2|node=90|7-00:00:00|node=1|"
      "gres/gpu=32|cpu=100|1|2|mem=100G|node=7|3|4|node=16|node=1000|node=100|5|6|16:40:00\n");
  ASSERT_TRUE(rows.has_value()) << message_of(rows);
  const QosLimits& qos = (*rows)[1];
  EXPECT_TRUE(qos.has_flag("OverPartQOS"));
  EXPECT_FALSE(qos.has_flag("NoDecay"));
  EXPECT_DOUBLE_EQ(qos.usage_factor, 0.5);
  EXPECT_DOUBLE_EQ(qos.limit_factor, 1.5);
  EXPECT_DOUBLE_EQ((*rows)[0].limit_factor, 1.0);
  EXPECT_EQ(qos.per_job.resources, (Tres{{"node", 4}}));
  EXPECT_EQ(qos.per_job.per_node, (Tres{{"gres/gpu", 2}}));
  EXPECT_EQ(qos.per_job.minutes, (Tres{{"node", 90}}));
  EXPECT_EQ(qos.per_job.minimum, (Tres{{"node", 1}}));
  EXPECT_EQ(qos.per_job.time, Seconds(7 * 86400));
  EXPECT_EQ(qos.per_user.resources, (Tres{{"gres/gpu", 32}}));
  EXPECT_EQ(qos.per_user.running_minutes, (Tres{{"cpu", 100}}));
  EXPECT_EQ(qos.per_user.jobs, 1);
  EXPECT_EQ(qos.per_user.submitted, 2);
  EXPECT_EQ(qos.per_account.resources, (Tres{{"mem", 102400}}));
  EXPECT_EQ(qos.per_account.running_minutes, (Tres{{"node", 7}}));
  EXPECT_EQ(qos.per_account.jobs, 3);
  EXPECT_EQ(qos.per_account.submitted, 4);
  EXPECT_EQ(qos.all_jobs.resources, (Tres{{"node", 16}}));
  EXPECT_EQ(qos.all_jobs.minutes, (Tres{{"node", 1000}}));
  EXPECT_EQ(qos.all_jobs.running_minutes, (Tres{{"node", 100}}));
  EXPECT_EQ(qos.all_jobs.jobs, 5);
  EXPECT_EQ(qos.all_jobs.submitted, 6);
  EXPECT_EQ(qos.all_jobs.time, Seconds(60000));
}

TEST(Accounting, ReadsWhatIsUsed) {
  Accounting accounting;
  accounting.user = "anna";
  accounting.associations = {{.account = "team", .partition = {}}, {.account = "team", .partition = "big"}};
  accounting.known_accounts = {{.name = "team", .parent = "project"}, {.name = "project", .parent = {}}};
  accounting.qos = {{.name = "debug"}, {.name = "normal"}};
  // scontrol -o show assoc_mgr of 22.05, shortened
  constexpr const char* said =
      "Current Association Manager state\n\nAssociation Records\n\n"
      "ClusterName=alps Account=project UserName= Partition= ID=5 ParentAccount=root(1) GrpJobs=N(3) "
      "GrpJobsAccrue=N(0) "
      "GrpSubmitJobs=9(4) GrpWall=N(7.50) GrpTRES=cpu=N(3),mem=N(300),node=4(3) GrpTRESMins=node=500(20) "
      "GrpTRESRunMins=cpu=N(90),node=N(90) MaxJobs=7(3) MaxTRESMinsPJ=node=77 MinPrioThresh= \n"
      "ClusterName=alps Account=team UserName=anna(1000) Partition= ID=7 GrpJobs=N(1) GrpSubmitJobs=N(2) "
      "GrpWall=N(0.00) "
      "GrpTRES=node=N(1) GrpTRESMins=node=N(0) GrpTRESRunMins=node=N(30)\n"
      "ClusterName=alps Account=team UserName=bob(1001) Partition= ID=8 GrpJobs=N(5) GrpTRES=node=N(5)\n"
      "\nQOS Records\n\n"
      "QOS=debug(2) UsageRaw=0.000000 GrpJobs=N(3) GrpSubmitJobs=N(3) GrpWall=1000(0.50) GrpTRES=node=N(3) "
      "GrpTRESMins=node=1000(11) GrpTRESRunMins=node=100(30) MaxWallPJ= MaxTRESPN=gres/gpu=2 Account Limits= "
      "team={MaxJobsPA=N(2) MaxSubmitJobsPA=N(2) MaxTRESPA=mem=102400(100),gres/gpu=16(4)} "
      "other={MaxJobsPA=N(1) MaxTRESPA=node=N(1)} User Limits= 1001={MaxJobsPU=1(9) MaxTRESPU=gres/gpu=8(8)} "
      "1000={MaxJobsPU=1(1) MaxSubmitJobsPU=2(2) MaxTRESPU=cpu=N(1),gres/gpu=8(4)}\n"
      "QOS=normal(1) GrpJobs=N(0) GrpTRES=node=N(0) Account Limits=No Accounts User Limits=No Users\n";
  const auto added = add_usage(said, 1000, accounting);
  ASSERT_TRUE(added.has_value()) << message_of(added);
  ASSERT_TRUE(accounting.associations[0].used.has_value());
  EXPECT_EQ(accounting.associations[0].used->submitted, 2);
  EXPECT_EQ(accounting.associations[0].used->running_minutes, (Tres{{"node", 30}}));
  EXPECT_FALSE(accounting.associations[1].used.has_value());
  EXPECT_FALSE(accounting.known_accounts[0].used.has_value());
  const auto& project = accounting.known_accounts[1].used;
  ASSERT_TRUE(project.has_value());
  EXPECT_EQ(project->resources, (Tres{{"cpu", 3}, {"mem", 300}, {"node", 3}}));
  EXPECT_EQ(project->minutes, (Tres{{"node", 20}}));
  EXPECT_EQ(project->jobs, 3);
  EXPECT_EQ(project->time, Seconds(420));
  const QosLimits& debug = accounting.qos[0];
  ASSERT_TRUE(debug.used_by_user.has_value());
  EXPECT_EQ(debug.used_by_user->jobs, 1);
  EXPECT_EQ(debug.used_by_user->resources, (Tres{{"cpu", 1}, {"gres/gpu", 4}}));
  EXPECT_FALSE(debug.used_by_user->running_minutes_known);
  EXPECT_EQ(debug.used_by_all->running_minutes, (Tres{{"node", 30}}));
  EXPECT_EQ(debug.usage_of_account("team")->jobs, 2);
  EXPECT_EQ(debug.usage_of_account("nobody")->jobs, 0);
  EXPECT_EQ(accounting.qos[1].used_by_user->jobs, 0);
  EXPECT_EQ(message_of(add_usage("QOS=debug(2) GrpJobs=few\n", 1000, accounting)),
            "scontrol says 'few' of what is used");
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
  echo 'ml||normal,short||gres/gpu=8|||1-00:00:00||||||||'
  echo 'root||normal,short|||||||||||||' ;;
"-n -P show assoc cluster=alps account=ml,root "*)
  echo 'ml|physics|||||||'
  echo 'ml||anna||||||'
  echo 'root||||||||' ;;
"-n -P show assoc cluster=alps account=physics "*) echo 'physics|root||node=8|||||' ;;
"-n -P show qos "*)
  echo 'normal|||||||||||||||||||||||'
  echo 'short|||||node=1|||00:20:00||gres/gpu=4|||||||||||||' ;;
*) exit 1 ;;
esac
)");
  const auto accounting = read_accounting("anna", "alps", Seconds(20));
  ASSERT_TRUE(accounting.has_value()) << message_of(accounting);
  EXPECT_EQ(accounting->default_account, "ml");
  EXPECT_EQ(accounting->accounts(), (std::vector<std::string>{"ml", "root"}));
  ASSERT_EQ(accounting->chain("ml").size(), 3U);
  EXPECT_EQ(accounting->chain("ml")[1]->all_jobs.resources, (Tres{{"node", 8}}));
  ASSERT_NE(accounting->find_qos("short"), nullptr);
  EXPECT_EQ(accounting->find_qos("short")->per_job.time, Seconds(1200));
}

TEST(Accounting, AsksForEachAccountOnce) {
  const FakeSacctmgr fake(R"(case "$*" in
*" show user "*) echo ml ;;
*" user=anna "*) echo 'ml||normal|||||||||||||' ;;
*ParentName*) echo 'ml|ghost|||||||' ;;
*) echo 'normal|||||||||||||||||||||||' ;;
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
  EXPECT_EQ(message_of(parse_accounts("ml|||\n")), "sacctmgr says 'ml|||', which has 4 columns, not 9");
  EXPECT_EQ(message_of(parse_accounts("ml|||node=x|||||\n")), "sacctmgr says 'node=x', which is no limit");
  EXPECT_EQ(message_of(parse_accounts("ml|||||||x|\n")), "sacctmgr says 'x', which is no limit");
}

}  // namespace
}  // namespace sailor::slurm::slurm_records_test
