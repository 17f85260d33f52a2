// Findings of sailor-check: every finding with its message, on facts written by hand; facts read from a system's files
// in a folder; and NVML, replaced by tests/fakes/nvml.cpp.
#include "preflight/node_check.hpp"
#include "cluster/gpu_match.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp and setenv are POSIX
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "preflight/fabric.hpp"
#include "preflight/gather_facts.hpp"
#include "preflight/nvml.hpp"
#include "preflight/write_test.hpp"

namespace sailor::preflight::node_check_test {
namespace {

namespace fs = std::filesystem;

const GpuCatalogue& catalogue() {
  static const GpuCatalogue gpus = GpuCatalogue::load(fs::path(SAILOR_SOURCE_DIR) / "profiles/gpus.toml").value();
  return gpus;
}

/// Ranks 0 to nodes * per_node - 1 on gh1, gh2, ..., each with its GH200, all alike and in good health.
std::vector<RankFacts> healthy(int nodes, int per_node) {
  std::vector<RankFacts> all;
  for (int rank = 0; rank < nodes * per_node; ++rank) {
    RankFacts facts{.rank = rank, .local_rank = rank % per_node};
    facts.node = fmt::format("gh{}", rank / per_node + 1);
    facts.host = facts.node;
    facts.gres_type = "gh200";
    facts.cpu = "Neoverse-V2";
    facts.cores_online = 288;
    for (int core = 0; core < 72; ++core) facts.cores.push_back(72 * facts.local_rank + core);
    facts.numa_nodes = {facts.local_rank};
    facts.numa_nodes_with_cores = 4;
    facts.memory_nodes = {0, 1, 2, 3};
    facts.memory_total = 800.0 * gib;
    facts.memory_available = 700.0 * gib;
    facts.busy_cores = 0.1;
    facts.visible_gpus = "0,1,2,3";
    facts.has_driver = true;
    facts.by_nvml = true;
    for (int gpu = 0; gpu < 4; ++gpu)
      facts.gpus.push_back({.name = "NVIDIA GH200 120GB",
                            .uuid = fmt::format("GPU-{}-{}", facts.node, gpu),
                            .bus_id = fmt::format("000{}:01:00.0", gpu),
                            .memory_total = 96.0 * gib,
                            .memory_used = 0.5 * gib,
                            .temperature_celsius = 28.0,
                            .clock_hz = 1.98e9,
                            .highest_clock_hz = 1.98e9,
                            .throttle_reasons = 1,
                            .mig = false,
                            .mig_pending = false,
                            .power_limit_watts = 700.0,
                            .default_power_limit_watts = 700.0,
                            .nvlinks_up = 18,
                            .pcie_lanes = 16,
                            .highest_pcie_lanes = 16,
                            .highest_pcie_generation = 5,
                            .unreadable_peers = 0});
    if (facts.local_rank == 0) facts.providers = {{"cxi", {"cxi0", "cxi1"}}, {"tcp", {"hsn0"}}};
    facts.ports = {{.name = "hsn0", .kind = "ethernet", .is_up = true, .bits_per_s = 200e9},
                   {.name = "hsn1", .kind = "ethernet", .is_up = true, .bits_per_s = 200e9}};
    facts.spaces = {{.what = "temporary files", .path = "/tmp", .free = 100.0 * gib, .can_write = true}};
    facts.versions = {{"driver", "570.1"}, {"NCCL", "2.30.7"}, {"sailor", "0.1.0"}};
    facts.planned = {.gpu = "GH200-96", .on_gpu = true, .memory = 80.0 * gib};
    facts.speed = {.flop_per_s = 100e9, .flop_per_cpu_s = 100e9, .bytes_per_s = 40e9, .bytes_per_cpu_s = 40e9};
    all.push_back(std::move(facts));
  }
  return all;
}

slurm::Site site() {
  slurm::Site made;
  made.check.slower_than_median = 0.14;
  made.check.idle_temperature_celsius = 30.0;
  made.check.used_memory_share = 0.2;
  made.check.fabric_provider = "cxi";
  return made;
}

struct Judged {
  Verdict verdict;
  std::string table;
  std::string json;
};

Judged judge(const std::vector<RankFacts>& ranks, const JobSpeed& speed = {}, const slurm::Site& with = site(),
             std::set<std::string, std::less<>> skip = {}) {
  const Allocation allocation{
      .ranks = ranks, .speed = speed, .site = with, .gpus = catalogue(), .skip = std::move(skip)};
  Verdict verdict = preflight::judge(allocation);
  return {verdict, report(verdict, allocation), report_json(verdict, allocation)};
}

/// The only finding of the nodes and the job; an empty one if there are none, or several.
Finding only_finding(const Verdict& verdict) {
  std::vector<Finding> all = verdict.job;
  for (const NodeVerdict& node : verdict.nodes) all.insert(all.end(), node.findings.begin(), node.findings.end());
  EXPECT_EQ(all.size(), 1U);
  for (const Finding& finding : all) SCOPED_TRACE(finding.what);
  return all.size() == 1 ? all.front() : Finding{};
}

::testing::AssertionResult says(const Finding& finding, Outcome outcome, const std::string& check,
                                const std::string& what) {
  if (finding.outcome == outcome && finding.check == check && finding.what.find(what) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << to_string(finding.outcome) << ", " << finding.check << ": " << finding.what;
}

// ---- The frame

TEST(NodeCheck, FindsNothingWrongWithHealthyNodesAndFoldsThem) {
  const Judged judged = judge(healthy(4, 4));
  EXPECT_EQ(judged.verdict.outcome(), Outcome::ok);
  EXPECT_TRUE(judged.verdict.exclude().empty());
  EXPECT_NE(judged.table.find("gh[1-4]  0-15"), std::string::npos) << judged.table;
  EXPECT_NE(judged.table.find("4 nodes: 4 fit, 0 to look at, 0 to exclude\n"), std::string::npos) << judged.table;
  EXPECT_EQ(judged.table.find("--exclude"), std::string::npos);
  EXPECT_EQ(exit_status(judged.verdict.outcome()), 0);
}

TEST(NodeCheck, SaysInOneLineWhatIsWorst) {
  std::vector<RankFacts> ranks = healthy(1, 4);
  EXPECT_EQ(one_line(judge(ranks).verdict), "ok: gh1");
  ranks[1].gpus[1].highest_clock_hz = 1.2e9;
  EXPECT_EQ(one_line(judge(ranks).verdict),
            "warn: gh1: throttling: rank 1 (GPU-gh1-1): reaches at most 1200 MHz, GPUs alike 1980 MHz");
  ranks[2].gpus[2].uncorrected_errors = 3;
  ranks[3].gpus[3].xids = {"Xid\n(PCI:0002:01:00): 79"};
  const std::string line = one_line(judge(ranks).verdict);
  EXPECT_TRUE(line.starts_with("fail: gh1: ecc: rank 2 (GPU-gh1-2): 3 memory errors that could not be corrected"))
      << line;
  EXPECT_TRUE(line.ends_with("; and 2 more (throttling, xid)")) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(NodeCheck, JudgesThousandsOfRanks) {
  std::vector<RankFacts> ranks = healthy(1000, 4);
  ranks[2001].gpus[1].power_limit_watts = 500.0;
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(only_finding(judged.verdict), Outcome::warn, "power", "may draw 500 W, GPUs alike 700 W"));
  EXPECT_EQ(judged.verdict.nodes[500].outcome(), Outcome::warn);
}

TEST(NodeCheck, PutsTheWorstNodesFirstAndEndsWithTheListToExclude) {
  std::vector<RankFacts> ranks = healthy(4, 1);
  ranks[1].busy_cores = 12.0;
  ranks[2].uncorrected_memory_errors = 1;
  ranks[3].uncorrected_memory_errors = 1;
  const Judged judged = judge(ranks);
  EXPECT_EQ(judged.verdict.outcome(), Outcome::fail);
  EXPECT_EQ(judged.verdict.exclude(), (std::vector<std::string>{"gh3", "gh4"}));
  const auto at = [&](const char* name) { return judged.table.find(name); };
  EXPECT_LT(at("gh[3-4]"), at("gh2"));
  EXPECT_LT(at("gh2"), at("gh1"));
  EXPECT_TRUE(judged.table.ends_with("4 nodes: 1 fit, 1 to look at, 2 to exclude\n--exclude=gh3,gh4\n"))
      << judged.table;
}

TEST(NodeCheck, ExcludesNobodyWhereAllFailAlike) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  for (RankFacts& facts : ranks) facts.uncorrected_memory_errors = 3;
  const Judged judged = judge(ranks);
  EXPECT_EQ(judged.verdict.outcome(), Outcome::fail);
  EXPECT_TRUE(judged.verdict.exclude().empty());
}

TEST(NodeCheck, LeavesOutWhatIsNotWanted) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  ranks[1].busy_cores = 12.0;
  EXPECT_EQ(judge(ranks, {}, site(), {"load"}).verdict.outcome(), Outcome::ok);
}

TEST(NodeCheck, SaysWhatCouldNotBeFoundOutAndWhere) {
  std::vector<RankFacts> ranks = healthy(3, 2);
  for (RankFacts& facts : ranks) facts.unknown.push_back({"xid", "the kernel log is not readable by this user"});
  ranks[2].unknown.push_back({"cpu-clock", "the system has no cpufreq"});
  const Judged judged = judge(ranks);
  EXPECT_EQ(judged.verdict.outcome(), Outcome::ok);
  EXPECT_NE(judged.table.find("not checked: xid: the kernel log is not readable by this user\n"), std::string::npos);
  EXPECT_NE(judged.table.find("not checked: cpu-clock: gh2: the system has no cpufreq\n"), std::string::npos)
      << judged.table;
}

TEST(NodeCheck, JsonHasVerdictFactsAndLinks) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  ranks[1].uncorrected_memory_errors = 2;
  const JobSpeed speed{.links = {{.kind = LinkKind::send, .from = 0, .to = 1, .bandwidth = BytesPerSecond(20e9)}}};
  const auto json = nlohmann::json::parse(judge(ranks, speed).json);
  EXPECT_EQ(json.at("outcome"), "fail");
  EXPECT_EQ(json.at("exclude"), nlohmann::json({"gh2"}));
  EXPECT_EQ(json.at("nodes")[1].at("findings")[0].at("what"), "2 uncorrected errors in host memory");
  EXPECT_EQ(json.at("ranks")[1].at("gpus")[3].at("uuid"), "GPU-gh2-3");
  EXPECT_EQ(json.at("ranks")[0].at("memory_total_bytes"), 800.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(json.at("ranks")[0].at("allowed_clock_hz"), nullptr);
  EXPECT_EQ(json.at("links")[0].at("bandwidth_bytes_per_s"), 20e9);
}

TEST(NodeCheck, FactsTravelAsJsonUnchanged) {
  RankFacts facts = healthy(1, 4)[2];
  facts.unknown = {{"numa", "why \"not\"\n"}};
  facts.variables = {{"A", "1", std::nullopt}, {"B", "2", "3"}};
  facts.bound_memory_nodes = {0, 3};
  facts.gpus[0].xids = {"Xid (PCI:0000:01:00): 79"};
  facts.gpus[0].repair_pending = false;
  facts.providers = {{"cxi", {"cxi0"}}, {"udp", {}}};
  facts.writing = {.folder = "/scratch", .amount = 1.0 * mib, .bytes_per_s = 2e8, .problem = {}};
  const std::string text = to_json_text(facts);
  const auto read = rank_facts_from_json(text);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(to_json_text(*read), text);
  EXPECT_EQ(read->planned->memory, 80.0 * gib);
  EXPECT_EQ(read->bound_memory_nodes, (std::vector<int>{0, 3}));
  EXPECT_EQ(read->variables[0].value, std::nullopt);
  ASSERT_EQ(read->providers.value().size(), 2U);
  EXPECT_EQ(read->providers->front().domains, std::vector<std::string>{"cxi0"});
  EXPECT_EQ(read->writing.value().amount, 1.0 * mib);
  EXPECT_EQ(read->gpus[0].power_limit_watts, 700.0);
  EXPECT_FALSE(rank_facts_from_json("{}"));
  EXPECT_FALSE(rank_facts_from_json(text.substr(0, text.size() / 2)));
}

TEST(NodeCheck, FoldsNamesOfNodes) {
  EXPECT_EQ(fold_names({"gh1", "gh2", "gh3", "gh7", "a1"}), "gh[1-3,7],a1");
  EXPECT_EQ(fold_names({"nid001", "nid002", "nid010"}), "nid[001-002,010]");
  EXPECT_EQ(fold_names({"n9", "n10", "n11"}), "n[9-11]");
  EXPECT_EQ(fold_names({"login", "n08", "n9"}), "login,n08,n9");
  EXPECT_EQ(fold_names({}), "");
}

// ---- GPUs

TEST(NodeCheckGpus, NamesTheNodeWithAnotherTypeThanThePlans) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  for (GpuFacts& gpu : ranks[1].gpus) {
    gpu.name = "NVIDIA A100-SXM4-40GB";
    gpu.memory_total = 40.0 * gib;
    gpu.memory_used = 0.0 * gib;
  }
  ranks[1].planned->memory = 20.0 * gib;
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(only_finding(judged.verdict), Outcome::fail, "gpu-type",
                   "rank 1 needs GH200-96 by the plan, and has A100-40 (NVIDIA A100-SXM4-40GB)"));
  EXPECT_EQ(judged.verdict.exclude(), std::vector<std::string>{"gh2"});
}

TEST(NodeCheckGpus, ComparesWithSlurmWhereNoDriverSaysMore) {
  std::vector<RankFacts> ranks = healthy(3, 1);
  for (RankFacts& facts : ranks) {
    facts.gpus.clear();
    facts.by_nvml = facts.has_driver = false;
  }
  ranks[1].gres_type = "a100";
  ranks[2].gres_type = "-";
  const Judged judged = judge(ranks);
  EXPECT_EQ(judged.verdict.exclude(), (std::vector<std::string>{"gh2", "gh3"}));
  EXPECT_TRUE(says(judged.verdict.nodes[1].findings.at(0), Outcome::fail, "gpu-type",
                   "rank 1 needs GH200-96 by the plan, and has A100-40 by slurm.conf (gpu:a100)"));
  EXPECT_TRUE(says(judged.verdict.nodes[2].findings.at(0), Outcome::fail, "gpu-type", "no GPU by slurm.conf"));
  EXPECT_NE(judged.table.find("not checked: gpu-type: rank 0: compared with slurm.conf only (gpu:gh200)"),
            std::string::npos)
      << judged.table;
}

TEST(NodeCheckGpus, RecognisesDevicesByNameAndMemory) {
  const auto name = [](const char* device, double memory_gib) {
    const GpuType* type = match_device(catalogue(), device, memory_gib * gib);
    return type == nullptr ? std::string("none") : type->name;
  };
  EXPECT_EQ(name("NVIDIA GH200 120GB", 95.6), "GH200-96");
  EXPECT_EQ(name("NVIDIA H200", 140.4), "H200-141");
  EXPECT_EQ(name("NVIDIA A100-SXM4-40GB", 39.4), "A100-40");
  EXPECT_EQ(name("NVIDIA A100-SXM4-80GB", 79.3), "A100-80");
  EXPECT_EQ(name("Tesla V100-SXM2-16GB", 15.8), "V100-16");
  EXPECT_EQ(name("NVIDIA GeForce RTX 3090", 23.7), "RTX-3090");
  EXPECT_EQ(name("NVIDIA GH200 480GB", 95.6), "GH200-96");  // of the CPU's memory
  EXPECT_EQ(name("NVIDIA GH200 144G HBM3e", 139.0), "GH200-144");
  EXPECT_EQ(name("NVIDIA H100 80GB HBM3", 79.6), "H100-80");
  EXPECT_EQ(name("NVIDIA H100 PCIe", 79.6), "H100-PCIe-80");
  EXPECT_EQ(name("NVIDIA L40S", 45.0), "L40S");
  EXPECT_EQ(name("NVIDIA L40", 45.0), "L40");
  EXPECT_EQ(name("NVIDIA T4", 15.0), "none");
}

TEST(NodeCheckGpus, FindsRanksThatShareAGpu) {
  std::vector<RankFacts> ranks = healthy(2, 2);
  ranks[2].visible_gpus = ranks[3].visible_gpus = "2";
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(only_finding(judged.verdict), Outcome::fail, "gpu-sharing", "ranks 2-3 share GPU-gh2-2 of gh2"));
  EXPECT_TRUE(judged.verdict.exclude().empty());  // no fault of the node
  // By their UUIDs they are two, whatever number each sees in its own control group.
  ranks = healthy(1, 2);
  for (RankFacts& facts : ranks) {
    facts.visible_gpus = "0";
    facts.gpus = {facts.gpus[static_cast<std::size_t>(facts.local_rank)]};
  }
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);
}

TEST(NodeCheckGpus, FindsRanksThatMayNotUseTheGpusOfTheOthers) {
  std::vector<RankFacts> ranks = healthy(2, 2);
  for (RankFacts& facts : ranks) {
    facts.gpus_of_job = 2;
    facts.gpus.resize(2);
  }
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);
  // In control groups of their own (srun --gpus-per-task=1).
  for (RankFacts& facts : ranks)
    if (facts.node == "gh2") {
      facts.visible_gpus = "0";
      facts.gpus = {facts.gpus[static_cast<std::size_t>(facts.local_rank)]};
    }
  const Judged judged = judge(ranks, {}, site(), {"gpu-state"});
  const Finding& finding = only_finding(judged.verdict);
  EXPECT_TRUE(
      says(finding, Outcome::warn, "gpu-visibility",
           "ranks 2-3 may each use only 1 of the 2 GPUs that the job has on gh2: NCCL cannot use NVLink between "
           "them"));
  EXPECT_NE(finding.remedy.find("without --gpus-per-task"), std::string::npos);
  EXPECT_TRUE(judged.verdict.exclude().empty());
  // A variable alone hides nothing from NCCL.
  ranks = healthy(1, 2);
  for (RankFacts& facts : ranks) {
    facts.gpus_of_job = 4;
    facts.visible_gpus = std::to_string(facts.local_rank);
  }
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);
  // Not every step says what the job has.
  ranks = healthy(1, 2);
  for (RankFacts& facts : ranks) {
    facts.gpus_of_node = 4;
    facts.gpus = {facts.gpus[static_cast<std::size_t>(facts.local_rank)]};
    facts.visible_gpus = "0";
  }
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::warn, "gpu-visibility",
                   "ranks 0-1 may each use only 1 of the 4 GPUs that there are on gh1"));
}

TEST(NodeCheckGpus, FindsRanksThatShareAGpuWithoutADriver) {
  std::vector<RankFacts> ranks = healthy(1, 2);
  for (RankFacts& facts : ranks) {
    facts.gpus.clear();
    facts.by_nvml = facts.has_driver = false;
    facts.visible_gpus = "0";
    facts.step_gpus = "0";
  }
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::fail, "gpu-sharing",
                   "ranks 0-1 share 1 GPU of gh1 (CUDA_VISIBLE_DEVICES=0)"));
  for (RankFacts& facts : ranks) facts.step_gpus = "0,1";
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::warn, "gpu-sharing",
                   "ranks 0-1 of gh1 all see GPU 0 only: the same one, unless Slurm keeps each to its own"));
  for (RankFacts& facts : ranks) facts.visible_gpus = "0,1";
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);  // rank 0 takes the first, rank 1 the second
}

TEST(NodeCheckGpus, FindsRanksForWhichNoGpuIsLeft) {
  std::vector<RankFacts> ranks = healthy(1, 4);
  for (RankFacts& facts : ranks) facts.visible_gpus = "0,1";
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::fail, "gpu-sharing",
                   "no GPU is left for ranks 2-3 of gh1 (CUDA_VISIBLE_DEVICES=0,1)"));
}

TEST(NodeCheckGpus, FindsRanksThatSeeNone) {
  std::vector<RankFacts> ranks = healthy(2, 2);
  for (RankFacts& facts : ranks) {
    facts.gpus.clear();
    facts.by_nvml = facts.has_driver = false;
    facts.visible_gpus.reset();
  }
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::fail, "gpu-sharing",
                   "ranks 0-3 see no GPU (CUDA_VISIBLE_DEVICES is not set)"));
}

TEST(NodeCheckGpus, PlansForCoresNeedNone) {
  std::vector<RankFacts> ranks = healthy(1, 2);
  for (RankFacts& facts : ranks) {
    facts.visible_gpus = "0";
    facts.planned = {.gpu = "cpu", .on_gpu = false, .memory = 1.0 * gib};
    facts.gpus[0].uncorrected_errors = 5;
  }
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);
}

TEST(NodeCheckGpus, FindsNodesWithoutDriverOrWithFewerGpus) {
  std::vector<RankFacts> ranks = healthy(3, 1);
  ranks[1].has_driver = ranks[1].by_nvml = false;
  ranks[1].gpus.clear();
  ranks[2].gpus.pop_back();
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(judged.verdict.nodes[1].findings.at(0), Outcome::fail, "gpu-state",
                   "there is no NVIDIA driver, on other nodes there is"));
  EXPECT_TRUE(says(judged.verdict.nodes[2].findings.at(0), Outcome::fail, "gpu-state",
                   "the driver knows 3 GPUs, on nodes alike 4"));
}

struct Illness {
  const char* name;
  void (*fall_ill)(GpuFacts& gpu);
  Outcome outcome;
  const char* check;
  const char* what;
};

class GpuIllness : public ::testing::TestWithParam<Illness> {};

TEST_P(GpuIllness, IsNamedWithTheRank) {
  std::vector<RankFacts> ranks = healthy(2, 4);
  ranks[6].planned->memory = 60.0 * gib;
  GetParam().fall_ill(ranks[6].gpus[2]);
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(only_finding(judged.verdict), GetParam().outcome, GetParam().check,
                   std::string("rank 6 (GPU-gh2-2): ") + GetParam().what));
  EXPECT_EQ(judged.verdict.nodes[0].outcome(), Outcome::ok);
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuIllness,
    ::testing::Values(
        Illness{"used",
                [](GpuFacts& gpu) {
                  gpu.memory_used = 24.0 * gib;
                  gpu.processes = 1;
                },
                Outcome::fail, "gpu-memory", "24.0 GiB of 96.0 GiB are in use (1 process on it) before any work"},
        Illness{"hot", [](GpuFacts& gpu) { gpu.temperature_celsius = 61.0; }, Outcome::warn, "temperature",
                "is 61 degrees Celsius warm before any work, the site expects at most 30"},
        Illness{"hardware_thermal", [](GpuFacts& gpu) { gpu.throttle_reasons = 0x40 | 0x8; }, Outcome::fail,
                "throttling", "is throttled by the hardware for its temperature"},
        Illness{"power_brake", [](GpuFacts& gpu) { gpu.throttle_reasons = 0x80; }, Outcome::fail, "throttling",
                "is throttled by the power supply (power brake)"},
        Illness{"slowdown", [](GpuFacts& gpu) { gpu.throttle_reasons = 0x8; }, Outcome::fail, "throttling",
                "is slowed down by the hardware"},
        Illness{"software_thermal", [](GpuFacts& gpu) { gpu.throttle_reasons = 0x20; }, Outcome::warn, "throttling",
                "is throttled by the driver for its temperature"},
        Illness{"capped", [](GpuFacts& gpu) { gpu.highest_clock_hz = 1.2e9; }, Outcome::warn, "throttling",
                "reaches at most 1200 MHz, GPUs alike 1980 MHz"},
        Illness{"power", [](GpuFacts& gpu) { gpu.power_limit_watts = 450.0; }, Outcome::warn, "power",
                "may draw 450 W, GPUs alike 700 W"},
        Illness{"nvlink", [](GpuFacts& gpu) { gpu.nvlinks_up = 17; }, Outcome::fail, "nvlink",
                "has 17 NVLinks up, GPUs alike 18"},
        Illness{"lanes", [](GpuFacts& gpu) { gpu.pcie_lanes = 8; }, Outcome::fail, "pcie", "has 8 of 16 PCIe lanes"},
        Illness{"generation", [](GpuFacts& gpu) { gpu.highest_pcie_generation = 4; }, Outcome::fail, "pcie",
                "has PCIe generation 4, GPUs alike 5"},
        Illness{"peers", [](GpuFacts& gpu) { gpu.unreadable_peers = 2; }, Outcome::fail, "peer-access",
                "cannot read the memory of 2 other GPUs of its node, GPUs alike of 0"},
        Illness{"mig", [](GpuFacts& gpu) { gpu.mig = gpu.mig_pending = true; }, Outcome::fail, "mig",
                "is divided into instances (MIG)"},
        Illness{"mig_pending", [](GpuFacts& gpu) { gpu.mig_pending = true; }, Outcome::warn, "mig",
                "is to be divided into instances at the next reset (MIG)"},
        Illness{"prohibited", [](GpuFacts& gpu) { gpu.compute_mode = 2; }, Outcome::fail, "gpu-state",
                "computing is prohibited (compute mode)"},
        Illness{"ecc",
                [](GpuFacts& gpu) {
                  gpu.uncorrected_errors = 3;
                  gpu.uncorrected_errors_ever = 9;
                },
                Outcome::fail, "ecc", "3 memory errors that could not be corrected, since the driver was loaded"},
        Illness{"ecc_ever", [](GpuFacts& gpu) { gpu.uncorrected_errors_ever = 9; }, Outcome::warn, "ecc",
                "9 memory errors in its life that could not be corrected"},
        Illness{"pending", [](GpuFacts& gpu) { gpu.repair_pending = true; }, Outcome::fail, "ecc",
                "bad memory is to be replaced at the next reset"},
        Illness{"failed", [](GpuFacts& gpu) { gpu.repair_failed = true; }, Outcome::fail, "ecc",
                "a bad row of memory could not be replaced: no spare is left"},
        Illness{"xid",
                [](GpuFacts& gpu) {
                  gpu.xids = {"Xid (PCI:0002:01:00): 13", "Xid (PCI:0002:01:00): 79"};
                },
                Outcome::warn, "xid", "2 errors in the kernel log, the last: Xid (PCI:0002:01:00): 79"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(NodeCheckGpus, TellsOncePerTypeThatAllAreLimited) {
  std::vector<RankFacts> ranks = healthy(2, 4);
  for (RankFacts& facts : ranks)
    for (GpuFacts& gpu : facts.gpus) gpu.power_limit_watts = 624.0;
  const Finding finding = only_finding(judge(ranks).verdict);
  EXPECT_TRUE(says(finding, Outcome::warn, "power", "each NVIDIA GH200 120GB may draw 624 W of its usual 700 W"));
}

TEST(NodeCheckGpus, FindsRanksThatHaveAnInstanceOnly) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  ranks[1].visible_gpus = "MIG-3f6a1b5c-0000";
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(only_finding(judged.verdict), Outcome::fail, "mig", "rank 1 has a part of a GPU (MIG)"));
  EXPECT_EQ(judged.verdict.exclude(), std::vector<std::string>{"gh2"});
  for (RankFacts& facts : ranks) facts.planned.reset();  // who asked for it?
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::warn);
}

TEST(NodeCheckGpus, FindsTooLittleMemoryForThePlan) {
  std::vector<RankFacts> ranks = healthy(1, 1);
  ranks[0].gpus[0].memory_used = 17.0 * gib;  // 18% of 96 GiB; 79 GiB are left for 80 GiB
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::fail, "gpu-memory",
                   "17.0 GiB of 96.0 GiB are in use, too little is left for 80.0 GiB that the plan needs"));
}

// ---- The node

TEST(NodeCheckHost, FindsRanksFarFromTheirGpus) {
  slurm::Site with = site();
  with.layouts = {
      {.gpu = "GH200-96", .cores = {{0, 71}, {72, 143}, {144, 215}, {216, 287}}, .numa_nodes = {0, 1, 2, 3}}};
  std::vector<RankFacts> ranks = healthy(1, 4);
  EXPECT_EQ(judge(ranks, {}, with).verdict.outcome(), Outcome::ok);
  std::swap(ranks[0].cores, ranks[1].cores);
  const Judged judged = judge(ranks, {}, with);
  ASSERT_EQ(judged.verdict.job.size(), 2U);
  EXPECT_TRUE(says(judged.verdict.job[0], Outcome::warn, "cores",
                   "rank 0 (gh1) runs on cores 72-143, its GPU is beside 0-71 (says the site file)"));
  // What the system says of the device goes first.
  ranks = healthy(1, 1);
  ranks[0].gpus[0].cores = {144, 145};
  EXPECT_TRUE(
      says(only_finding(judge(ranks, {}, with).verdict), Outcome::warn, "cores", "beside 144-145 (says the system)"));
}

TEST(NodeCheckHost, DoesNotCompareALayoutWithANodeOfFewerCores) {
  slurm::Site with = site();
  with.layouts = {{.gpu = "GH200-96", .cores = {{0, 71}, {72, 143}}}};
  std::vector<RankFacts> ranks = healthy(1, 1);
  ranks[0].cores = {0, 1};
  ranks[0].cores_online = 2;
  const Judged judged = judge(ranks, {}, with);
  EXPECT_EQ(judged.verdict.outcome(), Outcome::ok);
  EXPECT_NE(judged.table.find(
                "not checked: cores: rank 0: the site's nodes with GH200-96 have cores up to 143, this one has 2"),
            std::string::npos)
      << judged.table;
}

TEST(NodeCheckHost, FindsMemoryOnNumaNodesOfGpus) {
  slurm::Site with = site();
  with.layouts = {{.gpu = "GH200-96", .cores = {{0, 71}}, .memory_nodes = {0, 1, 2, 3}}};
  std::vector<RankFacts> ranks = healthy(1, 1);
  ranks[0].memory_nodes = {0, 1, 2, 3, 4, 12};
  EXPECT_TRUE(says(only_finding(judge(ranks, {}, with).verdict), Outcome::warn, "numa",
                   "host memory of rank 0 may come to lie on NUMA nodes that are not the host's"));
  ranks[0].bound_memory_nodes = {0, 1, 2, 3};
  EXPECT_EQ(judge(ranks, {}, with).verdict.outcome(), Outcome::ok);
}

TEST(NodeCheckHost, FindsSharedAndUnboundCores) {
  std::vector<RankFacts> ranks = healthy(1, 2);
  ranks[1].cores = ranks[0].cores;
  ranks[1].cores.push_back(72);
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::warn, "cores",
                   "ranks have to share cores on gh1 (cores 0-71)"));
  for (RankFacts& facts : ranks) {
    facts.cores.clear();
    for (int core = 0; core < 288; ++core) facts.cores.push_back(core);
  }
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::warn, "numa",
                   "ranks are not bound to cores on gh1, which has several NUMA nodes"));
  for (RankFacts& facts : ranks) facts.numa_nodes_with_cores = 1;
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);
}

struct Complaint {
  const char* name;
  void (*change)(RankFacts& facts);
  Outcome outcome;
  const char* check;
  const char* what;
};

class HostComplaint : public ::testing::TestWithParam<Complaint> {};

TEST_P(HostComplaint, IsOfTheNode) {
  std::vector<RankFacts> ranks = healthy(4, 1);
  GetParam().change(ranks[2]);
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(only_finding(judged.verdict), GetParam().outcome, GetParam().check, GetParam().what));
  EXPECT_EQ(judged.verdict.nodes[2].outcome(), GetParam().outcome);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostComplaint,
    ::testing::Values(
        Complaint{"load", [](RankFacts& facts) { facts.busy_cores = 11.5; }, Outcome::warn, "load",
                  "other processes keep 11.5 of 288 cores busy"},
        Complaint{"clock",
                  [](RankFacts& facts) {
                    facts.highest_clock_hz = 3.4e9;
                    facts.allowed_clock_hz = 2e9;
                  },
                  Outcome::warn, "cpu-clock", "cores are limited to 2.00 GHz of 3.40 GHz"},
        Complaint{"throttled", [](RankFacts& facts) { facts.throttles_while_measuring = 3; }, Outcome::warn,
                  "cpu-throttling", "cores were throttled for their temperature 3 times while the ranks worked"},
        Complaint{"edac", [](RankFacts& facts) { facts.uncorrected_memory_errors = 1; }, Outcome::fail, "memory-errors",
                  "1 uncorrected error in host memory"},
        Complaint{"corrected", [](RankFacts& facts) { facts.corrected_memory_errors = 5000; }, Outcome::warn,
                  "memory-errors", "5000 errors were corrected in host memory since the node started"},
        Complaint{"dimm", [](RankFacts& facts) { facts.memory_total = 700.0 * gib; }, Outcome::warn, "memory",
                  "has 700 GiB of memory, nodes alike have 800 GiB"},
        Complaint{"taken", [](RankFacts& facts) { facts.memory_available = 300.0 * gib; }, Outcome::warn, "memory",
                  "only 300 GiB of 800 GiB of memory are free"},
        Complaint{"space", [](RankFacts& facts) { facts.spaces[0].free = 200.0 * mib; }, Outcome::warn, "space",
                  "200 MiB free for the temporary files (/tmp)"},
        Complaint{"read_only", [](RankFacts& facts) { facts.spaces[0].can_write = false; }, Outcome::warn, "space",
                  "cannot write to the temporary files (/tmp)"},
        Complaint{"port_down", [](RankFacts& facts) { facts.ports[1].is_up = false; }, Outcome::fail, "network-cards",
                  "1 of 2 ethernet ports are up (hsn0)"},
        Complaint{"port_slow", [](RankFacts& facts) { facts.ports[1].bits_per_s = 25e9; }, Outcome::fail,
                  "network-cards", "hsn1 runs at 25 Gbit/s, on the other nodes at 200"},
        Complaint{"no_provider", [](RankFacts& facts) { facts.providers->erase(facts.providers->begin()); },
                  Outcome::fail, "fabric", "libfabric has no provider cxi, which the site expects (it has: tcp)"},
        Complaint{"card_lost", [](RankFacts& facts) { facts.providers->front().domains.pop_back(); }, Outcome::fail,
                  "fabric", "libfabric finds 1 of 2 cards of cxi (cxi0)"},
        Complaint{"other_providers", [](RankFacts& facts) { facts.providers->pop_back(); }, Outcome::warn, "fabric",
                  "libfabric has the providers cxi, elsewhere cxi, tcp"},
        Complaint{"driver", [](RankFacts& facts) { facts.versions[0].value = "550.2"; }, Outcome::warn, "versions",
                  "driver is 550.2, elsewhere 570.1"},
        Complaint{"nccl", [](RankFacts& facts) { facts.versions[1].value = "2.20.3"; }, Outcome::fail, "versions",
                  "NCCL is 2.20.3, elsewhere 2.30.7"},
        Complaint{"no_nccl", [](RankFacts& facts) { facts.versions.erase(facts.versions.begin() + 1); }, Outcome::fail,
                  "versions", "NCCL is none, elsewhere 2.30.7"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(NodeCheckHost, FindsTooLittleMemoryForRanksOnCores) {
  std::vector<RankFacts> ranks = healthy(1, 2);
  for (RankFacts& facts : ranks) {
    facts.planned = {.gpu = "cpu", .on_gpu = false, .memory = 4.0 * gib};
    facts.memory_available = 7.5 * gib;
  }
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::fail, "memory",
                   "7.50 GiB free for 2 ranks that need 8.00 GiB by the plan's prediction"));
}

TEST(NodeCheckHost, BlamesNobodyWithoutAMajority) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  ranks[1].versions[1].value = "2.20.3";
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(only_finding(judged.verdict), Outcome::fail, "versions",
                   "NCCL is not the same everywhere: 2.20.3 on gh2, 2.30.7 on gh1"));
  EXPECT_TRUE(judged.verdict.exclude().empty());
}

TEST(NodeCheckHost, BlamesNoNodeForAProviderThatNoneHas) {
  std::vector<RankFacts> ranks = healthy(3, 2);
  for (RankFacts& facts : ranks)
    if (facts.providers) facts.providers->front().name = "verbs;ofi_rxm";
  const Finding finding = only_finding(judge(ranks).verdict);
  EXPECT_TRUE(says(finding, Outcome::warn, "fabric",
                   "libfabric has no provider cxi, which the site expects, on any node (it has: verbs;ofi_rxm, tcp)"));
  // A provider above another counts for it.
  slurm::Site verbs = site();
  verbs.check.fabric_provider = "verbs";
  EXPECT_EQ(judge(ranks, {}, verbs).verdict.outcome(), Outcome::ok);
  verbs.check.fabric_provider = "verbs;ofi_rxm";
  EXPECT_EQ(judge(ranks, {}, verbs).verdict.outcome(), Outcome::ok);
  verbs.check.fabric_provider = "";
  EXPECT_EQ(judge(ranks, {}, verbs).verdict.outcome(), Outcome::ok);
  // One of two: which is right?
  ranks = healthy(2, 1);
  ranks[0].providers->pop_back();
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::warn, "fabric",
                   "libfabric has not the same providers everywhere: cxi on gh1; cxi, tcp on gh2"));
}

TEST(NodeCheckHost, ComparesNoProvidersWhereNobodyKnowsThem) {
  std::vector<RankFacts> ranks = healthy(2, 2);
  for (RankFacts& facts : ranks) facts.providers.reset();
  ranks[0].unknown = ranks[2].unknown = {{"fabric", "fi_info is not in PATH"}};
  const Judged judged = judge(ranks);
  EXPECT_EQ(judged.verdict.outcome(), Outcome::ok);
  EXPECT_NE(judged.table.find("not checked: fabric: fi_info is not in PATH\n"), std::string::npos) << judged.table;
}

TEST(NodeCheckHost, KernelsMayDifferBetweenKindsOfNodes) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  ranks[1].versions[0].value = "550.2";
  ranks[1].planned.reset();
  for (GpuFacts& gpu : ranks[1].gpus) {
    gpu.name = "NVIDIA A100-SXM4-40GB";
    gpu.memory_total = 40.0 * gib;
  }
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);
}

TEST(NodeCheckHost, NamesVariablesThatTheSiteWants) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  for (RankFacts& facts : ranks)
    facts.variables = {{"MPICH_GPU_SUPPORT_ENABLED", "0", "1"}, {"NCCL_NET", "AWS Libfabric", "AWS Libfabric"}};
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::warn, "variables",
                   "MPICH_GPU_SUPPORT_ENABLED is '1', the site wants '0'"));
  ranks[0].variables[0].value = "0";
  ranks[1].variables[0].value.reset();
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::warn, "variables",
                   "rank 1: MPICH_GPU_SUPPORT_ENABLED is not set, the site wants '0'"));
}

TEST(NodeCheckHost, TellsOnceThatThePlanDoesNotFit) {
  std::vector<RankFacts> ranks = healthy(2, 2);
  for (RankFacts& facts : ranks) facts.plan_problem = "the plan has 8 ranks but the job step has 4 tasks";
  EXPECT_EQ(only_finding(judge(ranks).verdict).what, "the plan has 8 ranks but the job step has 4 tasks");
}

// ---- Speed

TEST(NodeCheckSpeed, NamesRanksThatLagBehindTheMedian) {
  std::vector<RankFacts> ranks = healthy(4, 2);
  ranks[4].speed->flop_per_s = 80e9;
  ranks[5].speed->flop_per_s = 50e9;
  ranks[5].speed->core_share = 0.51;
  const Judged judged = judge(ranks);
  EXPECT_TRUE(says(only_finding(judged.verdict), Outcome::fail, "speed",
                   "ranks 4-5: matrix products at 50.0 GFLOP/s, 50% below the median of 8 ranks on GH200-96 "
                   "(100.0 GFLOP/s), rank 5 the slowest; it had its core 51% of the time, something else runs there"));
  EXPECT_EQ(judged.verdict.exclude(), std::vector<std::string>{"gh3"});
  ranks = healthy(4, 1);
  ranks[0].speed->bytes_per_s = 30e9;
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::fail, "speed",
                   "rank 0: copies in memory at 30.0 GB/s, 25% below the median of 4 ranks on GH200-96 (40.0 GB/s)"));
  ranks[0].speed->bytes_per_s = 34.5e9;  // 13.75% below, 14% is allowed
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);
}

TEST(NodeCheckSpeed, ComparesRanksOfAKindOnly) {
  std::vector<RankFacts> ranks = healthy(4, 1);
  for (const std::size_t slow : {2U, 3U}) {
    ranks[slow].planned.reset();
    ranks[slow].speed->flop_per_s = 20e9;
    for (GpuFacts& gpu : ranks[slow].gpus) {
      gpu.name = "NVIDIA A100-SXM4-40GB";
      gpu.memory_total = 40.0 * gib;
    }
  }
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::ok);
}

TEST(NodeCheckSpeed, ComparesByProcessorTimeWhereRanksShareCores) {
  std::vector<RankFacts> ranks = healthy(2, 2);
  for (RankFacts& facts : ranks) facts.speed->core_share = 0.5;
  ranks[1].speed->flop_per_s = 10e9;  // by chance
  const Judged judged = judge(ranks);
  EXPECT_EQ(judged.verdict.outcome(), Outcome::ok);
  EXPECT_NE(judged.table.find("not checked: speed: by the clock: cores are shared, the middle rank had its own 50%"),
            std::string::npos)
      << judged.table;
  ranks[1].speed->flop_per_cpu_s = 60e9;
  EXPECT_EQ(judge(ranks).verdict.outcome(), Outcome::fail);
}

TEST(NodeCheckSpeed, OneOfTwoRanksCanBeSlowedByOthers) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  ranks[1].speed->flop_per_s = 50e9;
  ranks[1].speed->core_share = 0.5;
  // The median of 100 and 50 is 75.
  EXPECT_TRUE(says(only_finding(judge(ranks).verdict), Outcome::fail, "speed",
                   "rank 1: matrix products at 50.0 GFLOP/s, 33% below"));
}

TEST(NodeCheckSpeed, SaysWhenNothingIsThereToCompareWith) {
  const Judged one = judge(healthy(1, 1));
  EXPECT_NE(one.table.find("not checked: speed: one rank on GH200-96 has none to be compared with"), std::string::npos);
  slurm::Site silent = site();
  silent.check.slower_than_median.reset();
  EXPECT_NE(judge(healthy(2, 1), {}, silent).table.find("the site file gives no slower_than_median"),
            std::string::npos);
}

/// Sends around a ring of nodes with one rank each, at these GB/s.
JobSpeed ring(const std::vector<double>& gigabytes, bool on_gpu = false) {
  JobSpeed speed{.on_gpu = on_gpu};
  const int nodes = static_cast<int>(gigabytes.size());
  for (int from = 0; from < nodes; ++from)
    speed.links.push_back({.kind = LinkKind::send,
                           .from = from,
                           .to = (from + 1) % nodes,
                           .bandwidth = BytesPerSecond(1e9 * gigabytes[static_cast<std::size_t>(from)])});
  return speed;
}

TEST(NodeCheckSpeed, BlamesTheNodeWhoseLinksAreAllSlow) {
  // gh3 sends to gh4 and receives from gh2.
  const Judged judged = judge(healthy(6, 1), ring({20, 5, 5, 20, 20, 20}));
  EXPECT_EQ(judged.verdict.exclude(), std::vector<std::string>{"gh3"});
  EXPECT_TRUE(says(judged.verdict.nodes[2].findings.at(0), Outcome::fail, "links",
                   "all its links are slow: gh2 -> gh3 (ranks 1 and 2): 5.00 GB/s, 75% below the median of 20.0 GB/s"));
  for (const std::size_t other : {0U, 1U, 3U}) EXPECT_EQ(judged.verdict.nodes[other].outcome(), Outcome::ok);
}

TEST(NodeCheckSpeed, WarnsOfBothEndsOfASlowLink) {
  const Judged judged = judge(healthy(4, 1), ring({20, 5, 20, 20}));
  EXPECT_TRUE(judged.verdict.exclude().empty());
  for (const std::size_t end : {1U, 2U})
    EXPECT_TRUE(says(judged.verdict.nodes[end].findings.at(0), Outcome::warn, "links", "slow link gh2 -> gh3"));
  EXPECT_EQ(judged.verdict.nodes[0].outcome(), Outcome::ok);
}

TEST(NodeCheckSpeed, ComparesGpusWithTheSitesThresholds) {
  slurm::Site with = site();
  with.check.send_between_nodes = BytesPerSecond(15e9);
  with.check.all_reduce_within_node = BytesPerSecond(250e9);
  with.check.all_reduce_all = BytesPerSecond(50e9);
  JobSpeed speed = ring({6, 6, 6}, true);
  speed.links.push_back(
      {.kind = LinkKind::all_reduce_within_node, .from = 0, .to = 0, .bandwidth = BytesPerSecond(90e9)});
  speed.links.push_back({.kind = LinkKind::all_reduce_all, .from = 0, .to = 2, .bandwidth = BytesPerSecond(10e9)});
  const Judged judged = judge(healthy(3, 1), speed, with);
  ASSERT_EQ(judged.verdict.job.size(), 2U);
  EXPECT_TRUE(
      says(judged.verdict.job[0], Outcome::fail, "links",
           "all 3 links between nodes are slow, the first: gh1 -> gh2 (ranks 0 and 1): 6.00 GB/s, the site expects "
           "at least 15.0 GB/s"));
  EXPECT_TRUE(says(judged.verdict.job[1], Outcome::fail, "links",
                   "all-reduce over all ranks: 10.0 GB/s, the site expects at least 50.0 GB/s"));
  EXPECT_EQ(judged.verdict.exclude(), std::vector<std::string>{"gh1"});  // for what is slow within it
  speed.on_gpu = false;
  const Judged cores = judge(healthy(3, 1), speed, with);
  EXPECT_EQ(cores.verdict.outcome(), Outcome::ok);
  EXPECT_NE(
      cores.table.find("not checked: links: against the site's thresholds: they are for GPUs, measured was between "
                       "cores, from host memory"),
      std::string::npos)
      << cores.table;
}

TEST(NodeCheckSpeed, DoesNotCompareLinksOfRanksThatShareCores) {
  std::vector<RankFacts> ranks = healthy(4, 1);
  for (RankFacts& facts : ranks) facts.speed->core_share = 0.6;
  const JobSpeed speed = ring({20, 5, 20, 20});
  EXPECT_EQ(judge(ranks, speed).verdict.outcome(), Outcome::ok);
  const slurm::Site with = site();
  EXPECT_FALSE(looks_slow({.ranks = ranks, .speed = speed, .site = with, .gpus = catalogue()}));
  const std::vector<RankFacts> bound = healthy(4, 1);
  EXPECT_TRUE(looks_slow({.ranks = bound, .speed = speed, .site = with, .gpus = catalogue()}));
}

// ---- What is read from the system

/// Each node has written at one of these rates, in MB/s; 0: could not.
std::vector<RankFacts> writers(const std::vector<double>& rates) {
  std::vector<RankFacts> ranks = healthy(static_cast<int>(rates.size()), 2);
  for (std::size_t node = 0; node < rates.size(); ++node) {
    WriteSpeed speed{.folder = "/scratch/run", .amount = 64.0 * mib, .bytes_per_s = 1e6 * rates[node]};
    if (rates[node] == 0.0) speed.problem = "cannot write to '/scratch/run': Read-only file system";
    ranks[2 * node].writing = speed;
  }
  return ranks;
}

TEST(NodeCheckWriting, NamesNodesFarBelowTheMedian) {
  const Judged good = judge(writers({500, 400, 300, 251}));  // the median is 350
  EXPECT_EQ(good.verdict.outcome(), Outcome::ok);
  EXPECT_NE(good.table.find("files, stored (fsync)  4 nodes"), std::string::npos) << good.table;
  const std::vector<RankFacts> ranks = writers({500, 400, 300, 150});
  const Judged slow = judge(ranks);
  EXPECT_TRUE(says(only_finding(slow.verdict), Outcome::warn, "writing",
                   "writes to /scratch/run at 150 MB/s, 57% below the median of 4 nodes (350 MB/s)"));
  EXPECT_EQ(slow.verdict.nodes[3].outcome(), Outcome::warn);
  EXPECT_EQ(judge(writers({500, 50})).verdict.outcome(), Outcome::ok);  // which of the two is unusual?
  EXPECT_TRUE(looks_slow({.ranks = ranks, .speed = {}, .site = site(), .gpus = catalogue()}));
}

TEST(NodeCheckWriting, NamesNodesThatCannotWrite) {
  const Judged judged = judge(writers({500, 0, 300}));
  EXPECT_TRUE(says(only_finding(judged.verdict), Outcome::fail, "writing",
                   "cannot write to '/scratch/run': Read-only file system"));
  EXPECT_EQ(judged.verdict.exclude(), std::vector<std::string>{"gh2"});
  const Judged none = judge(writers({0, 0, 0}));
  EXPECT_TRUE(says(only_finding(none.verdict), Outcome::fail, "writing", "Read-only file system (on every node)"));
  EXPECT_TRUE(none.verdict.exclude().empty());
}

TEST(NodeCheckWriting, NamesOfFoldersStayOnOneLine) {
  std::vector<RankFacts> ranks = writers({500, 0, 300});
  ranks[2].writing->problem = "cannot write to '/a\nb': Read-only file system";
  const Judged judged = judge(ranks);
  EXPECT_NE(judged.table.find("cannot write to '/a b': Read-only"), std::string::npos) << judged.table;
  EXPECT_NE(judged.json.find("cannot write to '/a\\nb': Read-only"), std::string::npos) << judged.json;
}

TEST(NodeCheckWriting, MayTakeLongerTheMoreItIs) {
  EXPECT_DOUBLE_EQ(longest_writing(Bytes(0.0)).value(), 60.0);
  EXPECT_DOUBLE_EQ(longest_writing(Bytes(1e12)).value(), 60.0 + 50'000.0);  // 1e12 / 20e6
}

TEST(NodeCheckWriting, ComparesWithTheSite) {
  slurm::Site with = site();
  with.check.write_per_node = BytesPerSecond(200e6);
  EXPECT_EQ(judge(writers({500, 201}), {}, with).verdict.outcome(), Outcome::ok);
  const Judged one = judge(writers({500, 199}), {}, with);
  EXPECT_TRUE(says(only_finding(one.verdict), Outcome::fail, "writing",
                   "writes to /scratch/run at 199 MB/s, the site expects at least 200 MB/s"));
  EXPECT_EQ(one.verdict.exclude(), std::vector<std::string>{"gh2"});
  const Judged all = judge(writers({100, 120}), {}, with);
  EXPECT_TRUE(says(only_finding(all.verdict), Outcome::fail, "writing",
                   "nodes write to /scratch/run at 110 MB/s (median), the site expects at least 200 MB/s of each"));
  EXPECT_TRUE(all.verdict.exclude().empty());
  EXPECT_EQ(judge(writers({100, 120}), {}, with, {"writing"}).verdict.outcome(), Outcome::ok);
}

class SystemFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sailor-check-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(SystemFolder, IsReadAsLinuxWritesIt) {
  write("proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:   12000000 kB\n");
  write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A Processor 9000\n");
  write("sys/devices/system/cpu/online", "0-7\n");
  write("sys/devices/system/node/online", "0-1\n");
  write("sys/devices/system/node/has_memory", "0-1\n");
  write("sys/devices/system/node/node0/cpulist", "0-1048575\n");
  write("sys/devices/system/node/node1/cpulist", "\n");
  write("sys/devices/system/edac/mc/mc0/ce_count", "7\n");
  write("sys/devices/system/edac/mc/mc0/ue_count", "0\n");
  write("sys/devices/system/edac/mc/mc1/ce_count", "5\n");
  write("sys/devices/system/edac/mc/mc1/ue_count", "1\n");
  write("sys/class/net/hsn0/device/vendor", "0x17db\n");
  write("sys/class/net/hsn0/operstate", "up\n");
  write("sys/class/net/hsn0/speed", "200000\n");
  write("sys/class/net/lo/operstate", "unknown\n");
  write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  write("sys/class/cxi/cxi0/device/net/hsn0/operstate", "up\n");
  write("sys/class/cxi/cxi1/device/net/hsn1/operstate", "down\n");
  write("sys/class/cxi/cxi2/device/numa_node", "2\n");
  write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const RankFacts facts = gather_facts({.environment = {{"CUDA_VISIBLE_DEVICES", "2"},
                                                        {"MPICH_GPU_SUPPORT_ENABLED", "1"},
                                                        {"TMPDIR", root_.string()},
                                                        {"NCCL_CROSS_NIC", "1"}},
                                        .variables = {{"NCCL_CROSS_NIC", "1"}, {"NCCL_NET", "AWS Libfabric"}},
                                        .versions = {{"sailor", "0.1.0"}},
                                        .root = root_});
  EXPECT_EQ(facts.memory_total, Bytes(16000000.0 * 1024));
  EXPECT_EQ(facts.memory_available, Bytes(12000000.0 * 1024));
  EXPECT_EQ(facts.cpu, "A Processor 9000");
  EXPECT_EQ(facts.cores_online, 8);
  EXPECT_EQ(facts.numa_nodes, std::vector<int>{0});
  EXPECT_EQ(facts.numa_nodes_with_cores, 1);
  EXPECT_EQ(facts.memory_nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(facts.corrected_memory_errors, 12);
  EXPECT_EQ(facts.uncorrected_memory_errors, 1);
  EXPECT_EQ(facts.visible_gpus, "2");
  ASSERT_EQ(facts.ports.size(), 5U);  // lo is no card
  EXPECT_EQ(facts.ports[0].name, "hsn0");
  EXPECT_TRUE(facts.ports[0].is_up);
  EXPECT_EQ(facts.ports[0].bits_per_s, 200e9);
  EXPECT_EQ(facts.ports[1].name, "mlx5_0/1");
  EXPECT_EQ(facts.ports[1].bits_per_s, 400e9);
  EXPECT_EQ(facts.ports[2].kind, "slingshot");
  EXPECT_TRUE(facts.ports[2].is_up);
  EXPECT_FALSE(facts.ports[3].is_up);
  EXPECT_TRUE(facts.ports[4].is_up);  // nobody says otherwise
  EXPECT_EQ(facts.spaces.at(0).path, root_.string());
  EXPECT_TRUE(facts.spaces.at(0).can_write);
  ASSERT_EQ(facts.variables.size(), 3U);
  EXPECT_EQ(facts.variables[0].value, "1");
  EXPECT_EQ(facts.variables[1].value, std::nullopt);
  EXPECT_EQ(facts.variables[2].wanted, "0");
  const auto version = [&](const std::string& name) {
    for (const Version& known : facts.versions)
      if (known.name == name) return known.value;
    return std::string("none");
  };
  EXPECT_EQ(version("transparent huge pages"), "never");
  EXPECT_EQ(version("sailor"), "0.1.0");
}

TEST_F(SystemFolder, HasThrottlesClocksAndBusyTime) {
  write("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n");
  write("sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count", "4\n");
  EXPECT_EQ(thermal_throttles({0, 1, 2}, root_), 7);
  EXPECT_EQ(thermal_throttles({1}, root_), std::nullopt);
  EXPECT_EQ(processor_time(root_), std::nullopt);
  // user 100, nice 10, system 20, idle 5000, waiting 70, irq 1, softirq 2, steal 3: 136 ticks that somebody used
  write("proc/stat", "cpu  100 10 20 5000 70 1 2 3 0 0\ncpu0 1 2 3\n");
  EXPECT_DOUBLE_EQ(processor_time(root_)->value(), 136.0 / static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

TEST(CoreLists, AreReadAndWritten) {
  EXPECT_EQ(parse_core_list("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_core_list(""), std::vector<int>{});
  EXPECT_EQ(parse_core_list("a-b"), std::vector<int>{});
  EXPECT_EQ(parse_core_list("4-2"), std::vector<int>{});
  EXPECT_EQ(core_list({0, 1, 2, 3, 8}), "0-3,8");
}

#ifdef FAKE_NVML_LIBRARY
TEST_F(SystemFolder, NvidiasLibraryIsAsked) {
  write("gpus",
        "NVIDIA GH200 120GB|GPU-1|00000009:01:00.0|97871|400|27|1980|1980|1|0|0|0|1|624000|700000|17|8|16|5|0\n"
        "Tesla V100-SXM2-16GB|GPU-2|00000000:AF:00.0|16160|0|40|135|1530|64|5|-\n");
  ::setenv("FAKE_NVML", (root_ / "gpus").c_str(), 1);
  const auto nvml = ask_nvml(FAKE_NVML_LIBRARY);
  ASSERT_TRUE(nvml) << nvml.error().message();
  EXPECT_EQ(nvml->driver, "570.86.15");
  EXPECT_EQ(nvml->cuda, "12.8");
  ASSERT_EQ(nvml->gpus.size(), 2U);
  const GpuFacts& first = nvml->gpus[0];
  EXPECT_EQ(first.name, "NVIDIA GH200 120GB");
  EXPECT_EQ(first.uuid, "GPU-1");
  EXPECT_EQ(first.bus_id, "0009:01:00.0");
  EXPECT_EQ(first.memory_total, 97871.0 * mib);
  EXPECT_EQ(first.memory_used, 400.0 * mib);
  EXPECT_EQ(first.temperature_celsius, 27.0);
  EXPECT_EQ(first.clock_hz, 1.98e9);
  EXPECT_EQ(first.uncorrected_errors, 0);
  EXPECT_EQ(first.remapped_rows, 3);
  EXPECT_EQ(first.repair_pending, false);
  EXPECT_EQ(first.compute_mode, std::nullopt);  // the function is not there
  EXPECT_EQ(first.mig, false);
  EXPECT_EQ(first.mig_pending, true);
  EXPECT_EQ(first.power_limit_watts, 624.0);
  EXPECT_EQ(first.default_power_limit_watts, 700.0);
  EXPECT_EQ(first.nvlinks_up, 17);
  EXPECT_EQ(first.pcie_lanes, 8);
  EXPECT_EQ(first.highest_pcie_lanes, 16);
  EXPECT_EQ(first.highest_pcie_generation, 5);
  EXPECT_EQ(first.unreadable_peers, 1);
  const GpuFacts& second = nvml->gpus[1];
  EXPECT_EQ(second.mig, std::nullopt);  // it knows no instances
  EXPECT_EQ(second.power_limit_watts, std::nullopt);
  EXPECT_EQ(second.nvlinks_up, std::nullopt);
  EXPECT_EQ(second.unreadable_peers, std::nullopt);
  EXPECT_EQ(second.bus_id, "0000:af:00.0");
  EXPECT_EQ(second.throttle_reasons, 0x40);
  EXPECT_EQ(second.uncorrected_errors, 5);
  EXPECT_EQ(second.retired_pages, 4);  // two for each of two causes
  EXPECT_EQ(second.remapped_rows, std::nullopt);
  ::unsetenv("FAKE_NVML");
  const auto no_driver = ask_nvml(FAKE_NVML_LIBRARY);
  ASSERT_FALSE(no_driver);
  EXPECT_NE(no_driver.error().what.find("Driver Not Loaded"), std::string::npos);
}
#endif

TEST(FiInfo, IsReadDefensively) {
  const auto providers = parse_fi_info(
      "provider: tcp\n    fabric: 10.0.0.0/8\n    domain: hsn0\n    version: 121.0\n    type: FI_EP_MSG\n"
      "provider: cxi\r\n    fabric: cxi\n    domain: cxi1\n"
      "provider: cxi\n    fabric: cxi\n    domain: cxi0\n    protocol: FI_PROTO_CXI\n"
      "provider: cxi\n    domain: cxi0\n"
      "provider: \n    domain: nobody's\n"
      "provider: two words\n    domain: nobody's\n"
      "a warning: of libfabric\ndomain\n:\n");
  ASSERT_EQ(providers.size(), 2U);
  EXPECT_EQ(providers[0].name, "cxi");
  EXPECT_EQ(providers[0].domains, (std::vector<std::string>{"cxi0", "cxi1"}));
  EXPECT_EQ(providers[1].name, "tcp");
  EXPECT_EQ(providers[1].domains, std::vector<std::string>{"hsn0"});
  EXPECT_TRUE(parse_fi_info("").empty());
  EXPECT_TRUE(parse_fi_info("fi_getinfo: -61 (No data available)\n").empty());
  EXPECT_TRUE(parse_fi_info("domain: of no provider\nprovider: " + std::string(100000, 'x')).empty());
  std::string many;
  for (int i = 0; i < 5000; ++i) many += fmt::format("provider: p{}\ndomain: d\n", i);
  EXPECT_EQ(parse_fi_info(many).size(), 256U);
}

TEST_F(SystemFolder, FiInfoIsAskedWhereItIs) {
  const auto program = [&](const std::string& text) {
    write("fi_info", "#!/bin/sh\n" + text);
    fs::permissions(root_ / "fi_info", fs::perms::owner_all);
    const auto providers = ask_fabric(Seconds(5.0), (root_ / "fi_info").string());
    return providers ? providers->front().name : providers.error().what.substr(providers.error().what.rfind('/') + 1);
  };
  EXPECT_EQ(program("echo 'provider: psm3'"), "psm3");
  EXPECT_EQ(program("echo 'fi_getinfo: -61' >&2; exit 61"), "fi_info: exit status 61");
  EXPECT_EQ(program("exit 0"), "fi_info names no provider");
  const auto missing = ask_fabric(Seconds(5.0), "fi_info-that-is-not-there");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().what, "fi_info-that-is-not-there is not in PATH");
}

TEST_F(SystemFolder, AFileThatIsWrittenLeavesNothing) {
  for (const bool with_name : {false, true}) {
    const auto time = write_and_sync(root_, 5.0 * mib, with_name);
    ASSERT_TRUE(time) << time.error().message();
    EXPECT_GT(time->value(), 0.0);
    EXPECT_TRUE(fs::is_empty(root_));
    // Also when it is killed while it writes.
    std::array<int, 2> ready{};
    ASSERT_EQ(::pipe(ready.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      (void)!::write(ready[1], "x", 1);
      while (write_and_sync(root_, 256.0 * mib, with_name)) continue;
      ::_exit(1);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::usleep(50'000);
    ::kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_TRUE(fs::is_empty(root_));
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

TEST_F(SystemFolder, SaysWhyItCannotBeWrittenTo) {
  const auto missing = write_and_sync(root_ / "not-there", 1.0 * mib);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().what,
            fmt::format("cannot write to '{}': No such file or directory", (root_ / "not-there").string()));
  const auto too_much = write_and_sync(root_, Bytes(1e18));
  ASSERT_FALSE(too_much);
  EXPECT_NE(too_much.error().what.find("too little for a test with"), std::string::npos) << too_much.error().what;
  write("file", "");
  EXPECT_FALSE(write_and_sync(root_ / "file", 1.0 * mib));
}

TEST(Libraries, ThatAreNotThereAreNoError) {
  EXPECT_FALSE(ask_nvml("libno-such-library.so"));
  EXPECT_EQ(nccl_version("libno-such-library.so"), "");
  EXPECT_EQ(libfabric_version("libno-such-library.so"), "");
}

}  // namespace
}  // namespace sailor::preflight::node_check_test
