// How published planners are asked and judged, with planners of the test's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "planner/baselines/harness.hpp"
#include "planner/baselines/plan_list_json.hpp"
#include "simulator/framework.hpp"
#include "tests/fakes/published_profiles.hpp"

namespace sailor::planner::baselines::harness_test {
namespace {

using testing::published;
using testing::published_gpus;

const std::string zone_a = "us-central1-a";
const std::string zone_b = "us-central1-b";

/// Proposes what the test says, and keeps what it was given.
class Scripted : public Baseline {
 public:
  using Script = std::function<Result<Proposals>(const Problem&)>;
  explicit Scripted(std::string name, Script script) : name_(std::move(name)), script_(std::move(script)) {}
  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::string_view title() const override { return "Scripted"; }
  [[nodiscard]] std::string_view citation() const override { return "nobody"; }
  [[nodiscard]] std::string_view summary() const override { return "says what the test wants"; }
  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override {
    given.push_back(problem.offers);
    return script_(problem);
  }
  [[nodiscard]] Result<Estimate> estimate(const PlanList&, const Problem&) const override { return Estimate{}; }

  mutable std::vector<std::vector<Offer>> given;

 private:
  std::string name_;
  Script script_;
};

class Harness : public ::testing::Test {
 protected:
  static const Inputs& inputs() {
    static const Model model = testing::published_model("OPT-350");
    static const Inputs inputs =
        Inputs::build(testing::published_job("OPT-350", 1024), model, published(), published_gpus()).value();
    return inputs;
  }
  static TrainingJob inputs_job() { return testing::published_job("OPT-350", 1024); }
  static Problem problem(std::vector<Offer> offers, Faults faults = Faults::fixed) {
    return {.inputs = inputs(),
            .job = testing::published_job("OPT-350", 1024),
            .offers = std::move(offers),
            .faults = faults};
  }
  static PlanList grid(int stages, int replicas, int tensor_parallel, int micro_batch, const std::string& zone = zone_a,
                       const std::string& gpu = "A100-40") {
    return grid_plan(26, stages, replicas, tensor_parallel, micro_batch,
                     {.gpu = gpu, .gpus_per_node = 4, .zone = zone});
  }
  static Proposals proposals(const std::vector<PlanList>& plans) {
    Proposals proposals;
    for (const PlanList& plan : plans) proposals.plans.push_back({.plan = plan, .throughput = {}, .cost = {}});
    return proposals;
  }
  /// Two zones of A100-40 and V100-16.
  static std::vector<Offer> four_offers(int gpus = 128) {
    return {{"A100-40", zone_a, gpus, 4},
            {"A100-40", zone_b, gpus, 4},
            {"V100-16", zone_a, gpus, 4},
            {"V100-16", zone_b, gpus, 4}};
  }
  HarnessAnswer ask_about(const Baseline& baseline, const Problem& posed, Judge judge, std::size_t most = 10) {
    const auto answer =
        ask(baseline, posed, {.simulated = environment_, .judge = judge, .memory_margin = 0.0, .max_plans = most});
    EXPECT_TRUE(answer.has_value()) << answer.error().message();
    return answer.value_or(HarnessAnswer{});
  }

  Model model_ = testing::published_model("OPT-350");
  simulator::Framework framework_ =
      simulator::find_framework("megatron-deepspeed", testing::published_folder / "frameworks").value();
  Cluster cluster_ =
      testing::cluster_of({{"A100-40", 128}, {"A100-40", 128, zone_b}, {"V100-16", 128}, {"V100-16", 128, zone_b}});
  simulator::Environment environment_{
      .model = model_, .profile = published(), .gpus = published_gpus(), .framework = framework_, .cluster = &cluster_};
};

std::vector<std::string> texts(const std::vector<Offer>& offers) {
  std::vector<std::string> texts;
  for (const Offer& offer : offers) texts.push_back(offer.gpu + " " + offer.zone + " " + std::to_string(offer.gpus));
  return texts;
}

TEST_F(Harness, KeptGivesEachPlannerWhatTheArtifactGivesIt) {
  std::vector<Offer> offers = four_offers();
  offers[0].gpus = 32;
  const auto given = [&](Scope scope) {
    const auto sets = offer_sets(scope, offers, Faults::kept);
    EXPECT_EQ(sets.size(), 1U);
    return texts(sets.front());
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(given(Scope::everything), texts(offers));
  EXPECT_EQ(given(Scope::one_zone), (Texts{"A100-40 us-central1-b 128", "V100-16 us-central1-b 128"}));
  EXPECT_EQ(given(Scope::one_type), (Texts{"A100-40 us-central1-a 32", "A100-40 us-central1-b 128"}));
  EXPECT_EQ(given(Scope::one_offer), (Texts{"A100-40 us-central1-a 32"}));
  // A type that the last zone lacks keeps its number, under the name of that zone.
  offers.pop_back();
  EXPECT_EQ(given(Scope::one_zone), (Texts{"A100-40 us-central1-a 128", "V100-16 us-central1-a 128"}));
}

TEST_F(Harness, FixedAsksWithEverythingThatAPlannerCanUseAndTakesTheBest) {
  EXPECT_EQ(offer_sets(Scope::one_zone, four_offers(), Faults::fixed).size(), 2U);
  EXPECT_EQ(offer_sets(Scope::one_type, four_offers(), Faults::fixed).size(), 2U);
  std::vector<Offer> offers = four_offers(32);
  offers[1].gpus = 128;
  const Scripted galvatron("galvatron", [](const Problem& posed) -> Result<Proposals> {
    const Offer& offer = posed.offers.front();
    if (offer.gpu != "A100-40") return fail(ErrorCode::not_found, "no times of " + offer.gpu);
    return proposals({grid(1, offer.gpus / 4, 4, 8, offer.zone)});
  });
  const auto answer = ask_about(galvatron, problem(offers), Judge::artifact);
  EXPECT_EQ(galvatron.given.size(), 4U);
  ASSERT_EQ(answer.plans.size(), 1U);
  EXPECT_EQ(texts(answer.offers), (std::vector<std::string>{"A100-40 us-central1-b 128"}));
  EXPECT_EQ(answer.notes.back(), "Scripted can use one offer at a time: the best of 4 is 128 A100-40 in us-central1-b");
}

TEST_F(Harness, TheFirstPlanThatFitsAndKeepsTheLimitsIsTheResultNotTheBest) {
  // By the artifact: does not fit; 0.125 and 0.418 iterations/s at 0.261 and 0.313 USD; does not fit.
  const Scripted planner("amp", [](const Problem&) {
    return proposals({grid(1, 32, 1, 8), grid(1, 8, 4, 8), grid(1, 32, 4, 8), grid(1, 32, 2, 8)});
  });
  Problem posed = problem({{"A100-40", zone_a, 128, 4}}, Faults::kept);
  auto answer = ask_about(planner, posed, Judge::artifact);
  ASSERT_EQ(answer.plans.size(), 2U);
  EXPECT_EQ(answer.proposed, 4U);
  EXPECT_EQ(answer.did_not_fit, 1U) << "what comes after the first that is accepted does not count";
  EXPECT_NEAR(1.0 / answer.plans[0].iteration_time.value(), 0.125107, 6e-7);
  EXPECT_NEAR(answer.plans[0].cost.value(), 0.26100, 6e-6);
  posed.min_throughput = 0.2;
  answer = ask_about(planner, posed, Judge::artifact);
  ASSERT_EQ(answer.plans.size(), 1U);
  EXPECT_EQ(answer.rejected_by_limits, 1U);
  EXPECT_NEAR(1.0 / answer.plans[0].iteration_time.value(), 0.417528, 6e-7);
  posed.max_cost = Usd(0.3);
  answer = ask_about(planner, posed, Judge::artifact);
  EXPECT_TRUE(answer.plans.empty());
  EXPECT_EQ(answer.did_not_fit, 2U);
  EXPECT_EQ(answer.rejected_by_limits, 2U);
}

TEST_F(Harness, TheSimulatorLooksAtEveryRankAndSaysBothVerdicts) {
  const Scripted planner("amp", [](const Problem&) { return proposals({grid(1, 32, 1, 8), grid(1, 32, 4, 8)}); });
  const auto answer = ask_about(planner, problem({{"A100-40", zone_a, 128, 4}}), Judge::simulator);
  ASSERT_EQ(answer.plans.size(), 1U);
  EXPECT_EQ(answer.did_not_fit, 1U);
  const JudgedPlan& best = answer.plans.front();
  ASSERT_TRUE(best.plan.has_value());
  ASSERT_TRUE(best.artifact.has_value());
  const auto prediction = simulator::simulate(*best.plan, environment_).value();
  EXPECT_EQ(best.iteration_time, prediction.iteration_time);
  EXPECT_EQ(best.cost, prediction.cost_per_iteration);
  EXPECT_FALSE(best.is_bound);
  EXPECT_NEAR(1.0 / best.artifact->iteration_time.value(), 0.417528, 6e-7);
}

TEST_F(Harness, PlansThatTakeMoreThanThereIsAreLeftOutUnlessFaultsAreKept) {
  const Scripted planner("sailor", [](const Problem&) { return proposals({grid(1, 33, 4, 8), grid(1, 8, 4, 8)}); });
  const std::vector<Offer> offers{{"A100-40", zone_a, 128, 4}};
  auto answer = ask_about(planner, problem(offers), Judge::artifact);
  ASSERT_EQ(answer.plans.size(), 1U);
  EXPECT_EQ(answer.not_available, 1U);
  EXPECT_EQ(answer.notes.front(), "a plan takes more than there is: 132 A100-40 in us-central1-a of 128");
  answer = ask_about(planner, problem(offers, Faults::kept), Judge::artifact);
  EXPECT_EQ(answer.plans.size(), 2U);
  EXPECT_NE(answer.notes.front().find("judged all the same, as published"), std::string::npos);
}

TEST_F(Harness, WhatCannotBeJudgedIsSkippedAndToldOnce) {
  const Scripted planner("sailor", [](const Problem&) {
    return proposals({grid(1, 8, 4, 8), grid(1, 8, 1, 16), grid(1, 8, 1, 32), grid(1, 8, 1, 64)});
  });
  const auto answer = ask_about(planner, problem({{"A100-40", zone_a, 128, 4}}), Judge::artifact);
  EXPECT_EQ(answer.plans.size(), 1U);
  EXPECT_EQ(answer.not_judged, 0U) << "after the first that is accepted";
  ASSERT_EQ(answer.notes.size(), 1U);
  EXPECT_EQ(
      answer.notes.front(),
      "the artifact's evaluator cannot judge P1 D8 T1 b16: the profile has no times of A100-40 with micro-batch 16 "
      "and tensor parallel 1");
}

TEST_F(Harness, NodesMustHoldTheGroupsAndAJobMayHaveSoMany) {
  // 12 devices on 4 nodes of 3 are 3 groups of 4 by number, but none fits a node.
  cluster_ = testing::cluster_of({{"A100-40", 12, zone_a, 3}});
  const Scripted planner("sailor", [](const Problem&) { return proposals({grid(1, 3, 4, 8), grid(1, 8, 1, 2)}); });
  const std::vector<Offer> offers{{"A100-40", zone_a, 12, 3}};
  const auto answer = ask_about(planner, problem(offers), Judge::artifact);
  ASSERT_EQ(answer.plans.size(), 1U);
  EXPECT_EQ(answer.not_available, 1U);
  const auto limited = ask(planner, problem(offers), {.simulated = environment_, .max_nodes = 2}).value();
  EXPECT_TRUE(limited.plans.empty());
  EXPECT_EQ(limited.not_available, 2U);
}

TEST_F(Harness, APlannerWithoutAPlanIsNoErrorButItsOtherErrorsAre) {
  ErrorCode code = ErrorCode::infeasible;
  const Scripted planner("piper", [&](const Problem&) -> Result<Proposals> { return fail(code, "no"); });
  const auto answer = ask_about(planner, problem({{"A100-40", zone_a, 128, 4}}), Judge::artifact);
  EXPECT_TRUE(answer.plans.empty());
  EXPECT_EQ(answer.notes.front(), "128 A100-40 in us-central1-a: no");
  code = ErrorCode::not_found;
  EXPECT_FALSE(ask(planner, problem({{"A100-40", zone_a, 128, 4}}), {.simulated = environment_}).has_value());
}

TEST_F(Harness, TheTimeLimitReachesThePlannerAndTheAnswer) {
  const Scripted planner("piper", [](const Problem& posed) -> Result<Proposals> {
    Proposals found = proposals({grid(1, 8, 4, 8)});
    found.out_of_time = posed.is_over();
    return found;
  });
  Problem posed = problem(four_offers());
  EXPECT_FALSE(ask_about(planner, posed, Judge::artifact).out_of_time);
  posed.time_limit = Seconds(0.0);
  const auto answer = ask_about(planner, posed, Judge::artifact);
  EXPECT_TRUE(answer.out_of_time);
  EXPECT_EQ(answer.plans.size(), 1U) << "what was found counts";
}

// Piper's plans for 32 and 80 A100-40.
TEST_F(Harness, ListsThatNoPlanCanSayAreJudgedByABoundInTheirFavour) {
  const auto uneven = [](const std::vector<std::pair<int, int>>& stages) {
    PlanList list{.pipelines = {{}}, .micro_batch = 1};
    int first = 0;
    for (const auto& [layers, replicas] : stages) {
      ListStage stage{.layers = {first, first + layers}, .replicas = {}};
      stage.replicas.resize(static_cast<std::size_t>(replicas),
                            {.machines = {{"A100-40", 4, zone_a}}, .tensor_parallel = 1});
      list.pipelines.front().stages.push_back(std::move(stage));
      first += layers;
    }
    return list;
  };
  const PlanList list = uneven({{7, 8}, {6, 8}, {13, 16}});
  const auto bound = predict_list(list, inputs_job(), environment_, 0.0);
  ASSERT_TRUE(bound.has_value()) << bound.error().message();
  EXPECT_TRUE(bound->is_bound);
  // Fewer replicas where there are more, and the other way round.
  const auto fewer = predict_list(uneven({{7, 8}, {6, 8}, {13, 8}}), inputs_job(), environment_, 0.0).value();
  const auto more = predict_list(uneven({{7, 16}, {6, 16}, {13, 16}}), inputs_job(), environment_, 0.0).value();
  EXPECT_FALSE(fewer.is_bound);
  EXPECT_LT(bound->iteration_time, fewer.iteration_time);
  EXPECT_LT(bound->peak_memory, fewer.peak_memory * 1.0001);
  // 1024 micro-batches over 8 replicas of the first stage take at least so long.
  const Plan whole = to_plan(uneven({{7, 8}, {6, 8}, {13, 8}}), inputs_job()).value();
  const auto prediction = simulator::simulate(whole, environment_).value();
  Seconds busiest{};
  for (const auto& stage : prediction.stages)
    if (stage.stage == 0) busiest = std::max(busiest, stage.forward + stage.backward);
  EXPECT_GE(bound->iteration_time, busiest * 128.0);
  EXPECT_GT(bound->cost.value(), 0.0);
  EXPECT_LT(more.iteration_time, fewer.iteration_time);
}

TEST_F(Harness, AGroupOverTwoNodesIsBoundedByHalfOfWhatOneNodeTakes) {
  PlanList two_nodes = grid(2, 4, 8, 2);
  two_nodes.grid = false;
  for (ListStage& stage : two_nodes.pipelines.front().stages)
    for (Replica& replica : stage.replicas) replica.machines.push_back(replica.machines.front());
  const auto spread = predict_list(two_nodes, inputs_job(), environment_, 0.0);
  ASSERT_TRUE(spread.has_value()) << spread.error().message();
  EXPECT_TRUE(spread->is_bound);
  const auto one_node = bound_of_list(grid(2, 4, 4, 2), inputs_job(), environment_, 0.0).value();
  EXPECT_NEAR(spread->iteration_time / one_node.iteration_time, 0.5, 1e-9);
  EXPECT_NEAR(spread->cost / one_node.cost, 1.0, 1e-9);
  EXPECT_LT(spread->peak_memory, one_node.peak_memory);
  EXPECT_GT(spread->peak_memory, one_node.peak_memory * 0.5) << "a process takes what it takes";
}

// One micro-batch goes through all stages and back, whatever their number.
TEST_F(Harness, TheBoundCountsTheWayToAStageAndBack) {
  TrainingJob one = inputs_job();
  one.global_batch = 1;
  const PlanList list = grid(4, 1, 1, 1);
  const auto bound = bound_of_list(list, one, environment_, 0.0).value();
  const auto prediction = simulator::simulate(to_plan(list, one).value(), environment_).value();
  Seconds passes{};
  for (const auto& stage : prediction.stages) passes += stage.forward + stage.backward;
  EXPECT_GE(bound.iteration_time, passes);
  EXPECT_LE(bound.iteration_time, prediction.iteration_time);
}

// The bound is one of every plan, so also of those that the simulator can say exactly.
TEST_F(Harness, TheBoundIsNeverAboveWhatTheSimulatorSays) {
  for (const PlanList& list :
       {grid(1, 8, 4, 8), grid(2, 32, 1, 1), grid(4, 4, 2, 2), grid(8, 8, 2, 2), grid(13, 2, 1, 1), grid(2, 3, 4, 4)})
    for (const char* name : {"megatron-deepspeed", "sailor"}) {
      SCOPED_TRACE(describe(list) + " " + name);
      const auto framework = simulator::find_framework(name, testing::published_folder / "frameworks").value();
      const simulator::Environment environment{.model = model_,
                                               .profile = published(),
                                               .gpus = published_gpus(),
                                               .framework = framework,
                                               .cluster = &cluster_};
      const auto exact = predict_list(list, inputs_job(), environment, 0.0).value();
      const auto bound = bound_of_list(list, inputs_job(), environment, 0.0).value();
      ASSERT_FALSE(exact.is_bound);
      EXPECT_LE(bound.iteration_time, exact.iteration_time * (1.0 + 1e-9));
      EXPECT_LE(bound.cost, exact.cost * (1.0 + 1e-9));
      EXPECT_LE(bound.peak_memory, exact.peak_memory * (1.0 + 1e-9));
      EXPECT_GE(bound.iteration_time, exact.iteration_time * 0.35) << "a bound that says nothing";
    }
}

TEST_F(Harness, ListsComeBackFromTheArtifactsJson) {
  PlanList list = grid(3, 2, 4, 2);
  list.grid = false;
  list.pipelines.push_back(list.pipelines.front());
  list.pipelines[0].stages[1].replicas.pop_back();
  list.pipelines[0].stages[0].replicas[1].machines.push_back({"GH200-96", 2, zone_b});
  const std::string json = plan_list_to_json(list, 1024);
  EXPECT_NE(json.find("GH-96"), std::string::npos) << "the artifact's name";
  const auto name = [](std::string_view gpu) -> Result<std::string> {
    const auto found = published_gpus().find(gpu);
    if (!found) return fail(found.error());
    return found->name;
  };
  const auto back = parse_plan_list(json, "list.json", name);
  ASSERT_TRUE(back.has_value()) << back.error().message();
  EXPECT_EQ(back->global_batch, 1024);
  EXPECT_EQ(plan_list_to_json(back->list, 1024), json);
  EXPECT_EQ(back->list.pipelines[0].stages[0].replicas, list.pipelines[0].stages[0].replicas);
  const auto error_of = [&](const std::string& from, const std::string& to) {
    std::string text = json;
    text.replace(text.find(from), from.size(), to);
    const auto parsed = parse_plan_list(text, "list.json", name);
    EXPECT_FALSE(parsed.has_value());
    return parsed ? std::string() : parsed.error().message();
  };
  EXPECT_EQ(error_of("\"dp\":[2,1,2]", "\"dp\":[2,2,2]"),
            "list.json: pipeline_list[0].dp[1]: is 2 but tmp_per_stage has 1 data-parallel replica");
  EXPECT_EQ(error_of("[[0,1,", "[[1,"),
            "list.json: pipeline_list[0].layers_per_stage[0]: begins with layer 1, but the next is 0; the stages of a "
            "pipeline hold every layer once");
}

}  // namespace
}  // namespace sailor::planner::baselines::harness_test
