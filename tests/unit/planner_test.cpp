#include "planner/planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/fakes/simulator_world.hpp"

namespace sailor {
namespace {

using planner::balance_layers;
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

TEST(Planner, FindsTheFastestOfAllHomogeneousPlans) {
  const World world;
  auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // Independent count: 4 devices, micro-batch 1 (8 micro-batches) and 2 (4): all d·p <= 4 with p <= 6, d <=
  // micro-batches: p=1: d=1..4, p=2: d=1..2, p=3: 1, p=4: 1 -> 8 shapes for each.
  EXPECT_EQ(found->considered, 16U);
  for (std::size_t i = 1; i < found->plans.size(); ++i)
    EXPECT_LE(found->plans[i - 1].prediction.iteration_time, found->plans[i].prediction.iteration_time);
  for (const planner::Candidate& candidate : found->plans) {
    EXPECT_TRUE(check_plan(candidate.plan, world.model).has_value());
    const auto again = world.predict(candidate.plan);
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->iteration_time, candidate.prediction.iteration_time);
  }
}

TEST(Planner, RanksByTheEventDrivenForm) {
  const World world;
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // Brute force: every number of pipelines and stages on four cores, both micro-batches. Embedding, blocks and head
  // take 2, 6 and 3 s for each sequence.
  double fastest = 1e9;
  for (const int micro_batch : {1, 2})
    for (int stages = 1; stages <= 4; ++stages)
      for (int pipelines = 1; pipelines * stages <= 4; ++pipelines) {
        const double s = micro_batch;
        const auto ranges = balance_layers({2 * s, 6 * s, 6 * s, 6 * s, 6 * s, 3 * s}, stages);
        const int all = 8 / micro_batch;
        Plan plan = World::plan(pipelines - all % pipelines, ranges, all / pipelines);
        if (all % pipelines > 0) plan = World::join(World::plan(all % pipelines, ranges, all / pipelines + 1), plan);
        plan.micro_batch = micro_batch;
        plan.job.global_batch = 8;
        const auto prediction = world.predict(plan);
        ASSERT_TRUE(prediction.has_value()) << prediction.error().message();
        fastest = std::min(fastest, prediction->iteration_time.value());
      }
  EXPECT_EQ(found->plans.front().prediction.iteration_time.value(), fastest);
  EXPECT_EQ(found->plans.front().plan.prediction->iteration_time.value(), fastest);
}

TEST(Planner, MicroBatchesThatDoNotDivideAreSharedUpToOne) {
  auto found = World().search(request(5));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  bool seen = false;
  for (const planner::Candidate& candidate : found->plans)
    if (candidate.plan.data_parallel() == 3 && candidate.plan.micro_batch == 1) {
      seen = true;
      ASSERT_EQ(candidate.plan.pipelines.size(), 2U);
      EXPECT_EQ(candidate.plan.pipelines[0].count, 2);
      EXPECT_EQ(candidate.plan.pipelines[0].micro_batches, 2);
      EXPECT_EQ(candidate.plan.pipelines[1].micro_batches, 1);
    }
  EXPECT_TRUE(seen);
}

TEST(Planner, NothingFitsIsInfeasibleAndNamesTheNearest) {
  World world;
  world.cluster.groups[0].memory_per_node = Bytes(1000);
  const auto found = world.search(request(8));
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::infeasible);
  EXPECT_TRUE(found.error().what.starts_with("none of 16 plans fits into memory; the nearest is "))
      << found.error().what;
}

TEST(Planner, UnknownPartitionAndMissingProfileAreNamed) {
  World world;
  planner::Request wanted = request(8);
  wanted.partition = "normel";
  EXPECT_EQ(world.search(wanted).error().message(),
            "partition 'normel' not found (known: normal); did you mean --partition normal?");
  wanted.partition = "normal";
  wanted.job.sequence_length = 32;
  EXPECT_EQ(world.search(wanted).error().message(),
            "the profile has no fp32 measurement of model tiny-gpt on cpu at sequence length 32; measure it with "
            "sailor-profile "
            "layers; it has: cpu at sequence length 64");
}

TEST(Planner, PlansThatNeedWhatWasNotMeasuredAreLeftOutAndCounted) {
  World world;
  world.data.links.clear();
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // Only one rank does without a reduction: the model's embedding is tied.
  EXPECT_EQ(found->considered, 2U);
  EXPECT_EQ(found->not_measured, 14U);
  EXPECT_EQ(
      found->missing,
      "the profile has no all_reduce or send_receive between cpu and cpu, inter_node (there: none; none); measure it "
      "with sailor-profile links");
}

TEST(Planner, ADeviceWithoutAnyProfileIsEstimatedAndMarked) {
  World world;
  world.cluster.groups[0].gpu = "H200-141";
  world.cluster.groups[0].gpus_per_node = 2;
  const auto found = world.search(request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // Tensor parallel 1 and 2, micro-batches 1, 2, 4, 8. There are no links of an H200: only plans of one stage of one
  // pipeline need none.
  EXPECT_EQ(found->considered, 8U);
  EXPECT_GT(found->not_measured, 0U);
  for (const planner::Candidate& candidate : found->plans) {
    EXPECT_EQ(candidate.prediction.origin, Origin::estimated);
    EXPECT_EQ(candidate.plan.prediction->origin, "estimated");
    ASSERT_EQ(candidate.prediction.estimated_inputs.size(), 2U);
    EXPECT_TRUE(candidate.prediction.estimated_inputs[0].what.starts_with(
        "layer times of tiny-gpt on H200-141 (no profile; scaled from cpu; expect errors of about"))
        << candidate.prediction.estimated_inputs[0].what;
    EXPECT_EQ(candidate.prediction.estimated_inputs[1].what,
              "memory of a process of framework sailor on H200-141 before its first tensor (not measured: 1.00 GiB by "
              "assumption: CUDA context, and workspace and buffers of cuBLAS and NCCL)");
  }
  world.measured_only = true;
  const auto refused = world.search(request(8));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message(),
            "the profile has no fp32 measurement of model tiny-gpt on H200-141 at sequence length 64; measure it with "
            "sailor-profile layers");
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
  EXPECT_EQ(seen, (std::set<int>{1, 2, 3, 4, 6}));  // those of 1 to 6 that divide 24
  world.measured_only = true;
  EXPECT_EQ(world.search(request(24))->considered, 2U);
}

TEST(Planner, LayersAreBalancedOptimally) {
  EXPECT_EQ(balance_layers({1, 1, 1, 1}, 2), (std::vector<LayerRange>{{0, 2}, {2, 4}}));
  EXPECT_EQ(balance_layers({5, 1, 1, 1}, 2), (std::vector<LayerRange>{{0, 1}, {1, 4}}));
  EXPECT_EQ(balance_layers({1, 2, 3}, 3), (std::vector<LayerRange>{{0, 1}, {1, 2}, {2, 3}}));
  // Brute force over all cuts of six layers into three stages.
  const std::vector<double> times{3, 1, 4, 1, 5, 9};
  double best = 1e9;
  for (int a = 1; a < 5; ++a)
    for (int b = a + 1; b < 6; ++b) {
      double sums[3] = {0, 0, 0};
      for (int i = 0; i < 6; ++i) sums[i < a ? 0 : i < b ? 1 : 2] += times[static_cast<std::size_t>(i)];
      best = std::min(best, std::max({sums[0], sums[1], sums[2]}));
    }
  double largest = 0;
  for (const LayerRange& range : balance_layers(times, 3)) {
    double sum = 0;
    for (int i = range.first; i < range.last; ++i) sum += times[static_cast<std::size_t>(i)];
    largest = std::max(largest, sum);
  }
  EXPECT_EQ(largest, best);
}

}  // namespace
}  // namespace sailor
