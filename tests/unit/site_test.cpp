// Site files: facts about a cluster that Slurm does not know.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "slurm/constraint.hpp"
#include "slurm/site.hpp"

namespace sailor::slurm::site_test {
namespace {

namespace fs = std::filesystem;

const GpuCatalogue& catalogue() {
  static const GpuCatalogue loaded = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  return loaded;
}
const fs::path sites = SAILOR_SOURCE_DIR "/slurm/sites";

constexpr const char* example = R"(schema_version = 1
name = "test"
cluster_names = ["alps-*"]
[[prices]]
gpu = "gh200"
usd_per_node_hour = 10.0
gpus_per_node = 4
[[zones]]
name = "east"
nodes = ["e*"]
[[zones]]
name = "west"
nodes = ["w*"]
[[links]]
from = "east"
to = "west"
bandwidth_bytes_per_s = 5e9
[limits]
communicators_per_rank = 8
[launch]
mpi = "pmi2"
exclusive_nodes = true
environment = "box"
[launch.variables]
A = "1"
B = "two words"
[[environments]]
name = "box"
image_option = "--box"
srun_options = ["--network=x"]
[environments.variables]
B = "^LL128"
C = "3"
[[nodes]]
gpu = "gh200"
cores = [[0, 71], [72, 143]]
numa_nodes = [0, 1]
memory_nodes = [0, 1]
[check]
idle_temperature_celsius = 30.0
write_per_node_bytes_per_s = 2e8
fabric_provider = "verbs"
)";

Result<Site> parse(const std::string& text) { return parse_site(text, "s.toml", catalogue()); }

std::string error_with(const std::string& from, const std::string& to) {
  std::string text = example;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto site = parse(text);
  return site ? "no error" : site.error().message();
}

class Folder {
 public:
  Folder() { fs::create_directories(path_); }
  ~Folder() { fs::remove_all(path_); }
  void add(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_ = fs::path(::testing::TempDir()) /
                   (std::string("sites.") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

std::string named(const std::string& name, const std::string& pattern) {
  return "schema_version = 1\nname = \"" + name + "\"\ncluster_names = [\"" + pattern + "\"]\n";
}

TEST(Site, SaysWhichGpusNodesHave) {
  const auto site = parse(
      "schema_version = 1\nname = \"s\"\n[[gpu_types]]\ngpu = \"h100\"\nnodes = [\"n1*\"]\n[[gpu_types]]\ngpu = "
      "\"A100-80\"\nuntyped = true\n");
  ASSERT_TRUE(site.has_value()) << site.error().message();
  ASSERT_EQ(site->gpu_types.size(), 2U);
  EXPECT_EQ(site->gpu_types[0].gpu, "H100-80");
  EXPECT_EQ(site->gpu_types[0].nodes, (std::vector<std::string>{"n1*"}));
  EXPECT_FALSE(site->gpu_types[0].gres_type.has_value());
  EXPECT_EQ(site->gpu_types[1].gres_type, "");
  EXPECT_FALSE(site->gpu_types[0].where_nothing_else_says_it);
  const auto bad = parse("schema_version = 1\nname = \"s\"\n[[gpu_types]]\ngpu = \"h100\"\n");
  ASSERT_FALSE(bad.has_value());
  EXPECT_NE(bad.error().message().find("nothing says which nodes have H100-80"), std::string::npos)
      << bad.error().message();
}

TEST(Site, SaysWhatItsFileSays) {
  const auto site = parse(example);
  ASSERT_TRUE(site.has_value()) << site.error().message();
  EXPECT_EQ(site->launch.mpi, "pmi2");
  EXPECT_TRUE(site->launch.exclusive_nodes);
  EXPECT_FALSE(site->launch.memory_per_node.has_value());
  EXPECT_FALSE(site->launch.one_gpu_per_task);
  ASSERT_NE(site->find_layout("GH200-96"), nullptr);
  EXPECT_EQ(site->find_layout("GH200-96")->cores, (std::vector<CoreRange>{{0, 71}, {72, 143}}));
  EXPECT_EQ(site->find_layout("A100-40"), nullptr);
  EXPECT_EQ(site->limits.communicators_per_rank, 8);
  EXPECT_FALSE(site->limits.communicators_per_job.has_value());
  EXPECT_EQ(site->check.idle_temperature_celsius, 30.0);
  EXPECT_FALSE(site->check.send_between_nodes.has_value());
  EXPECT_EQ(site->check.write_per_node, BytesPerSecond(2e8));
  EXPECT_EQ(site->check.fabric_provider, "verbs");
}

TEST(Site, VariablesOfAnEnvironmentReplaceThoseOfTheSite) {
  const auto site = parse(example);
  ASSERT_TRUE(site.has_value());
  EXPECT_EQ(variables_of(*site, nullptr), (Variables{{"A", "1"}, {"B", "two words"}}));
  const auto usual = choose_environment(*site, "");
  ASSERT_TRUE(usual.has_value());
  EXPECT_EQ(variables_of(*site, *usual), (Variables{{"A", "1"}, {"B", "^LL128"}, {"C", "3"}}));
  const auto unknown = choose_environment(*site, "bxo");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().message(), "site test has no environment 'bxo' (known: box); did you mean 'box'?");
}

TEST(Site, AddsPricesZonesAndLinksToACluster) {
  const auto site = parse(example);
  ASSERT_TRUE(site.has_value());
  Cluster cluster;
  cluster.partitions = {{.name = "normal"}};
  cluster.groups = {{.nodes = {"e1", "w1", "e2", "x1"},
                     .count = 4,
                     .gpu = "GH200-96",
                     .gpus_per_node = 4,
                     .switches = {"s1", "s2", "s3", "s4"}}};
  add_site(*site, cluster);
  ASSERT_EQ(cluster.groups.size(), 3U);
  EXPECT_EQ(cluster.groups[0].zone, "east");
  EXPECT_EQ(cluster.groups[0].nodes, (std::vector<std::string>{"e1", "e2"}));
  EXPECT_EQ(cluster.groups[0].switches, (std::vector<std::string>{"s1", "s3"}));
  EXPECT_EQ(cluster.groups[1].zone, "west");
  EXPECT_EQ(cluster.groups[2].zone, "");
  EXPECT_EQ(cluster.links.size(), 1U);
  EXPECT_TRUE(cluster.partitions[0].exclusive_nodes);
  EXPECT_DOUBLE_EQ(device_price(cluster, catalogue().find("gh200").value(), "east").value(), 2.5);
}

TEST(Site, SaysHowFastLinksAcrossSwitchesAre) {
  const std::string text =
      "schema_version = 1\nname = \"x\"\n[switches]\nbandwidth_bytes_per_s = 12e9\nlatency_s = 3e-6\n";
  const auto site = parse(text);
  ASSERT_TRUE(site.has_value()) << site.error().message();
  Cluster cluster;
  add_site(*site, cluster);
  ASSERT_TRUE(cluster.across_switches.has_value());
  EXPECT_EQ(cluster.across_switches->bandwidth, BytesPerSecond(12e9));
  EXPECT_EQ(cluster.across_switches->latency, Seconds(3e-6));
  // A cluster file's own counts more.
  cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(1e9)};
  add_site(*site, cluster);
  EXPECT_EQ(cluster.across_switches->bandwidth, BytesPerSecond(1e9));
  EXPECT_EQ(parse("schema_version = 1\nname = \"x\"\n[switches]\nlatency_s = 1\n").error().message(),
            "s.toml:4:13: 'latency_s' is there without bandwidth_bytes_per_s; add the bandwidth");
}

// `sailor-plan --gpus 4x8:H100-80 --site NAME`: only what nobody has said is assumed.
TEST(Site, ItsNetworkCountsMoreThanAnAssumedOneAndLessThanAStatedOne) {
  const auto site = parse("schema_version = 1\nname = \"x\"\n[check]\nsend_between_nodes_bytes_per_s = 15e9\n");
  ASSERT_TRUE(site.has_value()) << site.error().message();
  const auto network_of = [&](StatedNetwork::Source source) {
    Cluster cluster;
    cluster.network = {.between_nodes = BytesPerSecond(25e9), .source = source};
    add_site(*site, cluster);
    return cluster.network;
  };
  EXPECT_EQ(network_of(StatedNetwork::Source::assumption).between_nodes, BytesPerSecond(15e9));
  EXPECT_EQ(network_of(StatedNetwork::Source::assumption).source, StatedNetwork::Source::file);
  EXPECT_EQ(network_of(StatedNetwork::Source::option).between_nodes, BytesPerSecond(25e9));
  EXPECT_EQ(network_of(StatedNetwork::Source::file).between_nodes, BytesPerSecond(25e9));
}

TEST(Site, LeavesOutNodesWithoutTheFeaturesThatItsJobsAskFor) {
  Cluster cluster;
  const auto add = [&](const char* node, const std::vector<std::string>& features) {
    cluster.groups.push_back(
        {.nodes = {node}, .count = 1, .gpu = "GH200-96", .partitions = {"normal"}, .features = features});
  };
  add("gh1", {"gpu", "thp_never", "boost"});
  add("gh2", {"gpu", "thp_never"});
  add("gh3", {"gpu", "boost"});
  Cluster same = cluster;
  keep_nodes_that_satisfy("thp_never&boost", "site alps", cluster);
  ASSERT_EQ(cluster.groups.size(), 1U);
  EXPECT_EQ(cluster.groups[0].nodes, (std::vector<std::string>{"gh1"}));
  ASSERT_EQ(cluster.left_out.size(), 1U);
  EXPECT_EQ(cluster.left_out[0].nodes, (std::vector<std::string>{"gh2", "gh3"}));
  EXPECT_EQ(cluster.left_out[0].partitions, (std::vector<std::string>{"normal"}));
  EXPECT_EQ(cluster.left_out[0].reason, "they lack the features that site alps asks for (thp_never&boost)");
  // Nobody says what features nodes have: nothing is left out.
  for (NodeGroup& group : same.groups) group.features.clear();
  keep_nodes_that_satisfy("thp_never&boost", "site alps", same);
  EXPECT_EQ(same.groups.size(), 3U);
}

TEST(Constraint, IsReadAsSlurmReadsIt) {
  const std::vector<std::string> features{"gpu", "fast", "rack1"};
  for (const char* good :
       {"fast", "gpu&fast", "slow|fast", "(slow|fast)&gpu", "[rack1|rack2]", "gpu*2&fast*1", "slow&gpu|fast"})
    EXPECT_EQ(satisfies(features, good), true) << good;
  for (const char* bad : {"slow", "gpu&slow", "slow|big", "(slow|big)&gpu", "fast|gpu&slow"})
    EXPECT_EQ(satisfies(features, bad), false) << bad;
  for (const char* unreadable : {"", "gpu&", "(gpu", "gpu*", "gpu fast"})
    EXPECT_FALSE(satisfies(features, unreadable).has_value()) << unreadable;
}

TEST(Site, SaysHowAnImageIsViewedAndWhatPipelinesWant) {
  const std::string text =
      "schema_version = 1\nname = \"x\"\n[launch]\nno_core_files = true\nenvironment = \"box\"\n"
      "[[environments]]\nname = \"box\"\nimage_option = \"--box\"\nview_option = \"--view\"\nview = \"usual\"\n"
      "[environments.variables]\nA = \"1\"\n[environments.pipeline_variables]\nA = \"2\"\nB = \"3\"\n";
  const auto site = parse(text);
  ASSERT_TRUE(site.has_value()) << site.error().message();
  EXPECT_TRUE(site->launch.no_core_files);
  const SoftwareEnvironment* box = site->find_environment("box");
  EXPECT_EQ(box->view_option + "=" + box->view, "--view=usual");
  EXPECT_EQ(variables_of(*site, box), (Variables{{"A", "1"}}));
  EXPECT_EQ(variables_of(*site, box, true), (Variables{{"A", "2"}, {"B", "3"}}));
  const auto without = [&](const std::string& line) {
    std::string less = text;
    less.erase(less.find(line), line.size());
    const auto bad = parse(less);
    return bad ? "no error" : bad.error().message();
  };
  EXPECT_EQ(without("view_option = \"--view\"\n"),
            "s.toml:9:8: 'view' is there without view_option; add view_option = \"--view\"");
  EXPECT_EQ(without("image_option = \"--box\"\n"),
            "s.toml:8:15: '--view' is no option of srun beside image_option; write \"--view\", for example");
}

TEST(Site, SaysHowMuchMemoryJobsAskForAndWhoGivesThemTheirGpus) {
  const auto site = parse_site(
      "schema_version = 1\nname = \"x\"\ncluster_names = []\n[launch]\nmemory_per_node_gib = 450\n"
      "one_gpu_per_task = true\n",
      "x.toml", catalogue());
  ASSERT_TRUE(site.has_value()) << site.error().message();
  EXPECT_EQ(site->launch.memory_per_node, 450.0 * gib);
  EXPECT_TRUE(site->launch.one_gpu_per_task);
}

TEST(Site, BadFilesAreRefusedWithLineAndReason) {
  EXPECT_EQ(error_with("to = \"west\"", "to = \"wset\""),
            "s.toml:16:6: zone 'wset' is not described; add a [[zones]] with this name; known: east, west");
  EXPECT_EQ(error_with("environment = \"box\"", "environment = \"bax\""),
            "s.toml:23:15: environment 'bax' is not described; add an [[environments]] with this name; known: box");
  EXPECT_EQ(error_with("A = \"1\"", "\"A B\" = \"1\""),
            "s.toml:25:9: 'A B' cannot be the name of an environment variable; use letters, digits and _");
  EXPECT_EQ(error_with("\"two words\"", "\"two\\nlines\""), "s.toml:26:5: the value of B is not one line");
  EXPECT_EQ(error_with("\"--network=x\"", "\"network=x\""),
            "s.toml:30:16: 'network=x' is no option; write each as one word: \"--name=value\"");
  EXPECT_EQ(error_with("[72, 143]", "[143, 72]"),
            "s.toml:36:9: the cores of a GPU are the first and the last of a range; write [[0, 71], [72, 143]], for "
            "example");
  EXPECT_EQ(error_with("numa_nodes = [0, 1]", "numa_nodes = [0]"),
            "s.toml:37:14: 1 NUMA nodes for the cores of 2 GPUs; name one for each range of cores");
  EXPECT_TRUE(error_with("2e8", "0").starts_with("s.toml:41:30: ")) << error_with("2e8", "0");
  EXPECT_NE(error_with("2e8", "1e300").find("1000000000000000"), std::string::npos) << error_with("2e8", "1e300");
  for (const char* const bad : {"\"a\\nb\"", "\"two words\"", "\"caf\u00e9\""})
    EXPECT_EQ(error_with("\"verbs\"", bad), "s.toml:42:19: 'fabric_provider' is to be one word (ASCII, no blanks)");
  EXPECT_EQ(error_with("\"verbs\"", "\"verbs;ofi_rxm\""), "no error");
  EXPECT_TRUE(error_with("mpi = \"pmi2\"", "mpii = \"pmi2\"").starts_with("s.toml:21:8: unknown key 'launch.mpii'"))
      << error_with("mpi = \"pmi2\"", "mpii = \"pmi2\"");
}

TEST(FindSite, TakesTheFileThatSaysMostOfTheName) {
  const Folder folder;
  folder.add("a.toml", named("a", "alps-*"));
  folder.add("b.toml", named("b", "alps-ml*"));
  folder.add("generic.toml", "schema_version = 1\nname = \"generic\"\n");
  EXPECT_EQ(find_site("alps-ml1", folder.path(), catalogue())->name, "b");
  EXPECT_EQ(find_site("ALPS-x", folder.path(), catalogue())->name, "a");
  EXPECT_EQ(find_site("daint", folder.path(), catalogue())->name, "generic");
  EXPECT_EQ(find_site("", folder.path(), catalogue())->name, "generic");
}

TEST(FindSite, ReadsOnlyTheFileThatIsUsed) {
  const Folder folder;
  folder.add("a.toml", named("a", "alps") + "[launch]\nmpii = \"pmix\"\n");
  folder.add("b.toml", named("b", "bristen"));
  folder.add("broken.toml", "schema_version = \n");
  folder.add("generic.toml", "schema_version = 1\nname = \"generic\"\n");
  const auto site = find_site("bristen", folder.path(), catalogue());
  ASSERT_TRUE(site.has_value()) << site.error().message();
  EXPECT_EQ(site->name, "b");
  EXPECT_EQ(site->unreadable, "");
  EXPECT_NE(find_site("alps", folder.path(), catalogue()).error().what.find("unknown key 'launch.mpii'"),
            std::string::npos);
  // The one that cannot be read may have been for this cluster.
  const auto other = find_site("daint", folder.path(), catalogue());
  ASSERT_TRUE(other.has_value()) << other.error().message();
  EXPECT_NE(other->unreadable.find("broken.toml:1"), std::string::npos) << other->unreadable;
}

TEST(FindSite, SuitsACatalogueOfOnesOwn) {
  const auto own = GpuCatalogue::parse(
      "schema_version = 1\n[[gpus]]\nname = \"core\"\nkind = \"cpu\"\npeak_fp32_flop_per_s = 1e9\n"
      "memory_bandwidth_bytes_per_s = 1e9\nprice_usd_per_hour = 0.1\nsource = \"a test\"\n",
      "own.toml");
  ASSERT_TRUE(own.has_value());
  for (const char* name : {"testcluster", "clariden", "bristen", "elsewhere"}) {
    const auto site = find_site(name, sites, *own);
    ASSERT_TRUE(site.has_value()) << site.error().message();
  }
  const auto site = find_site("testcluster", sites, *own);
  EXPECT_EQ(site->unknown_gpus, (std::set<std::string>{"GH200-96"}));
}

TEST(FindSite, RefusesTwoThatSayTheSame) {
  const Folder folder;
  folder.add("a.toml", named("a", "alps*"));
  folder.add("b.toml", named("b", "*alps"));
  const auto site = find_site("alps", folder.path(), catalogue());
  ASSERT_FALSE(site.has_value());
  EXPECT_NE(site.error().what.find("both describe the cluster alps"), std::string::npos) << site.error().what;
}

TEST(NamedSite, NamesTheKnownOnes) {
  const auto site = named_site("alps-claridn", sites, catalogue());
  ASSERT_FALSE(site.has_value());
  EXPECT_EQ(site.error().message(),
            "site 'alps-claridn' not found (known: alps-bristen, alps-clariden, generic, testcluster); did you mean "
            "'alps-clariden'?");
}

TEST(NamedSite, NamesTheOptionThatWasUsed) {
  const Folder folder;
  folder.add("alps.toml", named("alps", "a"));
  EXPECT_EQ(named_site("nope", folder.path(), catalogue()).error().hint, "use --site NAME, or the path of a site file");
  EXPECT_EQ(named_site("nope", folder.path(), catalogue(), "--site-variables").error().hint,
            "use --site-variables NAME, or the path of a site file");
}

TEST(Sites, ThoseThatComeWithSailorAreSound) {
  for (const char* name : {"generic", "alps-clariden", "alps-bristen", "testcluster"}) {
    const auto site = named_site(name, sites, catalogue());
    ASSERT_TRUE(site.has_value()) << site.error().message();
    EXPECT_EQ(site->name, name);
    EXPECT_TRUE(site->unknown_gpus.empty());
    EXPECT_TRUE(choose_environment(*site, "").has_value());
  }
}

TEST(Sites, ClaridenIsStartedAsCscsWants) {
  const auto site = find_site("clariden", sites, catalogue());
  ASSERT_TRUE(site.has_value()) << site.error().message();
  EXPECT_EQ(site->name, "alps-clariden");
  EXPECT_EQ(site->launch.constraint, "thp_never&nvidia_vboost_enabled");
  EXPECT_EQ(site->check.fabric_provider, "cxi");
  const NodeLayout* node = site->find_layout("GH200-96");
  ASSERT_NE(node, nullptr);
  ASSERT_EQ(node->cores.size(), 4U);
  EXPECT_EQ(node->cores[3], (CoreRange{216, 287}));
  EXPECT_EQ(node->memory_nodes, (std::vector<int>{0, 1, 2, 3}));
  const auto has = [&](const char* environment, const char* variable, const char* value) {
    const Variables all = variables_of(*site, site->find_environment(environment));
    return std::find(all.begin(), all.end(), std::pair<std::string, std::string>(variable, value)) != all.end();
  };
  // GPU-aware MPI and NCCL deadlock together, whatever the software comes from.
  EXPECT_TRUE(has("uenv", "MPICH_GPU_SUPPORT_ENABLED", "0"));
  EXPECT_TRUE(has("extended-image", "MPICH_GPU_SUPPORT_ENABLED", "0"));
  EXPECT_TRUE(has("uenv", "NCCL_NET", "AWS Libfabric"));
  // NCCL's plugin comes with the view. Messages between stages want more channels than an all-reduce.
  EXPECT_EQ(site->find_environment("uenv")->view, "default");
  EXPECT_EQ(site->find_environment("uenv")->pipeline_variables, (Variables{{"NCCL_NCHANNELS_PER_NET_PEER", "4"}}));
  EXPECT_FALSE(has("uenv", "NCCL_NCHANNELS_PER_NET_PEER", "4"));
  EXPECT_TRUE(site->launch.no_core_files);
  EXPECT_TRUE(has("extended-image", "FI_CXI_RX_MATCH_MODE", "hybrid"));
  EXPECT_EQ(site->find_environment("extended-image")->srun_options,
            (std::vector<std::string>{"--network=disable_rdzv_get"}));
}

}  // namespace
}  // namespace sailor::slurm::site_test
