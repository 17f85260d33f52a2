// Resources that Slurm gives a component of a job: expected values are those that slurmctld 22.05 allocated on two
// nodes of 4 GH200, 288 CPUs and 854000 MiB.
#include <gtest/gtest.h>

#include "slurm/job_amounts.hpp"

namespace sailor::slurm::job_amounts_test {
namespace {

class JobAmounts : public ::testing::Test {
 protected:
  JobAmounts() {
    request.device_kind = DeviceKind::gpu;
    request.cpus_per_rank = 1;
    partition.name = "normal";
    partition.default_memory_per_cpu = 100.0 * mib;
  }
  [[nodiscard]] Result<NodeGrant> grant() const { return grant_of(request, component, whole_nodes, node, &partition); }
  [[nodiscard]] Tres amounts() const {
    return amounts_of(request, component, whole_nodes, node, grant().value(), &partition, false);
  }
  [[nodiscard]] double memory_mib() const { return grant()->memory / mib; }
  [[nodiscard]] std::string refusal() const { return grant() ? "" : grant().error().message(); }

  NodeRequest request;
  JobComponent component{.kind = 0, .nodes = 2, .tasks_per_node = 1, .packed = false, .tasks = 2};
  NodeSize node{.cpus = 288, .gpus = 4, .gpu_type = "gh200", .memory = 854000.0 * mib};
  Partition partition;
  bool whole_nodes = false;
};

TEST_F(JobAmounts, CountsWhatIsAskedFor) {
  EXPECT_EQ(amounts(), (Tres{{"billing", 2}, {"cpu", 2}, {"gres/gpu", 2}, {"mem", 200}, {"node", 2}}));
  request.gres_type = "gh200";
  request.cpus_per_rank = 4;
  EXPECT_EQ(amounts(),
            (Tres{{"billing", 8}, {"cpu", 8}, {"gres/gpu", 2}, {"gres/gpu:gh200", 2}, {"mem", 800}, {"node", 2}}));
}

TEST_F(JobAmounts, CountsEverythingOfWholeNodes) {
  whole_nodes = true;
  EXPECT_EQ(
      amounts(),
      (Tres{{"billing", 576}, {"cpu", 576}, {"gres/gpu", 8}, {"gres/gpu:gh200", 8}, {"mem", 57600}, {"node", 2}}));
}

TEST_F(JobAmounts, CountsTheCoresOfALastNodeWithFewerTasks) {
  component = {.kind = 0, .nodes = 2, .tasks_per_node = 4, .packed = true, .tasks = 6};
  EXPECT_EQ(amount_of(amounts(), "cpu"), 6);
  EXPECT_EQ(amount_of(amounts(), "gres/gpu"), 8);  // --gpus-per-node=4
}

TEST_F(JobAmounts, GivesThePartitionsDefaultMemory) {
  EXPECT_EQ(memory_mib(), 100);
  partition.default_memory_per_node = 50000.0 * mib;
  EXPECT_EQ(memory_mib(), 50000);
  partition.default_memory_per_gpu = 1000.0 * mib;
  EXPECT_EQ(memory_mib(), 1000);
  whole_nodes = true;
  EXPECT_EQ(memory_mib(), 4000);
  partition = {.name = "normal"};
  EXPECT_EQ(memory_mib(), 854000);
  request.memory_per_node = 450.0 * gib;
  EXPECT_EQ(memory_mib(), 460800);
  request.memory_per_node = Bytes(0);
  EXPECT_EQ(memory_mib(), 854000);
  request.memory_per_node.reset();
  request.memory_per_cpu = 2000.0 * mib;
  EXPECT_EQ(memory_mib(), 576000);
}

TEST_F(JobAmounts, KnowsWhatSlurmRefuses) {
  request.memory_per_node = 450.0 * gib;
  partition.most_memory_per_node = 400000.0 * mib;
  EXPECT_EQ(refusal(), "the job asks for 450 GiB of a node's memory, partition 'normal' allows 391 GiB");
  request.memory_per_node = Bytes(0);
  EXPECT_NE(refusal(), "");
  request.memory_per_node = 390000.0 * mib;
  EXPECT_EQ(refusal(), "");
  partition.most_memory_per_node.reset();
  request.memory_per_node = 854001.0 * mib;
  EXPECT_EQ(refusal(), "the job asks for 834 GiB of a node's memory, the nodes have 834 GiB");
  // Memory beyond the limit per CPU costs CPUs, as long as the node has them.
  partition.most_memory_per_cpu = 2000.0 * mib;
  request.memory_per_node = 450.0 * gib;
  EXPECT_EQ(amount_of(amounts(), "cpu"), 462);
  request.memory_per_node = Bytes(0);
  EXPECT_NE(refusal(), "");
}

TEST_F(JobAmounts, BillsByTheWeightsOfThePartition) {
  const Tres amounts{{"cpu", 8}, {"mem", 52 * 1024}, {"gres/gpu", 8}, {"node", 2}};
  EXPECT_EQ(billing_of(amounts, "CPU=1.0,Mem=0.25G,GRES/gpu=10", false), 101);
  EXPECT_EQ(billing_of(amounts, "CPU=1.0,Mem=0.25G,GRES/gpu=10", true), 80);
  EXPECT_EQ(billing_of(amounts, "CPU=1.0,GRES/gpu:gh200=10", false), 8);
  EXPECT_EQ(billing_of(amounts, "", false), 8);
}

TEST_F(JobAmounts, AsksForTheMemoryThatTheSiteNamesElseThatThePlanNeeds) {
  const auto choose = [&](std::optional<Bytes> site, std::optional<Bytes> peak, bool whole) {
    NodeRequest asked;
    asked.device_kind = DeviceKind::gpu;
    choose_memory(asked, site, peak, 4, whole, node, &partition);
    return asked;
  };
  const NodeRequest by_site = choose(450.0 * gib, 80.0 * gib, true);
  EXPECT_EQ(by_site.memory_per_node, 450.0 * gib);
  EXPECT_EQ(by_site.memory_reason, MemoryReason::site);
  const NodeRequest by_plan = choose(std::nullopt, 80.0 * gib, true);
  EXPECT_EQ(by_plan.memory_per_rank, 84.0 * gib);
  EXPECT_EQ(by_plan.memory_reason, MemoryReason::predicted);
  const NodeRequest too_much = choose(std::nullopt, 230.0 * gib, true);
  EXPECT_EQ(too_much.memory_per_node, Bytes(0));
  EXPECT_EQ(too_much.memory_reason, MemoryReason::all_there);
  const NodeRequest whole = choose(std::nullopt, std::nullopt, true);
  EXPECT_EQ(whole.memory_per_node, Bytes(0));
  EXPECT_EQ(whole.memory_reason, MemoryReason::whole_nodes);
  const NodeRequest shared = choose(std::nullopt, std::nullopt, false);
  EXPECT_FALSE(shared.memory_per_node || shared.memory_per_rank || shared.memory_per_cpu);
  // Where the partition allows less than the nodes have, Slurm refuses --mem=0.
  partition.most_memory_per_node = 300.0 * gib;
  EXPECT_EQ(choose(std::nullopt, std::nullopt, true).memory_per_node, 300.0 * gib);
  EXPECT_EQ(choose(450.0 * gib, std::nullopt, true).memory_per_node, 300.0 * gib);
  EXPECT_EQ(choose(std::nullopt, 80.0 * gib, true).memory_per_node, 300.0 * gib);
}

TEST_F(JobAmounts, AsksForTheMemoryOfCopiesOfAnElasticTraining) {
  NodeRequest on_gpus;
  on_gpus.device_kind = DeviceKind::gpu;
  on_gpus.copies_of_rank = 10.0 * gib;
  NodeRequest on_cpus = on_gpus;
  choose_memory(on_gpus, std::nullopt, 80.0 * gib, 4, false, node, &partition);
  EXPECT_EQ(on_gpus.memory_per_rank, 94.0 * gib);
  on_cpus.device_kind = DeviceKind::cpu;
  on_cpus.cpus_per_rank = 2;
  NodeRequest without = on_cpus;
  without.copies_of_rank = Bytes(0);
  choose_memory(on_cpus, std::nullopt, 4.0 * gib, 4, false, node, &partition);
  choose_memory(without, std::nullopt, 4.0 * gib, 4, false, node, &partition);
  EXPECT_EQ(*on_cpus.memory_per_cpu - *without.memory_per_cpu, 5.0 * gib);
}

}  // namespace
}  // namespace sailor::slurm::job_amounts_test
