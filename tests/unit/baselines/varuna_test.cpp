// Varuna against runs of the artifact.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "planner/baselines/varuna_costs.hpp"
#include "planner/baselines/varuna_simulator.hpp"
#include "tests/unit/baselines/homogeneous_cases.hpp"

namespace sailor::planner::baselines::varuna_test {
namespace {

using varuna_detail::GlibcRandom;
using varuna_detail::Minstd;
using varuna_detail::PipelineTimes;
using varuna_detail::simulate_varuna;

// Seconds of the original's own simulator. Plans of 26 stages are lost because it stalls.
TEST(Varuna, ExpectsWhatTheArtifactExpectsAndFindsNothingThatFits) {
  struct Golden {
    int gpus;
    int out_of_memory;
    std::vector<double> seconds;
    std::vector<std::string> plans;
  };
  const std::vector<Golden> goldens{
      {32, 2, {7.9373, 8.170351}, {"P1 D32 T1 b4", "P2 D16 T1 b8"}},
      {80, 3, {3.231842, 3.491209, 8.234912}, {"P1 D80 T1 b4", "P2 D40 T1 b8", "P13 D6 T1 b8"}},
      {128, 3, {1.998182, 2.257455, 4.440371}, {"P1 D128 T1 b4", "P2 D64 T1 b8", "P13 D9 T1 b8"}}};
  for (const Golden& golden : goldens) {
    const Problem problem = problem_of({offer_of("A100-40", golden.gpus)}, Faults::kept);
    const auto proposals = varuna().plan(problem);
    ASSERT_TRUE(proposals) << proposals.error().message();
    ASSERT_EQ(proposals->plans.size(), golden.seconds.size());
    for (std::size_t i = 0; i < golden.seconds.size(); ++i) {
      EXPECT_NEAR(1.0 / *proposals->plans[i].throughput, golden.seconds[i], 6e-7);
      EXPECT_EQ(describe(proposals->plans[i].plan), golden.plans[i]);
    }
    expect_outcome(first_accepted(varuna(), problem), 0.0, 0.0, 0.0, golden.out_of_memory, std::to_string(golden.gpus));
    EXPECT_EQ(std::any_of(proposals->notes.begin(), proposals->notes.end(),
                          [](const std::string& text) { return text.find("stalls") != std::string::npos; }),
              golden.gpus == 128);
  }
}

TEST(Varuna, EstimatesTheRunsOfTheArtifact) {
  expect_estimates(
      varuna(),
      {0.0836, 2.6517, 0.6316, 0.7078, 2.4693, 1.6669, 1.0086, 2.6375, 2.2005, 1.8467, 2.6381, 2.2009, 1.1519, 0.9339,
       1.4190},
      {2.553, 2.553, 9.371, 4.572, 0.735, 1.413, 8.612, 4.811, 9.371, 16.697, 4.811, 9.371, 9.371, 16.697, 4.811});
}

// random() of the GNU C library without a seed; the 10,000th value is the C++ standard's of minstd_rand0.
TEST(Varuna, DrawsTheNumbersOfTheGnuLibraries) {
  GlibcRandom random;
  EXPECT_EQ(random(), 1804289383U);
  EXPECT_EQ(random(), 846930886U);
  EXPECT_EQ(random(), 1681692777U);
  Minstd engine;
  std::uint32_t last = 0;
  for (int i = 0; i < 10'000; ++i) last = engine();
  EXPECT_EQ(last, 1043618065U);
}

#ifdef __GLIBCXX__
TEST(Varuna, DrawsTheNormalNumbersOfTheGnuLibrary) {
  Minstd engine;
  std::minstd_rand0 theirs;
  for (int i = 0; i < 1000; ++i) {
    varuna_detail::Normal normal(2000.0);
    std::normal_distribution<double> expected(0.0, 2000.0);
    for (int draw = 0; draw <= i % 3; ++draw) ASSERT_DOUBLE_EQ(normal(engine), expected(theirs));
  }
}
#endif

// Two stages, three micro-batches, forward 10, backward 20, send 5 µs. Stage 0: F0 0-10, F1 10-20; stage 1: F0 15-25,
// B0 25-45, F1 45-55, B1 55-75, F2; gradients of micro-batch 0 arrive at 50, B0 50-70, F2 70-80 (arrives 85), stage 1
// F2 85-95, B2 95-115; B1 80-100 on stage 0, B2 from 120 to 140.
TEST(Varuna, SimulatesOneForwardOneBackwardByHand) {
  PipelineTimes times{.forward = {10, 10}, .backward = {20, 20}, .send = 5, .workers_per_node = 1, .micro_batches = 3};
  EXPECT_DOUBLE_EQ(simulate_varuna(times, Faults::fixed), 140.0);
  times.send = 0;  // stage 1 is never idle: F0 10-20, B0 20-40, F1 40-50, B1 50-70, F2 waits for stage 0's F2 60-70
  EXPECT_DOUBLE_EQ(simulate_varuna(times, Faults::fixed), 120.0);
  times.send = 5;
  times.workers_per_node = 2;
  EXPECT_DOUBLE_EQ(simulate_varuna(times, Faults::fixed), 120.0);
}

TEST(Varuna, RunsBackwardPassesOfStagesThatNeverLeaveTheWarmUpUnlessFaultsAreKept) {
  const PipelineTimes times{.forward = std::vector<int>(8, 100'000),
                            .backward = std::vector<int>(8, 200'000),
                            .send = 0,
                            .workers_per_node = 1,
                            .micro_batches = 2};
  // One micro-batch through all stages and back, and the other one's last backward pass behind it.
  EXPECT_DOUBLE_EQ(simulate_varuna(times, Faults::fixed), 8 * 300'000.0 + 300'000.0);
  EXPECT_LT(simulate_varuna(times, Faults::kept), 2'000'000.0);
}

// 24 bytes per parameter, activations and workspace. The artifact's sums of OPT-350 are the original's.
TEST(Varuna, HasASubstituteOfMeasuredMemoryThatChangesNoPlan) {
  Problem problem = problem_of({offer_of("A100-40", 32)}, Faults::kept);
  auto costs = varuna_detail::varuna_costs(problem, problem.offers.front(), 4);
  ASSERT_TRUE(costs) << costs.error().message();
  const LayerRange all{0, 26};
  EXPECT_NEAR(costs->published_memory(all, 8), 66'788'161'536.0, 1.0);
  EXPECT_NEAR(costs->published_memory(all, 4), 34'446'542'387.2, 1.0);
  costs->is_measured = false;
  EXPECT_NEAR(costs->published_memory(all, 8) / 66'788'161'536.0, 1.0, 0.02);
  EXPECT_NEAR(costs->published_memory(all, 4) / 34'446'542'387.2, 1.0, 0.02);
  // The whole model on 1 GPU of 42.3e9 bytes: micro-batch 4, not 8.
  EXPECT_GT(costs->published_memory(all, 8), problem.inputs.configured_memory("A100-40"));
  EXPECT_LT(costs->published_memory(all, 4), problem.inputs.configured_memory("A100-40"));
}

TEST(Varuna, ProposesANodeAsOneTensorParallelGroupUnlessFaultsAreKept) {
  const Problem problem = problem_of({offer_of("A100-40", 128)}, Faults::fixed);
  const auto proposals = varuna().plan(problem);
  ASSERT_TRUE(proposals) << proposals.error().message();
  EXPECT_EQ(proposals->plans.size(), 4U);  // 1, 2, 13 and 26 stages
  for (const Proposal& proposal : proposals->plans) {
    const auto score = evaluate(proposal.plan, problem.inputs, problem.job, problem.faults);
    ASSERT_TRUE(score) << score.error().message();
    EXPECT_TRUE(score->fits) << describe(proposal.plan);
    const auto estimate = varuna().estimate(proposal.plan, problem);
    ASSERT_TRUE(estimate) << estimate.error().message();
    EXPECT_NEAR(1.0 / estimate->iteration_time->value(), *proposal.throughput, 1e-9);
    EXPECT_LE(estimate->peak_memory->value(), problem.inputs.memory("A100-40"));
  }
  EXPECT_TRUE(std::any_of(proposals->notes.begin(), proposals->notes.end(),
                          [](const std::string& text) { return text.find("substitute") != std::string::npos; }));
}

}  // namespace
}  // namespace sailor::planner::baselines::varuna_test
