// DTFM against the plans that the artifact's authors' planner found (random, a few samples), and its search by hand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "planner/baselines/assignment.hpp"
#include "planner/baselines/baseline.hpp"
#include "planner/baselines/dtfm_search.hpp"
#include "tests/fakes/published_profiles.hpp"

namespace sailor::planner::baselines::dtfm_test {
namespace {

using testing::published;
using testing::published_gpus;

const std::string central_a = "us-central1-a";
const std::string central_b = "us-central1-b";
const std::string west = "us-west1-b";

const Inputs& inputs() {
  static const Model model = testing::published_model("OPT-350");
  static const Inputs inputs =
      Inputs::build(testing::published_job("OPT-350", 1024), model, published(), published_gpus()).value();
  return inputs;
}

Problem problem_of(std::vector<Offer> offers, Faults faults = Faults::kept, std::uint64_t seed = 0) {
  Problem problem{.inputs = inputs(), .job = testing::published_job("OPT-350", 1024), .offers = std::move(offers)};
  problem.faults = faults;
  problem.seed = seed;
  return problem;
}

std::vector<Offer> five_zones(int gpus) {
  std::vector<Offer> offers;
  for (const std::string& zone :
       {central_a, central_b, std::string("us-central1-c"), std::string("us-central1-f"), west})
    offers.push_back({"A100-40", zone, gpus, 4});
  return offers;
}

EvaluatorScore score_of(const Proposal& proposal, const Problem& problem) {
  auto score = evaluate(proposal.plan, problem.inputs, problem.job, problem.faults);
  EXPECT_TRUE(score.has_value()) << score.error().message();
  return score.value_or(EvaluatorScore{});
}

double throughput(const EvaluatorScore& score) { return 1.0 / score.iteration_time.value(); }

/// In one zone all divisions of the devices score alike.
TEST(Dtfm, Figure7IsThatOfTheArtifact) {
  struct Golden {
    int gpus;
    double throughput;
    double usd;
  };
  for (const Golden& golden :
       {Golden{32, 0.116813, 0.27953}, Golden{80, 0.238054, 0.34291}, Golden{128, 0.323791, 0.40338}}) {
    const Problem problem = problem_of({{"A100-40", central_a, golden.gpus, 4}});
    const auto proposals = dtfm().plan(problem);
    ASSERT_TRUE(proposals.has_value()) << proposals.error().message();
    const EvaluatorScore score = score_of(proposals->plans.front(), problem);
    EXPECT_NEAR(throughput(score), golden.throughput, 6e-7) << golden.gpus;
    EXPECT_NEAR(score.cost.value(), golden.usd, 6e-6) << golden.gpus;
    EXPECT_EQ(describe(proposals->plans.front().plan), fmt::format("P2 D{} T1 b1", golden.gpus / 2));
  }
}

/// Three samples of the artifact: 0.160802 it/s twice (1.48 and 1.57 USD per iteration), 0.1314 once (4.04 USD). Ours
/// are of these kinds, and one between.
TEST(Dtfm, Figure10IsDistributedAsThatOfTheArtifact) {
  int fast = 0;
  int slow = 0;
  double fast_usd = 0.0;
  double slow_usd = 0.0;
  constexpr int seeds = 12;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Problem problem = problem_of(five_zones(32), Faults::kept, seed);
    const auto proposals = dtfm().plan(problem);
    ASSERT_TRUE(proposals.has_value()) << proposals.error().message();
    const EvaluatorScore score = score_of(proposals->plans.front(), problem);
    if (std::abs(throughput(score) - 0.160802) < 6e-7) {
      ++fast;
      fast_usd += score.cost.value();
    } else if (std::abs(throughput(score) - 0.1314) < 6e-5) {
      ++slow;
      slow_usd += score.cost.value();
    } else {
      EXPECT_NEAR(throughput(score), 0.145117, 6e-7) << seed;
    }
  }
  EXPECT_GE(fast, seeds / 2);
  EXPECT_GE(slow, 1);
  EXPECT_NEAR(fast_usd / fast / ((1.48364 + 1.57) / 2.0), 1.0, 0.05);
  EXPECT_NEAR(slow_usd / slow / 4.04, 1.0, 0.05);
}

TEST(Dtfm, Figure11IsThatOfTheArtifact) {
  const Problem problem = problem_of({{"A100-40", central_a, 128, 4},
                                      {"A100-40", central_b, 128, 4},
                                      {"V100-16", central_a, 128, 4},
                                      {"V100-16", central_b, 128, 4}});
  const auto proposals = dtfm().plan(problem);
  ASSERT_TRUE(proposals.has_value()) << proposals.error().message();
  ASSERT_EQ(proposals->plans.size(), 3U);
  std::vector<bool> fits;
  for (const Proposal& proposal : proposals->plans) fits.push_back(score_of(proposal, problem).fits);
  EXPECT_EQ(fits, (std::vector<bool>{true, false, false}));
  const EvaluatorScore score = score_of(proposals->plans.front(), problem);
  EXPECT_NEAR(throughput(score), 0.273030, 6e-7);
  EXPECT_GT(score.cost.value(), 1.2) << "the budget of figure 12, which the artifact's DTFM exceeded too";
}

TEST(Dtfm, UsesEveryDeviceOnceAndAnswersTheSameForASeed) {
  const Problem problem = problem_of({{"A100-40", central_a, 12, 4}, {"A100-40", west, 14, 4}}, Faults::fixed, 7);
  const auto proposals = dtfm().plan(problem);
  const auto again = dtfm().plan(problem);
  ASSERT_TRUE(proposals.has_value()) << proposals.error().message();
  ASSERT_TRUE(again.has_value());
  ASSERT_EQ(again->plans.size(), proposals->plans.size());
  std::set<std::size_t> numbers;
  for (std::size_t i = 0; i < proposals->plans.size(); ++i) {
    const auto& stages = proposals->plans[i].plan.pipelines.front().stages;
    numbers.insert(stages.size());
    std::map<std::string, int> used;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      for (const Replica& replica : stages[stage].replicas) ++used[replica.machines.front().zone];
      EXPECT_EQ(again->plans[i].plan.pipelines.front().stages[stage].replicas, stages[stage].replicas);
    }
    EXPECT_EQ(used, (std::map<std::string, int>{{central_a, 12}, {west, 14}}));
    EXPECT_FALSE(proposals->plans[i].throughput.has_value());
  }
  EXPECT_EQ(numbers, (std::set<std::size_t>{2, 13}));
}

/// Both parents are compared with, and the last cycle of the local search counts.
TEST(Dtfm, TheRepairedSearchFindsFasterMessages) {
  const Problem problem = problem_of(five_zones(32));
  const auto devices = dtfm_detail::Devices::build(problem);
  ASSERT_TRUE(devices.has_value());
  const dtfm_detail::Messages messages{.gradients = 8e8, .activation = 8e6};
  double kept = 0.0;
  double fixed = 0.0;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    dtfm_detail::Random one(seed);
    dtfm_detail::Random other(seed);
    kept += arrange(*devices, 2, messages, Faults::kept, one, problem.is_over).cost;
    fixed += arrange(*devices, 2, messages, Faults::fixed, other, problem.is_over).cost;
  }
  EXPECT_LT(fixed, kept);
}

TEST(Dtfm, SaysWhatItCannotTake) {
  const auto odd = dtfm().plan(problem_of({{"A100-40", central_a, 31, 4}}));
  ASSERT_FALSE(odd.has_value());
  EXPECT_EQ(odd.error().code, ErrorCode::infeasible);
  EXPECT_NE(odd.error().what.find("31 devices and global batch 1024: it uses all devices in 2 or 13 stages"),
            std::string::npos)
      << odd.error().what;
  const auto unlinked = dtfm().plan(problem_of({{"H200-141", central_a, 32, 4}}));
  ASSERT_FALSE(unlinked.has_value());
  EXPECT_EQ(unlinked.error().code, ErrorCode::not_found);
  const auto none = dtfm().plan(problem_of({}));
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::invalid_input);
  const Problem problem = problem_of({{"A100-40", central_a, 32, 4}});
  const auto estimate = dtfm().estimate({}, problem);
  ASSERT_FALSE(estimate.has_value());
  EXPECT_EQ(estimate.error().code, ErrorCode::unavailable);
}

TEST(Dtfm, EndsWhenItsTimeIsUp) {
  Problem problem = problem_of(five_zones(32));
  int asked = 0;
  problem.is_over = [&] { return ++asked > 3; };
  const auto proposals = dtfm().plan(problem);
  ASSERT_TRUE(proposals.has_value());
  EXPECT_TRUE(proposals->out_of_time);
  EXPECT_EQ(proposals->plans.size(), 1U);
}

/// Against all permutations.
TEST(Assignment, IsOfLeastSum) {
  std::mt19937 random(5);
  for (int instance = 0; instance < 200; ++instance) {
    const int size = 1 + instance % 6;
    std::vector<double> costs;
    for (int i = 0; i < size * size; ++i) costs.push_back(static_cast<double>(random() % 8));
    Assignment assignment(size, costs);
    ASSERT_TRUE(assignment.solve());
    std::vector<int> order(static_cast<std::size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    const auto sum = [&](const std::vector<int>& columns) {
      double total = 0.0;
      for (int row = 0; row < size; ++row) total += assignment.cost(row, columns[static_cast<std::size_t>(row)]);
      return total;
    };
    const double found = sum(assignment.columns());
    double least = found;
    do least = std::min(least, sum(order));
    while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(found, least);
  }
}

/// Four stages on a line, a distance of one between neighbours, drawn as 2-0-3-1.
TEST(Dtfm, OrdersStagesAlongTheShortestPath) {
  const std::array<int, 4> place{1, 3, 0, 2};
  std::vector<double> costs;
  for (const int i : place)
    for (const int j : place) costs.push_back(std::abs(i - j));
  const auto [order, length] = dtfm_detail::shortest_path(4, costs);
  EXPECT_EQ(length, 3.0);
  EXPECT_TRUE(order == (std::vector<int>{2, 0, 3, 1}) || order == (std::vector<int>{1, 3, 0, 2}));
}

TEST(Dtfm, CyclesKeepTheSizesOfStages) {
  const Problem problem = problem_of(five_zones(8));
  const auto devices = dtfm_detail::Devices::build(problem);
  ASSERT_TRUE(devices.has_value());
  dtfm_detail::Random random(3);
  int changed = 0;
  for (int instance = 0; instance < 100; ++instance) {
    std::vector<int> order(40);
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order);
    dtfm_detail::Stages stages;
    for (int stage = 0; stage < 5; ++stage) {
      stages.emplace_back(order.begin() + 8 * stage, order.begin() + 8 * (stage + 1));
      std::sort(stages.back().begin(), stages.back().end());
    }
    const auto improved =
        dtfm_detail::improve_by_cycles(*devices, stages, 1e6, instance % 2 == 0 ? Faults::kept : Faults::fixed);
    changed += improved != stages ? 1 : 0;
    std::set<int> all;
    for (const auto& stage : improved) {
      EXPECT_EQ(stage.size(), 8U);
      all.insert(stage.begin(), stage.end());
    }
    EXPECT_EQ(all.size(), 40U);
  }
  EXPECT_GT(changed, 50);
}

}  // namespace
}  // namespace sailor::planner::baselines::dtfm_test
