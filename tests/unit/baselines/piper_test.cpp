// Piper against runs of the artifact and against brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/unit/baselines/homogeneous_cases.hpp"

namespace sailor::planner::baselines::piper_test {
namespace {

using StageShape = std::pair<int, int>;  // layers, replicas

std::vector<StageShape> shape_of(const PlanList& plan) {
  std::vector<StageShape> shape;
  for (const ListStage& stage : plan.pipelines.front().stages)
    shape.emplace_back(stage.layers.last - stage.layers.first, static_cast<int>(stage.replicas.size()));
  return shape;
}

TEST(Piper, FindsThePlansOfTheArtifact) {
  struct Golden {
    int gpus;
    double throughput, cost;
    std::vector<StageShape> shape;
  };
  const std::vector<Golden> goldens{{32, 0.062012, 0.52655, {{7, 8}, {6, 8}, {13, 16}}},
                                    {80, 0.148594, 0.54935, {{6, 16}, {5, 16}, {10, 32}, {5, 16}}},
                                    {128, 0.116570, 1.12043, {{4, 16}, {3, 16}, {3, 16}, {13, 64}, {3, 16}}}};
  for (const Golden& golden : goldens) {
    const Problem problem = problem_of({offer_of("A100-40", golden.gpus)}, Faults::kept);
    const auto proposals = piper().plan(problem);
    ASSERT_TRUE(proposals) << proposals.error().message();
    ASSERT_EQ(proposals->plans.size(), 1U);
    EXPECT_EQ(shape_of(proposals->plans.front().plan), golden.shape);
    EXPECT_FALSE(proposals->plans.front().throughput);  // the artifact reports none
    expect_outcome(first_accepted(piper(), problem), golden.throughput, 0.0, golden.cost, 0,
                   std::to_string(golden.gpus));
  }
}

// The original prints a stage's time with six digits, then multiplies it.
TEST(Piper, EstimatesTheRunsOfTheArtifact) {
  expect_estimates(piper(),
                   {0.0825, 2.6404, 0.5165, 0.7183, 1.5081, 1.4797, 1.0231, 2.0846, 2.0730, 1.8639, 2.0860, 2.0742,
                    1.0418, 0.9409, 1.0457},
                   {4.919, 4.919, 20.334, 7.764, 2.732, 3.413, 13.454, 18.765, 20.334, 24.832, 18.765, 20.334, 20.334,
                    24.832, 18.765},
                   5.4e-5);
}

/// The least bottleneck of all ways to cut the last `layers` layers into stages with replicas on `devices` devices.
double best_by_force(const Problem& problem, int micro_batch, std::vector<LayerRange>& stages,
                     std::vector<int>& replicas, int first, int devices) {
  if (first == problem.inputs.layers()) {
    PlanList plan;
    plan.micro_batch = micro_batch;
    ListPipeline pipeline;
    for (std::size_t i = 0; i < stages.size(); ++i)
      pipeline.stages.push_back({stages[i], std::vector<Replica>(static_cast<std::size_t>(replicas[i]),
                                                                 {{{"V100-16", 4, "us-central1-a"}}, 1})});
    plan.pipelines.push_back(pipeline);
    const auto estimate = piper().estimate(plan, problem);
    EXPECT_TRUE(estimate) << estimate.error().message();
    const bool fits = estimate->peak_memory->value() <= problem.inputs.memory("V100-16");
    return fits ? estimate->iteration_time->value() : 1e30;
  }
  double best = 1e30;
  for (int last = first + 1; last <= problem.inputs.layers(); ++last)
    for (int count = 1; count <= devices; ++count) {
      if (problem.job.global_batch / micro_batch % count != 0) continue;
      stages.push_back({first, last});
      replicas.push_back(count);
      best = std::min(best, best_by_force(problem, micro_batch, stages, replicas, last, devices - count));
      stages.pop_back();
      replicas.pop_back();
    }
  return best;
}

// The search bounds the micro-batches in flight by a budget, brute force counts them: the budget is used up.
TEST(Piper, IsAsGoodAsBruteForceOverStagesAndReplicas) {
  const Problem problem = problem_of({{"V100-16", "us-central1-a", 4, 4}}, Faults::kept, 24);
  const auto proposals = piper().plan(problem);
  ASSERT_TRUE(proposals) << proposals.error().message();
  const auto found = piper().estimate(proposals->plans.front().plan, problem);
  ASSERT_TRUE(found) << found.error().message();
  std::vector<LayerRange> stages;
  std::vector<int> replicas;
  EXPECT_NEAR(found->iteration_time->value(), best_by_force(problem, 1, stages, replicas, 0, 4), 1e-7);
}

// As published there are neither tensor parallelism nor micro-batches of several sequences.
TEST(Piper, ExpectsOfItsPlansWhatItEstimatesOfThemAndUsesTensorParallelismUnlessFaultsAreKept) {
  const Problem problem = problem_of({offer_of("A100-40", 128)}, Faults::fixed);
  const auto proposals = piper().plan(problem);
  ASSERT_TRUE(proposals) << proposals.error().message();
  std::set<int> degrees;
  std::set<int> micro_batches;
  for (const Proposal& proposal : proposals->plans) {
    const auto estimate = piper().estimate(proposal.plan, problem);
    ASSERT_TRUE(estimate) << estimate.error().message();
    EXPECT_NEAR(1.0 / estimate->iteration_time->value(), *proposal.throughput, 1e-6);
    EXPECT_LE(estimate->peak_memory->value(), problem.inputs.memory("A100-40"));
    degrees.insert(proposal.plan.pipelines.front().stages.front().replicas.front().tensor_parallel);
    micro_batches.insert(proposal.plan.micro_batch);
  }
  EXPECT_GT(degrees.size(), 1U);
  EXPECT_EQ(micro_batches, (std::set<int>{1, 2, 4, 8}));
}

TEST(Piper, EstimatesAPlanThatDoesNotFit) {
  Problem problem = problem_of({}, Faults::kept);
  const auto estimate = piper().estimate(grid_plan(26, 1, 4, 1, 8, {"A100-40", 4, "us-central1-a"}), problem);
  ASSERT_TRUE(estimate) << estimate.error().message();
  EXPECT_GT(estimate->peak_memory->value(), problem.inputs.memory("A100-40"));
}

TEST(Piper, SaysWhenTheTimeIsOver) {
  Problem problem = problem_of({offer_of("A100-40", 32)}, Faults::kept);
  problem.is_over = [] { return true; };
  const auto proposals = piper().plan(problem);
  ASSERT_TRUE(proposals) << proposals.error().message();
  EXPECT_TRUE(proposals->out_of_time);
  EXPECT_TRUE(proposals->plans.empty());
}

TEST(Piper, RefusesSeveralOffers) {
  const auto proposals = piper().plan(problem_of({offer_of("A100-40", 32), offer_of("V100-16", 32)}, Faults::fixed));
  ASSERT_FALSE(proposals);
  EXPECT_EQ(proposals.error().message(),
            "Piper plans one GPU type in one zone, 2 offers are given; ask it about each by itself");
}

TEST(Piper, RefusesAPlanOfSeveralPipelinesOrGpuTypes) {
  PlanList plan = grid_plan(26, 2, 4, 1, 1, {"A100-40", 4, "us-central1-a"});
  plan.pipelines.front().stages[1].replicas[2].machines.front().gpu = "V100-16";
  const auto mixed = piper().estimate(plan, problem_of({}, Faults::kept));
  ASSERT_FALSE(mixed);
  EXPECT_NE(mixed.error().message().find("one GPU type and one zone"), std::string::npos) << mixed.error().message();
  plan = grid_plan(26, 2, 4, 1, 1, {"A100-40", 4, "us-central1-a"});
  plan.pipelines.push_back(plan.pipelines.front());
  const auto several = piper().estimate(plan, problem_of({}, Faults::kept));
  ASSERT_FALSE(several);
  EXPECT_NE(several.error().message().find("the plan has 2 pipelines"), std::string::npos) << several.error().message();
}

}  // namespace
}  // namespace sailor::planner::baselines::piper_test
