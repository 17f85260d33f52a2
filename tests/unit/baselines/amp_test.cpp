// AMP against runs of the artifact.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/baselines/homogeneous_cases.hpp"

namespace sailor::planner::baselines::amp_test {
namespace {

TEST(Amp, FindsThePlansOfTheArtifact) {
  const auto figure7 = [](int gpus) { return problem_of({offer_of("A100-40", gpus)}, Faults::kept); };
  const auto figure8b = [](int gpus) {
    return problem_of({offer_of("A100-40", gpus), offer_of("V100-16", 3 * gpus)}, Faults::kept);
  };
  expect_outcome(first_accepted(amp(), figure7(32)), 0.116632, 0.156959, 0.27996, 0, "7/32");
  expect_outcome(first_accepted(amp(), figure7(80)), 0.205001, 0.289963, 0.31856, 0, "7/80");
  expect_outcome(first_accepted(amp(), figure7(128)), 0.323791, 0.525290, 0.40338, 0, "7/128");
  expect_outcome(first_accepted(amp(), figure8b(32)), 0.131567, 0.264092, 0.82786, 4, "8b/1");
  expect_outcome(first_accepted(amp(), figure8b(80)), 0.206207, 0.470902, 1.07394, 3, "8b/2");
  expect_outcome(first_accepted(amp(), figure8b(128)), 0.312451, 0.800051, 1.39438, 0, "8b/3");
  for (const Objective objective : {Objective::cost, Objective::throughput})
    expect_outcome(first_accepted(amp(), four_offers(Faults::kept, objective)), 0.210927, 0.470532, 1.10132, 3,
                   "11, 12");
}

TEST(Amp, EstimatesTheRunsOfTheArtifact) {
  expect_estimates(amp(),
                   {0.1181, 3.7797, 2.5228, 1.8943, 2.2739, 2.1577, 3.7864, 9.4338, 8.8350, 7.5678, 9.4345, 8.8355,
                    4.6301, 3.7884, 5.0553},
                   {});
}

TEST(Amp, HasNoMemoryModelAndSaysSo) {
  const auto estimate = amp().estimate(validation_plan(validation_runs()[2]), problem_of({}, Faults::kept, 32));
  ASSERT_TRUE(estimate) << estimate.error().message();
  EXPECT_FALSE(estimate->peak_memory);
}

// Two zones with the same GPUs are one cluster with slower links. As published only links inside a zone are looked up.
TEST(Amp, TakesTheSlowestLinkOfAllZonesUnlessFaultsAreKept) {
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    const auto near = amp().plan(problem_of({offer_of("A100-40", 128)}, faults));
    const auto far = amp().plan(problem_of({offer_of("A100-40", 64), offer_of("A100-40", 64, "us-west1-b")}, faults));
    ASSERT_TRUE(near && far);
    const double slowdown = *near->plans.front().throughput / *far->plans.front().throughput;
    if (faults == Faults::kept)
      EXPECT_LT(slowdown, 1.1);
    else
      EXPECT_GT(slowdown, 1.2);
  }
}

// At others the artifact's evaluator ends with a key error.
TEST(Amp, ProposesOnlyMeasuredMicroBatchesUnlessFaultsAreKept) {
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    const auto proposals = amp().plan(problem_of({offer_of("A100-40", 32)}, faults));
    ASSERT_TRUE(proposals) << proposals.error().message();
    int largest = 0;
    for (const Proposal& proposal : proposals->plans) largest = std::max(largest, proposal.plan.micro_batch);
    EXPECT_EQ(largest, faults == Faults::kept ? 1024 : 8);
  }
}

TEST(Amp, RefusesABatchThatItsGpusDoNotDivide) {
  const auto proposals = amp().plan(problem_of({offer_of("A100-40", 32)}, Faults::fixed, 1022));
  ASSERT_FALSE(proposals);
  EXPECT_EQ(proposals.error().code, ErrorCode::infeasible);
  EXPECT_NE(proposals.error().message().find("1022 is not a multiple of the 4 GPUs of a node"), std::string::npos)
      << proposals.error().message();
}

TEST(Amp, StopsWhenTheTimeIsOver) {
  Problem problem = problem_of({offer_of("A100-40", 32)}, Faults::fixed);
  int asked = 0;
  problem.is_over = [&] { return ++asked > 10; };
  const auto proposals = amp().plan(problem);
  ASSERT_TRUE(proposals) << proposals.error().message();
  EXPECT_TRUE(proposals->out_of_time);
  EXPECT_EQ(proposals->plans.size(), 10U);
}

}  // namespace
}  // namespace sailor::planner::baselines::amp_test
