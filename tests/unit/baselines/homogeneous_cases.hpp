// The published inputs of the figures for planners of one GPU type, and the 15 runs on GH200 nodes of figures 5a and
// 5b (github.com/eth-easl/sailor, simulations/validation/clariden/OPT-350).
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "planner/baselines/baseline.hpp"
#include "planner/baselines/harness.hpp"
#include "tests/fakes/published_profiles.hpp"

namespace sailor::planner::baselines {

inline const Inputs& published_inputs() {
  static const Model model = testing::published_model("OPT-350");
  static const Inputs inputs =
      Inputs::build(testing::published_job("OPT-350", 1024), model, testing::published(), testing::published_gpus())
          .value();
  return inputs;
}

inline Problem problem_of(std::vector<Offer> offers, Faults faults, int batch = 1024) {
  Problem problem{.inputs = published_inputs(), .job = testing::published_job("OPT-350", batch)};
  problem.offers = std::move(offers);
  problem.faults = faults;
  return problem;
}

inline Offer offer_of(const std::string& gpu, int gpus, const std::string& zone = "us-central1-a") {
  return {gpu, zone, gpus, 4};
}

/// A run on GH200 nodes with tensor parallel 4, its layers as the plan files of the artifact divide them.
struct ValidationRun {
  int nodes;
  int batch;
  int replicas;
  int stages;
  int micro_batch;
};

inline const std::vector<ValidationRun>& validation_runs() {
  static const std::vector<ValidationRun> runs{
      {1, 1, 1, 1, 1},     {1, 32, 1, 1, 1},    {2, 32, 1, 2, 8},     {2, 32, 2, 1, 2},     {4, 64, 1, 4, 1},
      {4, 64, 2, 2, 1},    {4, 128, 4, 1, 4},   {8, 512, 2, 4, 8},    {8, 512, 4, 2, 8},    {16, 1024, 16, 1, 8},
      {16, 1024, 4, 4, 8}, {16, 1024, 8, 2, 8}, {32, 1024, 16, 2, 8}, {32, 1024, 32, 1, 8}, {32, 1024, 8, 4, 8}};
  return runs;
}

inline PlanList validation_plan(const ValidationRun& run) {
  static const std::map<int, std::vector<int>> layers{{1, {26}}, {2, {12, 14}}, {4, {5, 7, 7, 7}}};
  PlanList plan;
  plan.micro_batch = run.micro_batch;
  ListPipeline pipeline;
  int first = 0;
  for (const int count : layers.at(run.stages)) {
    const Replica replica{{{"GH200-96", 4, "us-central1-a"}}, 4};
    pipeline.stages.push_back(
        {{first, first + count}, std::vector<Replica>(static_cast<std::size_t>(run.replicas), replica)});
    first += count;
  }
  plan.pipelines.push_back(pipeline);
  return plan;
}

/// What the artifact's harness finds: the first plan, in the planner's order, that fits and keeps the limits.
struct Outcome {
  double throughput = 0.0;  ///< iterations/s of the evaluator; 0: no plan
  double cost = 0.0;        ///< USD per iteration
  double expected = 0.0;    ///< iterations/s by the planner itself
  int out_of_memory = 0;    ///< plans before it
  std::string plan;
};

inline Outcome first_accepted(const Baseline& planner, Problem problem) {
  Outcome outcome;
  problem.offers = offer_sets(scope_of(planner.name()), problem.offers, problem.faults).front();
  const auto proposals = planner.plan(problem);
  EXPECT_TRUE(proposals) << proposals.error().message();
  if (!proposals) return outcome;
  for (const Proposal& proposal : proposals->plans) {
    const auto score = evaluate(proposal.plan, problem.inputs, problem.job, problem.faults);
    EXPECT_TRUE(score) << score.error().message();
    if (!score) return outcome;
    if (!score->fits) {
      ++outcome.out_of_memory;
      continue;
    }
    const double throughput = 1.0 / score->iteration_time.value();
    if (throughput < problem.min_throughput.value_or(0.0)) continue;
    if (problem.max_cost && score->cost > *problem.max_cost) continue;
    outcome.throughput = throughput;
    outcome.cost = score->cost.value();
    outcome.expected = proposal.throughput.value_or(0.0);
    outcome.plan = describe(proposal.plan);
    break;
  }
  return outcome;
}

/// Figures 11 and 12.
inline Problem four_offers(Faults faults, Objective objective) {
  Problem problem = problem_of({offer_of("A100-40", 128), offer_of("A100-40", 128, "us-central1-b"),
                                offer_of("V100-16", 128), offer_of("V100-16", 128, "us-central1-b")},
                               faults);
  problem.objective = objective;
  if (objective == Objective::cost)
    problem.min_throughput = 0.2;
  else
    problem.max_cost = Usd(1.2);
  return problem;
}

/// The runs are known to six decimals of throughputs, five of USD; float32 sums of the original need 1e-5.
inline void expect_outcome(const Outcome& found, double throughput, double expected, double cost, int out_of_memory,
                           const std::string& what) {
  EXPECT_NEAR(found.throughput, throughput, 6e-7) << what << ": " << found.plan;
  EXPECT_NEAR(found.expected, expected, 2e-6) << what << ": " << found.plan;
  EXPECT_NEAR(found.cost, cost, 6e-6) << what << ": " << found.plan;
  EXPECT_EQ(found.out_of_memory, out_of_memory) << what << ": " << found.plan;
}

/// Seconds (four decimals) and bytes (three decimals of GB; empty: not modelled).
inline void expect_estimates(const Baseline& planner, const std::vector<double>& seconds,
                             const std::vector<double>& gigabytes, double tolerance = 5.1e-5) {
  for (std::size_t i = 0; i < validation_runs().size(); ++i) {
    const ValidationRun& run = validation_runs()[i];
    const Problem problem = problem_of({}, Faults::kept, run.batch);
    const auto estimate = planner.estimate(validation_plan(run), problem);
    ASSERT_TRUE(estimate) << estimate.error().message();
    ASSERT_TRUE(estimate->iteration_time);
    EXPECT_NEAR(estimate->iteration_time->value(), seconds[i], tolerance) << "run " << i;
    if (gigabytes.empty()) continue;
    ASSERT_TRUE(estimate->peak_memory);
    EXPECT_NEAR(estimate->peak_memory->value() / gigabyte.value(), gigabytes[i], 5.1e-4) << "run " << i;
  }
}

}  // namespace sailor::planner::baselines
