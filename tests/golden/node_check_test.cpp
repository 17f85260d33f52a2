// The table of sailor-check.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "preflight/node_check.hpp"
#include "tests/golden/golden.hpp"

namespace sailor::preflight::node_check_test {
namespace {

TEST(NodeCheckTable, HasTheWorstFirstAndTheListToExcludeLast) {
  const auto gpus = GpuCatalogue::load(std::string(SAILOR_SOURCE_DIR) + "/profiles/gpus.toml").value();
  const auto site = slurm::load_site(std::string(SAILOR_SOURCE_DIR) + "/slurm/sites/alps-clariden.toml", gpus).value();
  constexpr int nodes = 6;
  constexpr int ranks_per_node = 4;
  std::vector<RankFacts> ranks;
  JobSpeed speed;
  for (int rank = 0; rank < nodes * ranks_per_node; ++rank) {
    RankFacts& facts = ranks.emplace_back();
    facts.rank = rank;
    facts.local_rank = rank % ranks_per_node;
    facts.node = fmt::format("nid00100{}", rank / ranks_per_node + 1);
    facts.cores_online = 288;
    for (int core = 0; core < 72; ++core) facts.cores.push_back(72 * facts.local_rank + core);
    facts.numa_nodes_with_cores = 4;
    facts.memory_total = facts.memory_available = 800.0 * gib;
    facts.busy_cores = 0.0;
    facts.visible_gpus = std::to_string(facts.local_rank);
    facts.has_driver = facts.by_nvml = true;
    for (int gpu = 0; gpu < ranks_per_node; ++gpu)
      facts.gpus.push_back({.name = "NVIDIA GH200 120GB",
                            .uuid = fmt::format("GPU-{}-{}", facts.node, gpu),
                            .memory_total = 96.0 * gib,
                            .memory_used = 0.5 * gib,
                            .temperature_celsius = 27.0});
    facts.planned = {.gpu = "GH200-96", .on_gpu = true, .memory = 80.0 * gib};
    facts.variables = {{"MPICH_GPU_SUPPORT_ENABLED", "0", "1"}};
    facts.versions = {{"NCCL", "2.30.7"}, {"driver", "570.86.15"}};
    facts.speed = {.flop_per_s = 1.2e12, .flop_per_cpu_s = 1.2e12, .bytes_per_s = 300e9, .bytes_per_cpu_s = 300e9};
    facts.unknown = {{"xid", "the kernel log is not readable by this user"}};
    if (facts.local_rank == 0)
      speed.links.push_back({.kind = LinkKind::send,
                             .from = rank,
                             .to = (rank + ranks_per_node) % (nodes * ranks_per_node),
                             .bandwidth = BytesPerSecond(23.9e9)});
  }
  ranks[5].gpus[1].throttle_reasons = 0x40;
  ranks[5].speed->flop_per_s = 0.7e12;
  for (std::size_t rank = 16; rank < 20; ++rank) {
    ranks[rank].versions[0].value = "2.20.3";
    ranks[rank].busy_cores = 9.0;
  }
  ranks[9].gpus[1].temperature_celsius = 41.0;
  const Allocation allocation{.ranks = ranks, .speed = speed, .site = site, .gpus = gpus};
  EXPECT_TRUE(sailor::testing::matches_golden("check_table.txt", report(judge(allocation), allocation)));
}

}  // namespace
}  // namespace sailor::preflight::node_check_test
