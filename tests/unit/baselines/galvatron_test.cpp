// Galvatron against runs of the artifact.
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/baselines/galvatron_costs.hpp"
#include "tests/unit/baselines/homogeneous_cases.hpp"

namespace sailor::planner::baselines::galvatron_test {
namespace {

using galvatron_detail::galvatron_profile;

TEST(Galvatron, FindsThePlansOfTheArtifact) {
  const auto of = [](int gpus) {
    return first_accepted(galvatron(), problem_of({offer_of("A100-40", gpus)}, Faults::kept));
  };
  expect_outcome(of(32), 0.101158, 0.016449, 0.32279, 0, "32");
  expect_outcome(of(80), 0.154661, 0.031926, 0.42224, 0, "80");
  expect_outcome(of(128), 0.287309, 0.060256, 0.45459, 0, "128");
  EXPECT_EQ(of(32).plan, "P4 D4 T2 b2");
  EXPECT_EQ(of(80).plan, "P8 D4 T2 b2");
  EXPECT_EQ(of(128).plan, "P8 D8 T2 b2");
  for (const Objective objective : {Objective::cost, Objective::throughput})
    expect_outcome(first_accepted(galvatron(), four_offers(Faults::kept, objective)), 0.287309, 0.060256, 0.45459, 0,
                   "11, 12");
}

TEST(Galvatron, EstimatesTheRunsOfTheArtifact) {
  expect_estimates(galvatron(),
                   {0.1178, 3.7711, 2.3569, 1.8856, 2.2391, 2.1213, 3.7711, 7.8958, 7.7779, 7.5422, 7.8958, 7.7779,
                    4.0068, 3.7855, 4.1247},
                   {});
}

// 24 blocks of 48.0449 / 4 MiB, one sequence of 96.5156 MiB each, and the whole model's other 557.4658 MiB + 1 GiB.
TEST(Galvatron, EstimatesMemoryFromThePublishedProfile) {
  const auto estimate = galvatron().estimate(validation_plan(validation_runs()[0]), problem_of({}, Faults::kept, 1));
  ASSERT_TRUE(estimate) << estimate.error().message();
  EXPECT_NEAR(estimate->peak_memory->value() / mib.value(), 24 * (48.0449 / 4 + 96.5156) + 557.4658 + 1024.0, 1e-6);
}

// 2.786 ms of the common profile instead of 6.3; 12,596,224 parameters of 20 bytes; 90,181,632 activations of 4 bytes.
TEST(Galvatron, TakesTheCommonProfileUnlessFaultsAreKept) {
  const auto kept = galvatron_profile(problem_of({}, Faults::kept), offer_of("A100-40", 32));
  const auto fixed = galvatron_profile(problem_of({}, Faults::fixed), offer_of("A100-40", 32));
  ASSERT_TRUE(kept && fixed);
  EXPECT_DOUBLE_EQ(kept->forward_ms, 6.3);
  EXPECT_NEAR(fixed->forward_ms, 2.786, 5e-4);
  EXPECT_NEAR(fixed->states_mib, 12596224 * 20.0 / mib.value(), 1e-9);
  EXPECT_NEAR(fixed->activation.at(1), 90181632 * 4.0 / mib.value(), 1e-9);
  // Inside a node is faster than between nodes only where nodes have several GPUs.
  EXPECT_DOUBLE_EQ(kept->collective(4, true), kept->collective(4, false));
  EXPECT_LT(fixed->collective(4, true), fixed->collective(4, false) / 5);
}

// 2 (n - 1) / n messages over busbw are the ring's time: 64 MiB over 4 ranks, three quarters of it twice.
TEST(Galvatron, CountsTheRingsFactorOnceUnlessFaultsAreKept) {
  const Problem problem = problem_of({}, Faults::fixed);
  const auto profile = galvatron_profile(problem, offer_of("A100-40", 32));
  ASSERT_TRUE(profile);
  const LinkCoefficients* link = problem.inputs.inter("A100-40", "us-central1-a", 4, "A100-40", "us-central1-a", 4);
  ASSERT_NE(link, nullptr);
  const double ms = 2.0 * 3 / 4 * 64.0 * profile->collective(4, false);
  EXPECT_NEAR(ms / 1000.0, link->all_reduce(64.0 * mib.value(), 4), 0.02 * ms / 1000.0);
}

// 4 stages, 8 replicas of tensor parallel 1, 128 chunks of 1 sequence: 128 - 1 + 4 times activation and gradient of
// 2048 x 1024 floats over the link, at every stage but the last.
TEST(Galvatron, TransfersBetweenStagesTakeTimeUnlessFaultsAreKept) {
  const Problem problem = problem_of({}, Faults::fixed);
  auto profile = galvatron_profile(problem, offer_of("A100-40", 32));
  ASSERT_TRUE(profile);
  const std::vector<std::vector<galvatron_detail::Strategy>> stages(4, {6, {4, 1, 8, true}});
  const double with = pipeline_time(*profile, stages, 1024, 128);
  profile->has_transfers = false;
  const double without = pipeline_time(*profile, stages, 1024, 128);
  const LinkCoefficients* link = problem.inputs.inter("A100-40", "us-central1-a", 4, "A100-40", "us-central1-a", 4);
  EXPECT_NEAR(with - without, 131 * 2 * link->send(2048.0 * 1024.0 * 4.0), 1e-9);
  EXPECT_FALSE(galvatron_profile(problem_of({}, Faults::kept), offer_of("A100-40", 32))->has_transfers);
}

TEST(Galvatron, ProposesOnlyMeasuredMicroBatchesAndItsOwnLayersUnlessFaultsAreKept) {
  const Problem problem = problem_of({offer_of("A100-40", 64)}, Faults::fixed);
  const auto proposals = galvatron().plan(problem);
  ASSERT_TRUE(proposals) << proposals.error().message();
  for (const Proposal& proposal : proposals->plans) {
    const auto score = evaluate(proposal.plan, problem.inputs, problem.job, problem.faults);
    ASSERT_TRUE(score) << score.error().message();
    const auto& stages = proposal.plan.pipelines.front().stages;
    EXPECT_EQ(stages.front().layers.first, 0);
    EXPECT_EQ(stages.back().layers.last, 26);
    if (stages.size() == 4) {  // 6 blocks each, the embedding and the head beside them
      EXPECT_EQ(stages.front().layers.last, 7);
      EXPECT_EQ(stages.back().layers.first, 19);
    }
    const auto estimate = galvatron().estimate(proposal.plan, problem);
    ASSERT_TRUE(estimate) << estimate.error().message();
    EXPECT_NEAR(1.0 / estimate->iteration_time->value(), *proposal.throughput, 1e-9) << describe(proposal.plan);
  }
}

// With 32 GPUs and c chunks, p stages have micro-batches of ceil(32 p / c), which must be 1, 2 or 4. As published one
// number of stages that misses this ends the search of c: 16 stages need c >= 128, for which fewer than 4 have too few
// samples. So only 128, 256 and 512 chunks are left.
TEST(Galvatron, SearchesFewStagesUnlessFaultsAreKept) {
  const auto fewest_stages = [](const Proposals& proposals) {
    std::size_t fewest = 99;
    for (const Proposal& proposal : proposals.plans)
      fewest = std::min(fewest, proposal.plan.pipelines.front().stages.size());
    return fewest;
  };
  const auto kept = galvatron().plan(problem_of({offer_of("A100-40", 32)}, Faults::kept));
  ASSERT_TRUE(kept) << kept.error().message();
  EXPECT_EQ(kept->plans.size(), 3U);
  EXPECT_GE(fewest_stages(*kept), 4U);
  const auto fixed = galvatron().plan(problem_of({offer_of("A100-40", 32)}, Faults::fixed));
  ASSERT_TRUE(fixed) << fixed.error().message();
  EXPECT_LT(fewest_stages(*fixed), 4U);
}

TEST(Galvatron, PlansClustersLargerThanItsPublishedProfile) {
  const auto proposals = galvatron().plan(problem_of({offer_of("A100-40", 256)}, Faults::kept));
  ASSERT_TRUE(proposals) << proposals.error().message();
}

TEST(Galvatron, DoesNotPlanAnotherBatchUnlessFaultsAreKept) {
  const auto kept = galvatron().plan(problem_of({offer_of("A100-40", 32)}, Faults::kept, 30));
  ASSERT_TRUE(kept) << kept.error().message();
  EXPECT_EQ(kept->notes.front(), "Galvatron plans a global batch of 32 instead of 30, as in the artifact");
  const auto fixed = galvatron().plan(problem_of({offer_of("A100-40", 32)}, Faults::fixed, 30));
  ASSERT_FALSE(fixed);
  EXPECT_EQ(fixed.error().code, ErrorCode::infeasible);
  EXPECT_NE(fixed.error().message().find("30 is not a multiple of the 4 GPUs of a node"), std::string::npos)
      << fixed.error().message();
}

}  // namespace
}  // namespace sailor::planner::baselines::galvatron_test
