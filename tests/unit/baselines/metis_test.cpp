// The planner Metis against what the artifact of the Sailor paper answered, and its parts by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "planner/baselines/baseline.hpp"
#include "planner/baselines/harness.hpp"
#include "planner/baselines/metis_balancer.hpp"
#include "planner/baselines/metis_groups.hpp"
#include "tests/fakes/published_profiles.hpp"
#include "tests/unit/baselines/gh200_runs.hpp"

namespace sailor::planner::baselines::metis_test {
namespace {

const std::string zone_a = "us-central1-a";

TrainingJob opt_job(int batch = 1024) { return testing::published_job("OPT-350", batch); }

const Inputs& opt_inputs() {
  static const Model model = testing::published_model("OPT-350");
  static const Inputs inputs = Inputs::build(opt_job(), model, testing::published(), testing::published_gpus()).value();
  return inputs;
}

Problem problem_of(std::vector<Offer> offers, Faults faults, std::uint64_t work_limit = 20000) {
  return {.inputs = opt_inputs(),
          .job = opt_job(),
          .offers = std::move(offers),
          .faults = faults,
          .work_limit = work_limit};
}

// Figures 7, 8b, 12 and 11: the first plan that fits, by the artifact's planner and evaluator. Of the GPUs of figures
// 11 and 12 it is given half. The digits are those that were printed.
TEST(Metis, ProposesThePlansOfTheArtifactsFigures) {
  struct Golden {
    std::string zone;
    int a100;
    int v100;
    std::uint64_t seed;
    std::optional<double> estimate;
    double tolerance;
    double throughput;
    double usd;
    double digits;
    int out_of_memory;
    std::string plan;
  };
  const std::string zone_b = "us-central1-b";
  for (const Golden& golden :
       {Golden{zone_a, 32, 0, 0, 0.000154, 5e-7, 0.120617, 0.27071, 1e-5, 1, "b2 26"},
        Golden{zone_a, 80, 0, 0, 0.000300, 5e-7, 0.187844, 0.34765, 1e-5, 1, "b2 26"},
        Golden{zone_a, 128, 0, 0, 0.000572, 5e-7, 0.252139, 0.51801, 1e-5, 1, "b2 26"},
        Golden{zone_a, 32, 96, 0, 0.000265701554, 5e-13, 0.124296, 0.87629, 1e-5, 0, "b2 5 8 13"},
        Golden{zone_a, 80, 240, 0, 0.000359865463, 5e-13, 0.227318, 0.51095, 1e-5, 0, "b1 7 19"},
        Golden{zone_a, 128, 384, 0, 0.000812255641, 5e-13, 0.429228, 1.01502, 1e-5, 0, "b1 5 8 13"},
        Golden{zone_b, 128, 128, 0, {}, 0.0, 0.3125, 0.743, 1e-3, 0, "b1 7 19"},
        Golden{zone_b, 128, 128, 1, {}, 0.0, 0.3876, 0.599, 1e-3, 0, "b1 11 10 5"}}) {
    std::vector<Offer> offers{{"A100-40", golden.zone, golden.a100, 4}};
    if (golden.v100 > 0) offers.push_back({"V100-16", golden.zone, golden.v100, 4});
    Problem problem = problem_of(offers, Faults::kept);
    problem.seed = golden.seed;
    const auto proposals = metis().plan(problem);
    ASSERT_TRUE(proposals.has_value()) << proposals.error().message();
    int out_of_memory = 0;
    for (const Proposal& proposal : proposals->plans) {
      const auto score = evaluate(proposal.plan, opt_inputs(), opt_job(), Faults::kept);
      ASSERT_TRUE(score.has_value()) << score.error().message();
      if (!score->fits) {
        ++out_of_memory;
        continue;
      }
      EXPECT_NEAR(*proposal.throughput, golden.estimate.value_or(*proposal.throughput), golden.tolerance);
      EXPECT_NEAR(1.0 / score->iteration_time.value(), golden.throughput, 0.06 * golden.digits);
      EXPECT_NEAR(score->cost.value(), golden.usd, 0.6 * golden.digits);
      std::string plan = "b" + std::to_string(proposal.plan.micro_batch);
      for (const ListStage& stage : proposal.plan.pipelines.front().stages)
        plan += " " + std::to_string(stage.layers.size());
      EXPECT_EQ(plan, golden.plan);
      break;
    }
    EXPECT_EQ(out_of_memory, golden.out_of_memory) << golden.a100 << " A100, " << golden.v100 << " V100";
  }
}

// What the artifact's validation prints: times have 4 decimals, memory 3.
TEST(Metis, ExpectsOfGh200RunsWhatTheArtifactExpects) {
  for (const testing::Gh200Run& run : testing::gh200_runs) {
    Problem problem = problem_of({}, Faults::kept);
    problem.job.global_batch = run.global_batch;
    const auto estimate = metis().estimate(testing::list_of(run), problem);
    ASSERT_TRUE(estimate.has_value()) << estimate.error().message();
    EXPECT_NEAR(estimate->iteration_time->value(), run.metis_s, 6e-5);
    EXPECT_NEAR(estimate->peak_memory->value() / 1e9, run.metis_gb, 6e-4);
  }
}

// With all orders of types gone through, the artifact's second one starts with two stages of which it counts the first.
TEST(Metis, CountsTwoStagesAsOneOnlyWhereFaultsAreKept) {
  const auto times_listed = [](Faults faults) {
    const auto proposals =
        metis().plan(problem_of({{"A100-40", zone_a, 4, 4}, {"V100-16", zone_a, 4, 4}}, faults)).value();
    const std::string best = describe(proposals.plans.front().plan);
    return std::count_if(proposals.plans.begin(), proposals.plans.end(),
                         [&](const Proposal& proposal) { return describe(proposal.plan) == best; });
  };
  EXPECT_EQ(times_listed(Faults::kept), 2);
  EXPECT_EQ(times_listed(Faults::fixed), 1);
}

// The repaired one: seconds, 20 nodes of 20, the optimizer's step once, machines by node.
TEST(Metis, UsesAllNodesAndSpeaksOfSecondsWhenFaultsAreFixed) {
  const auto proposals = metis().plan(problem_of({{"A100-40", zone_a, 80, 4}}, Faults::fixed));
  ASSERT_TRUE(proposals.has_value()) << proposals.error().message();
  const Proposal& best = proposals->plans.front();
  EXPECT_EQ(best.plan.gpus().at("A100-40"), 80);
  const auto score = evaluate(best.plan, opt_inputs(), opt_job(), Faults::fixed);
  ASSERT_TRUE(score.has_value());
  // Not the same model, but the same unit.
  EXPECT_GT(*best.throughput * score->iteration_time.value(), 0.5);
  EXPECT_LT(*best.throughput * score->iteration_time.value(), 5.0);
  for (const Proposal& proposal : proposals->plans) {
    EXPECT_EQ(proposal.plan.pipelines.front().stages.back().layers.last, opt_inputs().layers());
    for (const ListStage& stage : proposal.plan.pipelines.front().stages)
      for (const Replica& replica : stage.replicas)
        EXPECT_LE(replica.machines.size(), static_cast<std::size_t>((replica.tensor_parallel + 6) / 4));
  }
}

// The work limit is shared by the orders of GPU types.
TEST(Metis, TriesEveryTypeInTheFirstStage) {
  const auto proposals =
      metis().plan(problem_of({{"A100-40", zone_a, 32, 4}, {"V100-16", zone_a, 32, 4}}, Faults::fixed, 500));
  ASSERT_TRUE(proposals.has_value());
  std::set<std::string> first;
  for (const Proposal& proposal : proposals->plans)
    first.insert(proposal.plan.pipelines.front().stages.front().replicas.front().machines.front().gpu);
  EXPECT_EQ(first, (std::set<std::string>{"A100-40", "V100-16"}));
}

TEST(Metis, ListsTheCheapestFirstWhenAsked) {
  Problem problem = problem_of({{"A100-40", zone_a, 32, 4}, {"V100-16", zone_a, 32, 4}}, Faults::fixed, 500);
  problem.objective = Objective::cost;
  const auto proposals = metis().plan(problem);
  ASSERT_TRUE(proposals.has_value());
  EXPECT_TRUE(std::is_sorted(proposals->plans.begin(), proposals->plans.end(),
                             [](const Proposal& a, const Proposal& b) { return *a.cost < *b.cost; }));
}

TEST(Metis, EndsAtItsWorkLimitAndWhenItsTimeIsUp) {
  Problem problem = problem_of({{"A100-40", zone_a, 32, 4}}, Faults::fixed, 100);
  auto proposals = metis().plan(problem);
  ASSERT_TRUE(proposals.has_value());
  EXPECT_LE(proposals->plans.size(), 100U);
  EXPECT_FALSE(proposals->out_of_time);
  EXPECT_NE(std::find(proposals->notes.begin(), proposals->notes.end(),
                      "the search ended after 100 candidates (its work limit)"),
            proposals->notes.end());
  problem.work_limit = 0;
  problem.is_over = [calls = 0]() mutable { return ++calls > 20; };
  proposals = metis().plan(problem);
  ASSERT_TRUE(proposals.has_value());
  EXPECT_TRUE(proposals->out_of_time);
  EXPECT_FALSE(proposals->plans.empty());
}

TEST(Metis, SaysWhatItCannotTake) {
  const auto no_node = metis().plan(problem_of({{"A100-40", zone_a, 3, 4}}, Faults::fixed));
  ASSERT_FALSE(no_node.has_value());
  EXPECT_EQ(no_node.error().message(), "the offers have no whole node");
  const auto unknown = metis().plan(problem_of({{"H200-141", zone_a, 8, 4}}, Faults::fixed));
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, ErrorCode::not_found);
  PlanList unequal = testing::list_of(testing::gh200_runs[5]);
  unequal.pipelines.front().stages.back().replicas.pop_back();
  const auto estimate = metis().estimate(unequal, problem_of({}, Faults::fixed));
  ASSERT_FALSE(estimate.has_value());
  EXPECT_EQ(estimate.error().message(),
            "stage 1 has 1 replicas and the first 2; this planner's cost model takes equal numbers");
}

// Of two values it is the cool-lex order of Ruskey and Williams: 1100, 0110, 1010, 0101, 0011, 1001.
TEST(MetisGroups, OrdersOfAMultisetComeByPrefixShifts) {
  std::vector<std::string> orders;
  metis_detail::visit_orders({{1}, {1}, {2}, {2}}, [&](const auto& order) {
    std::string text;
    for (const auto* block : order) text += std::to_string(block->front());
    orders.push_back(text);
    return true;
  });
  EXPECT_EQ(orders, (std::vector<std::string>{"2211", "1221", "2121", "1212", "1122", "2112"}));
}

// 8 GPUs in 3 stages: half of 8 / 3 is 1, so that groups have 1, 2 or 4.
TEST(MetisGroups, DivideDevicesIntoPowersOfTwoInAllOrders) {
  std::vector<std::vector<int>> all;
  metis_detail::visit_device_groups(8, 3, [&](const std::vector<int>& groups) {
    all.push_back(groups);
    return true;
  });
  EXPECT_EQ(all, (std::vector<std::vector<int>>{{4, 2, 2}, {2, 4, 2}, {2, 2, 4}}));
  bool is_called = false;
  EXPECT_TRUE(metis_detail::visit_device_groups(80, 2, [&](const auto&) { return is_called = true; }));
  EXPECT_FALSE(is_called);
}

// 14 groups of 32 GPUs: {1 x 4, 2 x 6, 4 x 4} has 210,210 orders; small ones keep together in pairs.
TEST(MetisGroups, OfManyStagesKeepSmallOnesTogether) {
  std::size_t count = 0;
  std::set<std::vector<int>> all;
  metis_detail::visit_device_groups(32, 14, [&](const std::vector<int>& groups) {
    EXPECT_EQ(groups.size(), 14U);
    all.insert(groups);
    return ++count < 200'000;
  });
  EXPECT_GT(count, 1000U);
  EXPECT_LT(count, 200'000U);
}

// Ten equal layers; a stage that is four times as fast gets eight of them.
TEST(MetisBalancer, GivesLayersInProportionToSpeed) {
  const std::vector<double> equal(10, 0.1);
  EXPECT_EQ(metis_detail::balance_layers({0.5, 0.5}, equal), (std::vector<int>{0, 5, 10}));
  EXPECT_EQ(metis_detail::balance_layers({0.2, 0.8}, equal), (std::vector<int>{0, 2, 10}));
  EXPECT_EQ(metis_detail::balance_layers({1.0}, equal), (std::vector<int>{0, 10}));
}

// The second stage has half of the memory that it needs: 0.5 x 0.5 x 0.9 = 0.225 stays, 0.275 moves to the first.
TEST(MetisBalancer, MovesLoadFromStagesWithoutMemory) {
  const std::vector<double> shares = metis_detail::shifted_shares({0.5, 0.5}, {20.0, 5.0}, {10.0, 10.0});
  ASSERT_EQ(shares.size(), 2U);
  EXPECT_NEAR(shares[0], 0.775, 1e-12);
  EXPECT_NEAR(shares[1], 0.225, 1e-12);
  EXPECT_TRUE(metis_detail::shifted_shares({0.5, 0.5}, {11.0, 5.0}, {10.0, 10.0}).empty());
}

}  // namespace
}  // namespace sailor::planner::baselines::metis_test
