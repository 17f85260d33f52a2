#include "planner/planner.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "planner/limits.hpp"
#include "planner/search_space.hpp"
#include "planner/stage_choice.hpp"
#include "planner/stage_prices.hpp"
#include "tests/fakes/simulator_world.hpp"

namespace sailor::planner_test {
namespace {

using testing::World;

planner::Request request(int global_batch) {
  planner::Request request;
  request.job = {.model = "tiny-gpt",
                 .global_batch = global_batch,
                 .sequence_length = 64,
                 .precision = Precision::fp32,
                 .optimizer = Optimizer::adamw};
  return request;
}

NodeGroup nodes(const std::string& gpu, int count, int gpus_per_node) {
  return {.nodes = {},
          .count = count,
          .gpu = gpu,
          .gpus_per_node = gpus_per_node,
          .cpus_per_node = 8,
          .memory_per_node = Bytes(1e9),
          .state = NodeState::idle,
          .state_reason = {},
          .zone = {},
          .partitions = {"normal"}};
}

/// Measurements of a core count for another type too, and links of it to all types that are there.
void measure_as_cpu(World& world, const std::string& gpu) {
  const ProfileData before = world.data;
  for (LayerTime row : before.layer_times)
    if (row.key.gpu == "cpu") {
      row.key.gpu = gpu;
      world.data.layer_times.push_back(row);
    }
  for (LayerMemory row : before.layer_memory)
    if (row.key.gpu == "cpu") {
      row.key.gpu = gpu;
      world.data.layer_memory.push_back(row);
    }
  std::set<std::string> types;
  for (const LayerTime& row : world.data.layer_times) types.insert(row.key.gpu);
  for (LinkMeasurement row : before.links)
    if (row.key.from.gpu == "cpu" && row.key.to.gpu == "cpu")
      for (const std::string& other : types)
        for (const LinkScope scope : {LinkScope::intra_node, LinkScope::inter_node}) {
          row.key.from.gpu = gpu;
          row.key.to.gpu = other;
          row.key.scope = scope;
          world.data.links.push_back(row);
        }
}

void expect_sound(const World& world, const planner::SearchResult& found) {
  ASSERT_FALSE(found.plans.empty());
  for (const planner::Candidate& candidate : found.plans) {
    EXPECT_TRUE(check_plan(candidate.plan, world.model).has_value());
    const auto again = world.predict(candidate.plan);
    ASSERT_TRUE(again.has_value()) << again.error().message();
    EXPECT_TRUE(again->fits);
    EXPECT_EQ(again->iteration_time, candidate.prediction.iteration_time);
  }
}

TEST(Planner, PlansAreRankedByTheEventDrivenForm) {
  const World world;
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  expect_sound(world, *found);
  for (std::size_t i = 1; i < found->plans.size(); ++i)
    EXPECT_LE(found->plans[i - 1].prediction.iteration_time, found->plans[i].prediction.iteration_time);
  EXPECT_EQ(found->plans.front().plan.prediction->iteration_time, found->plans.front().prediction.iteration_time);
}

TEST(Planner, IsAtLeastAsGoodAsEveryPlanOfAlikePipelines) {
  const World world;
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // Brute force: every number of pipelines and stages on four cores, every division of the six layers, both
  // micro-batches.
  double fastest = 1e9;
  for (const int micro_batch : {1, 2})
    for (int cuts = 0; cuts < 1 << 5; ++cuts) {
      std::vector<LayerRange> ranges{{0, 6}};
      for (int layer = 1; layer < 6; ++layer)
        if (cuts >> (layer - 1) & 1) {
          ranges.back().last = layer;
          ranges.push_back({layer, 6});
        }
      for (int pipelines = 1; pipelines * static_cast<int>(ranges.size()) <= 4; ++pipelines) {
        const int all = 8 / micro_batch;
        Plan plan = World::plan(pipelines - all % pipelines, ranges, all / pipelines);
        if (all % pipelines > 0) plan = World::join(World::plan(all % pipelines, ranges, all / pipelines + 1), plan);
        plan.micro_batch = micro_batch;
        plan.job.global_batch = 8;
        const auto prediction = world.predict(plan);
        ASSERT_TRUE(prediction.has_value()) << prediction.error().message();
        fastest = std::min(fastest, prediction->closed_form_time.value());
      }
    }
  EXPECT_LE(1.0 / found->bound.found, fastest * (1.0 + 1e-9));
}

TEST(Planner, TheMarginOfMemoryStaysFree) {
  World world;
  planner::Request wanted = request(8);
  wanted.pins.recompute = Recompute::none;
  wanted.pins.optimizer_sharding = OptimizerSharding::none;
  const auto most_memory = [&] {
    const auto found = world.search(wanted);
    EXPECT_TRUE(found.has_value()) << found.error().message();
    return found.has_value() ? found->plans.front().prediction.peak_memory : Bytes(0);
  };
  const Bytes free = most_memory();
  world.cluster.groups[0].memory_per_node = free * (1.0 / 0.95);  // the best plan leaves a twentieth
  wanted.memory_margin = 0.04;
  EXPECT_EQ(most_memory(), free);
  wanted.memory_margin = 0.06;
  EXPECT_LE(most_memory(), world.cluster.groups[0].memory_per_node * 0.94);
}

// The searches look into no choice: what they find of it is what the simulator is asked and what a plan says.
TEST(Planner, EveryChoiceOfAStageReachesTheSimulatorAndThePlan) {
  World world;
  world.framework.supports_recompute = true;
  const auto choices = planner::stage_choices(request(8), world.framework);
  ASSERT_TRUE(choices.has_value());
  EXPECT_GT(choices->size(), 1U);
  std::set<std::uint64_t> numbers;
  for (const planner::StageChoice& choice : *choices) {
    EXPECT_LT(choice.number(), 16U);
    EXPECT_TRUE(numbers.insert(choice.number()).second);
    LayerKey key;
    Stage stage;
    planner::choose(choice, key);
    planner::choose(choice, stage);
    EXPECT_EQ(key.recompute, choice.recompute);
    EXPECT_EQ(stage.recompute, choice.recompute);
  }
  EXPECT_EQ(choices->front(), planner::StageChoice{}) << "the quickest";

  planner::Request papers = request(8);
  papers.space = planner::Space::paper;
  EXPECT_EQ(planner::stage_choices(papers, world.framework)->size(), 1U);
  world.framework.supports_recompute = false;
  planner::Request pinned = request(8);
  pinned.pins.recompute = Recompute::full;
  const auto refused = planner::stage_choices(pinned, world.framework);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::usage);
}

TEST(Planner, NothingFitsIsInfeasibleAndSaysSo) {
  World world;
  world.cluster.groups[0].memory_per_node = Bytes(1000);
  const auto found = world.search(request(8));
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::infeasible);
  EXPECT_TRUE(found.error().what.find("memory") != std::string::npos) << found.error().what;
  EXPECT_FALSE(found.error().hint.empty());
}

TEST(Planner, UnknownPartitionAndMissingProfileAreNamed) {
  World world;
  planner::Request wanted = request(8);
  wanted.partitions = {"normel"};
  EXPECT_EQ(world.search(wanted).error().message(),
            "partition 'normel' not found (known: normal); did you mean --partition normal?");
  wanted.partitions = {"normal"};
  wanted.job.sequence_length = 32;
  EXPECT_TRUE(world.search(wanted).has_value());  // estimated from what there is
  world.measured_only = true;
  EXPECT_EQ(world.search(wanted).error().message(),
            "the profile has no fp32 measurement of model tiny-gpt on cpu at sequence length 32; it has: cpu at "
            "sequence length 64; measure it with sailor-profile layers");
}

TEST(Planner, OnlyNodesOfThePartitionThatAreUpAreUsed) {
  World world;
  world.cluster.groups.push_back(nodes("cpu", 8, 1));
  world.cluster.groups.back().partitions = {"other"};
  world.cluster.partitions.push_back({.name = "other"});
  planner::Request wanted = request(8);
  wanted.partitions = {"normal"};
  world.cluster.groups[0].count = 2;
  const auto found = world.search(wanted);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  for (const planner::Candidate& candidate : found->plans) EXPECT_LE(candidate.plan.ranks(), 2);
  world.cluster.groups[0].state = NodeState::unavailable;
  world.cluster.groups[0].state_reason = "drained";
  const auto none = world.search(wanted);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().what, "no node of partition 'normal' is up (unavailable: drained)");
  world.cluster.partitions[0].up = false;
  EXPECT_EQ(world.search(wanted).error().message(),
            "partition 'normal' is down; choose another partition, or ask its administrators");
}

TEST(Planner, ThePartitionsLimitOnNodesHolds) {
  World world;
  world.cluster.partitions[0].most_nodes = 2;
  planner::Request wanted = request(8);
  wanted.partitions = {"normal"};
  const auto found = world.search(wanted);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  for (const planner::Candidate& candidate : found->plans) EXPECT_LE(candidate.plan.ranks(), 2);
}

TEST(Planner, WithoutLinksOnlySingleRanksAreLeft) {
  World world;
  world.data.links.clear();
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  for (const planner::Candidate& candidate : found->plans) EXPECT_EQ(candidate.plan.ranks(), 1);
}

TEST(Planner, PricesMessagesBetweenStagesAsTheSimulatorDoes) {
  World world;
  world.add_tensor_parallel();
  world.set_proportional_links();
  world.framework.transfer_overhead = Seconds(1.0 / 64);
  using How = simulator::StageMessages;
  for (const How how : {How::whole, How::pieces, How::once}) {
    world.framework.stage_messages = how;
    const Profile profile(world.data);
    simulator::Environment env = world.environment(profile);
    const LayerCosts costs = simulator::layer_costs_for(env);
    env.costs = &costs;
    const planner::Request wanted = request(8);
    const auto space = planner::make_search_space(wanted, env);
    ASSERT_TRUE(space.has_value()) << space.error().message();
    planner::StagePrices prices(wanted, *space, env);
    for (const auto& [first, second] : {std::pair(4, 4), std::pair(4, 1), std::pair(2, 4), std::pair(1, 4)}) {
      SCOPED_TRACE(fmt::format("{}, {} to {}", to_string(how), first, second));
      Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 8);
      plan.pipelines[0].stages[0].tensor_parallel = first;
      plan.pipelines[0].stages[1].tensor_parallel = second;
      const auto p = world.predict(plan);
      ASSERT_TRUE(p.has_value()) << p.error().message();
      EXPECT_EQ(prices.boundary(0, first, 0, second, 1, false).both(), p->stages[0].link.value());
    }
  }
}

TEST(Planner, ADeviceWithoutAnyProfileIsEstimatedAndMarked) {
  World world;
  world.cluster.groups[0].gpu = "H200-141";
  world.cluster.groups[0].gpus_per_node = 2;
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  for (const planner::Candidate& candidate : found->plans) {
    EXPECT_EQ(candidate.prediction.origin, Origin::estimated);
    EXPECT_EQ(candidate.plan.prediction->origin, "estimated");
    // Beside them, the links inside of a node where they are used.
    ASSERT_GE(candidate.prediction.estimated_inputs.size(), 2U);
    EXPECT_TRUE(candidate.prediction.estimated_inputs[0].what.starts_with(
        "layer times of tiny-gpt on H200-141 (no profile; scaled from cpu; expect errors of about"))
        << candidate.prediction.estimated_inputs[0].what;
    EXPECT_EQ(candidate.prediction.estimated_inputs.back().what,
              "memory of a process of framework sailor on H200-141 before its first tensor (not measured: 1.00 GiB by "
              "assumption: CUDA context, and workspace and buffers of cuBLAS and NCCL)");
  }
  world.measured_only = true;
  const auto refused = world.search(request(8));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message(),
            "the profile has no fp32 measurement of model tiny-gpt on H200-141 at sequence length 64; measure it with "
            "sailor-profile layers --gpu NAME, "
            "or import it with sailor-profile import");
}

TEST(Planner, ATypeWithoutProfileIsLeftOutAndNamed) {
  World world;
  world.cluster.groups.push_back(nodes("H200-141", 2, 1));
  world.measured_only = true;
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  expect_sound(world, *found);
  ASSERT_EQ(found->left_out.size(), 1U);
  EXPECT_EQ(found->left_out[0],
            "H200-141: the profile has no fp32 measurement of model tiny-gpt on H200-141 at sequence length 64");
  for (const planner::Candidate& candidate : found->plans)
    for (const Pipeline& pipeline : candidate.plan.pipelines)
      for (const Stage& stage : pipeline.stages) EXPECT_EQ(stage.gpu, "cpu");
}

TEST(Planner, MicroBatchesBetweenMeasuredOnesAreConsidered) {
  World world;
  world.cluster.groups[0].count = 1;
  for (LayerTime& row : world.data.layer_times)
    if (row.key.micro_batch == 2) row.key.micro_batch = 6;
  std::set<int> seen;
  const auto found = world.search(request(24));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  for (const planner::Candidate& candidate : found->plans) {
    seen.insert(candidate.plan.micro_batch);
    const bool measured = candidate.plan.micro_batch == 1 || candidate.plan.micro_batch == 6;
    EXPECT_EQ(candidate.prediction.origin, measured ? Origin::measured : Origin::interpolated);
  }
  for (const int size : seen) EXPECT_EQ(24 % size, 0);
  planner::Request pinned = request(24);
  pinned.pins.micro_batch = 4;
  EXPECT_TRUE(world.search(pinned).has_value());
  world.measured_only = true;
  EXPECT_EQ(world.search(pinned).error().code, ErrorCode::infeasible);
}

TEST(Planner, NoNodesAreInfeasible) {
  World world;
  world.cluster.groups.clear();
  const auto none = world.search(request(8));
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::infeasible);
  EXPECT_EQ(none.error().what, "no node of the cluster is up");
}

TEST(Planner, SingleSequencesAndPrimesAreDivided) {
  const World world;
  for (const int batch : {1, 7, 13}) {
    const auto found = world.search(request(batch));
    ASSERT_TRUE(found.has_value()) << batch << ": " << found.error().message();
    expect_sound(world, *found);
    EXPECT_EQ(found->bound.gap, 0.0);
  }
}

TEST(Planner, OneDeviceRunsEverything) {
  World world;
  world.cluster.groups[0].count = 1;
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  expect_sound(world, *found);
  EXPECT_EQ(found->plans.front().plan.ranks(), 1);
  EXPECT_EQ(found->bound.gap, 0.0);
}

TEST(Planner, SevenDevicesOfThreeTypesInNodesOfFour) {
  World world;
  measure_as_cpu(world, "A100-40");
  measure_as_cpu(world, "V100-16");
  // Nodes have four slots; what is in them: four, two, one.
  world.cluster.groups = {nodes("cpu", 1, 4), nodes("A100-40", 1, 2), nodes("V100-16", 1, 1)};
  for (LinkMeasurement row : std::vector<LinkMeasurement>(world.data.links))
    if (row.key.from.gpu == "cpu" && row.key.to.gpu == "cpu") {
      row.key.scope = LinkScope::intra_node;
      world.data.links.push_back(row);
    }
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  expect_sound(world, *found);
  for (const planner::Candidate& candidate : found->plans) EXPECT_LE(candidate.plan.ranks(), 7);
}

TEST(Planner, ALimitThatBindsIsNamedWithByHowMuch) {
  const World world;
  planner::Request wanted = request(8);
  const auto free = world.search(wanted);
  ASSERT_TRUE(free.has_value()) << free.error().message();
  wanted.limits.throughput = free->bound.found * 1.25;
  const auto refused = world.search(wanted);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::infeasible);
  // 1 / 1.25 of what is asked for.
  EXPECT_TRUE(refused.error().what.find("20.0% less than") != std::string::npos) << refused.error().what;
}

// The search under a limit need not have seen the best plan: another says what that reaches.
TEST(Planner, WhatNoPlanReachesIsComparedWithTheBestWithoutTheLimit) {
  planner::Request wanted;
  wanted.limits.throughput = 0.5;
  wanted.effort.explains_limits = true;
  wanted.effort.proof = planner::Proof::thorough;
  planner::Proof proof = planner::Proof::usual;  // of the search without the limit
  const Error seen{ErrorCode::infeasible, "the fastest plan reaches 0.1 iterations/s", "relax that limit"};
  std::vector<planner::Objective> asked;
  double fastest = 0.25;  // iterations/s
  const auto search = [&](const planner::Request& free) -> Result<planner::SearchResult> {
    EXPECT_FALSE(free.limits.throughput || free.limits.cost);
    EXPECT_EQ(free.effort.proof, proof);
    asked.push_back(free.objective);
    planner::SearchResult found;
    found.plans.emplace_back();
    found.plans.back().prediction.iteration_time = Seconds(1.0 / fastest);
    found.plans.back().prediction.cost_per_iteration = Usd(free.objective == planner::Objective::cost ? 2.0 : 3.0);
    return found;
  };
  const auto error_text = [&] {
    const auto answer = search_beside_limits(wanted, seen, search);
    return answer ? std::string("a plan") : answer.error().what;
  };
  EXPECT_EQ(error_text(), "the fastest plan reaches 0.25 iterations/s, 50.0% less than the 0.5 asked for");
  EXPECT_EQ(asked, std::vector{planner::Objective::throughput});
  wanted.effort.proof = proof = planner::Proof::none;
  wanted.limits.cost = Usd(1.0);
  EXPECT_EQ(
      error_text(),
      "the fastest plan reaches 0.25 iterations/s, 50.0% less than the 0.5 asked for; the cheapest plan costs $2.00 "
      "per iteration, 100.0% more than the $1.00 allowed");
  // Each limit alone is kept.
  fastest = 1.0;
  wanted.limits.cost = Usd(2.5);
  wanted.limits.throughput = 0.5;
  wanted.objective = planner::Objective::cost;
  const auto kept = search_beside_limits(wanted, seen, search);
  ASSERT_TRUE(kept) << kept.error().message();
  EXPECT_EQ(kept->bound.found, 2.0);  // in the unit of the objective
  // Nobody waits for an answer, or nobody asked.
  wanted.limits.throughput = 2.0;
  wanted.effort.is_interrupted = [] { return true; };
  EXPECT_EQ(error_text(), seen.what);
  wanted.effort = {};
  EXPECT_EQ(error_text(), seen.what);
}

}  // namespace
}  // namespace sailor::planner_test
