// The planner of the Sailor artifact and Atlas against plans and estimates of the original code (figures 7, 8b, 10, 11
// and 12 of the Sailor paper), what fixing their faults changes, and Oobleck against brute force.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "planner/baselines/baseline.hpp"
#include "planner/baselines/oobleck_templates.hpp"
#include "tests/fakes/published_profiles.hpp"

namespace sailor::planner::baselines::originals_test {
namespace {

using testing::published;
using testing::published_gpus;

struct World {
  Model model;
  TrainingJob job;
  Inputs inputs;

  World(const std::string& name, int batch)
      : model(testing::published_model(name)),
        job(testing::published_job(name, batch)),
        inputs(Inputs::build(job, model, published(), published_gpus()).value()) {}
};
const World& opt() {
  static const World world("OPT-350", 1024);
  return world;
}
const World& neo() {
  static const World world("GPT-Neo-2.7", 2048);
  return world;
}

constexpr const char* zone_a = "us-central1-a";
constexpr const char* zone_b = "us-central1-b";
constexpr const char* zone_c = "us-central1-c";
constexpr const char* west = "us-west1-b";

Problem problem_of(const World& world, std::vector<Offer> offers, Faults faults) {
  for (Offer& offer : offers) offer.gpus_per_node = 4;
  return {.inputs = world.inputs, .job = world.job, .offers = std::move(offers), .faults = faults};
}

std::vector<Offer> figure_8b(int a100s) { return {{"A100-40", zone_a, a100s}, {"V100-16", zone_a, 3 * a100s}}; }
std::vector<Offer> figure_10(int each) {
  std::vector<Offer> offers;
  for (const char* zone : {zone_a, zone_b, zone_c, "us-central1-f", west}) offers.push_back({"A100-40", zone, each});
  return offers;
}
std::vector<Offer> figure_11() {
  return {{"A100-40", zone_a, 128}, {"A100-40", zone_b, 128}, {"V100-16", zone_a, 128}, {"V100-16", zone_b, 128}};
}

/// Devices of a plan by zone.
std::map<std::string, int> devices_by_zone(const PlanList& plan) {
  std::map<std::string, int> devices;
  for (const ListPipeline& pipeline : plan.pipelines)
    for (const ListStage& stage : pipeline.stages)
      for (const Replica& replica : stage.replicas) devices[replica.machines.front().zone] += replica.tensor_parallel;
  return devices;
}

/// "2xV100-16/4" for each run of replicas of a stage, stages apart by "|".
std::string shape_of(const PlanList& plan) {
  std::string text = fmt::format("b{}", plan.micro_batch);
  for (const ListStage& stage : plan.pipelines.front().stages) {
    text += fmt::format(" | {}:", stage.layers.size());
    for (std::size_t i = 0, count = 0; i < stage.replicas.size(); i += count) {
      count = 1;
      while (i + count < stage.replicas.size() && stage.replicas[i + count] == stage.replicas[i]) ++count;
      const Machine& machine = stage.replicas[i].machines.front();
      text += fmt::format(" {}x{}/{} {}", count, machine.gpu, stage.replicas[i].tensor_parallel,
                          machine.zone.substr(machine.zone.size() - 1));
    }
  }
  return text;
}

/// What the original answers: the plan, its own estimate, and what the evaluator says of it.
struct Golden {
  double estimate;  ///< iterations/s
  double throughput;
  double cost;  ///< USD per iteration
  std::string shape;
};

void expect_golden(const Baseline& planner, const Problem& problem, const Golden& golden) {
  const auto answer = planner.plan(problem);
  ASSERT_TRUE(answer.has_value()) << golden.shape << ": " << answer.error().message();
  const Proposal& best = answer->plans.front();
  EXPECT_EQ(shape_of(best.plan), golden.shape);
  // The figures have 6 and 5 decimals.
  EXPECT_NEAR(*best.throughput, golden.estimate, 6e-7) << golden.shape;
  const auto score = evaluate(best.plan, problem.inputs, problem.job, problem.faults);
  ASSERT_TRUE(score.has_value()) << score.error().message();
  EXPECT_NEAR(1.0 / score->iteration_time.value(), golden.throughput, 6e-7) << golden.shape;
  EXPECT_NEAR(score->cost.value(), golden.cost, 6e-6) << golden.shape;
  EXPECT_TRUE(score->fits) << golden.shape;
}

TEST(ArtifactSailor, AnswersFigureSevenAsTheOriginal) {
  const std::vector<std::pair<int, Golden>> rows{{32, {0.123498, 0.125107, 0.26100, "b8 | 26: 8xA100-40/4 a"}},
                                                 {80, {0.266133, 0.272244, 0.29984, "b4 | 26: 20xA100-40/4 a"}},
                                                 {128, {0.405376, 0.417528, 0.31282, "b8 | 26: 32xA100-40/4 a"}}};
  for (const auto& [gpus, golden] : rows)
    expect_golden(artifact_sailor(), problem_of(opt(), {{"A100-40", zone_a, gpus}}, Faults::kept), golden);
}

TEST(ArtifactSailor, AnswersFigureEightAsTheOriginal) {
  const auto seven = [](int replicas) {
    const std::string v100s = fmt::format("{}xV100-16/4 a", replicas);
    const std::string a100s = fmt::format("{}xA100-40/1 a", replicas);
    return fmt::format("b1 | 3: {0} | 3: {1} | 4: {1} | 4: {1} | 4: {1} | 4: {0} | 4: {0}", v100s, a100s);
  };
  const std::vector<std::pair<int, Golden>> rows{
      {32, {0.190125, 0.169960, 0.62884, "b2 | 13: 3xA100-40/1 a 24xV100-16/4 a | 13: 27xA100-40/1 a"}},
      {80, {0.362269, 0.360914, 0.75446, seven(20)}},
      {128, {0.525746, 0.522898, 0.83319, seven(32)}}};
  for (const auto& [a100s, golden] : rows)
    expect_golden(artifact_sailor(), problem_of(opt(), figure_8b(a100s), Faults::kept), golden);
}

// The last row takes 33 groups of 4 in zone c, which has 32.
TEST(ArtifactSailor, AnswersFigureTenAsTheOriginal) {
  const std::vector<std::pair<int, Golden>> rows{
      {32, {0.405819, 0.414853, 0.44114, "b8 | 26: 8xA100-40/4 f 8xA100-40/4 c 8xA100-40/4 b 8xA100-40/4 a"}},
      {80,
       {0.751996, 0.727805, 0.66801,
        "b4 | 13: 20xA100-40/4 f 17xA100-40/4 c | 13: 3xA100-40/4 c 20xA100-40/4 b 14xA100-40/4 a"}},
      {128,
       {1.060794, 1.019782, 0.76423,
        "b4 | 13: 32xA100-40/4 f 32xA100-40/4 c | 13: 1xA100-40/4 c 32xA100-40/4 b 31xA100-40/4 a"}}};
  for (const auto& [each, golden] : rows)
    expect_golden(artifact_sailor(), problem_of(opt(), figure_10(each), Faults::kept), golden);
}

TEST(ArtifactSailor, AnswersFigureElevenAsTheOriginal) {
  Problem problem = problem_of(opt(), figure_11(), Faults::kept);
  problem.objective = Objective::cost;
  problem.min_throughput = 0.2;
  expect_golden(artifact_sailor(), problem, {0.232221, 0.234990, 0.27790, "b8 | 26: 16xA100-40/4 b"});
}

TEST(ArtifactSailor, AnswersFigureTwelveAsTheOriginal) {
  Problem problem = problem_of(opt(), figure_11(), Faults::kept);
  problem.max_cost = Usd(1.2);
  expect_golden(artifact_sailor(), problem, {0.664035, 0.662873, 0.45824, "b8 | 26: 32xA100-40/4 b 32xA100-40/4 a"});
}

TEST(ArtifactSailor, FixedTakesNoMoreOfAZoneThanThereIs) {
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    const auto answer = artifact_sailor().plan(problem_of(opt(), figure_10(128), faults));
    ASSERT_TRUE(answer.has_value());
    const auto is_within = [](const Proposal& proposal) {
      const auto devices = devices_by_zone(proposal.plan);
      return std::all_of(devices.begin(), devices.end(), [](const auto& zone) { return zone.second <= 128; });
    };
    EXPECT_EQ(std::all_of(answer->plans.begin(), answer->plans.end(), is_within), faults == Faults::fixed);
  }
}

// 32 A100 in each of two regions: the original solves single regions first and then takes "does not fit" for the
// answer where another region follows, so two stages in each never come up.
TEST(ArtifactSailor, FixedTellsApartWhichRegionsFollow) {
  const auto two_and_two = [](const Proposal& proposal) {
    const auto& stages = proposal.plan.pipelines.front().stages;
    if (stages.size() != 4) return false;
    const auto zone = [&](std::size_t stage) { return stages[stage].replicas.front().machines.front().zone; };
    return zone(0) == zone(1) && zone(1) != zone(2) && zone(2) == zone(3);
  };
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    const auto answer =
        artifact_sailor().plan(problem_of(neo(), {{"A100-40", zone_a, 32}, {"A100-40", west, 32}}, faults));
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(std::any_of(answer->plans.begin(), answer->plans.end(), two_and_two), faults == Faults::fixed);
    if (faults == Faults::kept) {
      EXPECT_NEAR(*answer->plans.front().throughput, 0.03457, 6e-6);
    }
  }
}

// The original drops every plan of several stages: 1.7862 USD with one, where three stages cost 1.6360 USD.
TEST(ArtifactSailor, FixedFindsCheapPlansOfSeveralStages) {
  std::map<Faults, double> costs;
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    Problem problem = problem_of(neo(), {{"A100-40", zone_a, 128}}, faults);
    problem.objective = Objective::cost;
    problem.min_throughput = 0.05;
    const auto answer = artifact_sailor().plan(problem);
    ASSERT_TRUE(answer.has_value());
    const auto has_stages = [](const Proposal& proposal) { return proposal.plan.pipelines.front().stages.size() > 1; };
    EXPECT_EQ(std::any_of(answer->plans.begin(), answer->plans.end(), has_stages), faults == Faults::fixed);
    for (const Proposal& proposal : answer->plans) EXPECT_GE(*proposal.throughput, 0.05);
    costs[faults] = evaluate(answer->plans.front().plan, neo().inputs, neo().job, faults)->cost.value();
  }
  EXPECT_NEAR(costs[Faults::kept], 1.7862, 6e-5);
  EXPECT_LT(costs[Faults::fixed], costs[Faults::kept]);
}

// With the evaluator's prices, more devices keep a budget of 0.3 USD than with the planner's own.
TEST(ArtifactSailor, FixedCountsWithTheJudgesPricesAndKeepsBudgets) {
  std::map<Faults, double> throughputs;
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    Problem problem = problem_of(opt(), {{"A100-40", zone_a, 128}, {"A100-40", zone_b, 128}}, faults);
    problem.max_cost = Usd(0.3);
    const auto answer = artifact_sailor().plan(problem);
    ASSERT_TRUE(answer.has_value());
    for (const Proposal& proposal : answer->plans) EXPECT_LE(proposal.cost->value(), 0.3);
    const auto score = evaluate(answer->plans.front().plan, opt().inputs, opt().job, faults);
    EXPECT_LE(score->cost.value(), 0.3);
    throughputs[faults] = 1.0 / score->iteration_time.value();
  }
  EXPECT_NEAR(throughputs[Faults::kept], 0.23499, 6e-6);
  EXPECT_GT(throughputs[Faults::fixed], throughputs[Faults::kept]);
}

// Figures 5a and 5b ask the evaluator for Sailor: 32 nodes of 4 GH200, P1 D32 T4 b8.
TEST(ArtifactSailor, EstimatesAsItsValidationDoes) {
  const PlanList plan = grid_plan(26, 1, 32, 4, 8, {.gpu = "GH200-96", .gpus_per_node = 4, .zone = zone_a});
  const auto estimate = artifact_sailor().estimate(plan, problem_of(opt(), {{"GH200-96", zone_a, 128}}, Faults::kept));
  ASSERT_TRUE(estimate.has_value()) << estimate.error().message();
  EXPECT_NEAR(estimate->iteration_time->value(), 0.9640, 6e-5);
  EXPECT_NEAR(estimate->peak_memory->value(), 30'307'358'976.0, 1.0);
}

TEST(ArtifactSailor, EndsWithWhatItHasWhenTheTimeIsUp) {
  Problem problem = problem_of(opt(), figure_8b(32), Faults::fixed);
  int questions = 0;
  problem.is_over = [&] { return ++questions > 20; };
  const auto some = artifact_sailor().plan(problem);
  ASSERT_TRUE(some.has_value()) << some.error().message();
  EXPECT_TRUE(some->out_of_time);
  problem.is_over = [] { return true; };
  const auto none = artifact_sailor().plan(problem);
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message().find("in the time that it has"), std::string::npos) << none.error().message();
}

TEST(ArtifactSailor, SaysWhatItCannotUse) {
  Problem problem = problem_of(opt(), {{"A100-40", zone_a, 8}, {"Unheard-8", zone_a, 8}}, Faults::fixed);
  const auto answer = artifact_sailor().plan(problem);
  ASSERT_TRUE(answer.has_value());
  ASSERT_EQ(answer->notes.size(), 1U);
  EXPECT_EQ(answer->notes.front(), "not used: Unheard-8 (no times in the profile)");
  problem.offers.erase(problem.offers.begin());
  EXPECT_EQ(artifact_sailor().plan(problem).error().code, ErrorCode::infeasible);
  problem.max_cost = Usd(0.0);
  EXPECT_EQ(artifact_sailor().plan(problem).error().message(),
            "a limit of 0 USD allows no plan; leave the limit out or set it above 0");
  problem.objective = Objective::throughput_per_usd;
  EXPECT_EQ(artifact_sailor().plan(problem).error().code, ErrorCode::invalid_input);
}

TEST(Atlas, AnswersFigureTenAsTheOriginal) {
  const std::vector<std::pair<int, Golden>> rows{
      {32, {0.413641, 0.413641, 0.44206, "b8 | 26: 8xA100-40/4 a 8xA100-40/4 b 8xA100-40/4 c 8xA100-40/4 f"}},
      {80,
       {0.728005, 0.728005, 0.84895,
        "b4 | 8: 20xA100-40/4 a 6xA100-40/4 b | 9: 14xA100-40/4 b 12xA100-40/4 c | 9: 8xA100-40/4 c 18xA100-40/4 f"}},
      {128,
       {1.017155, 1.017155, 0.74959, "b4 | 13: 32xA100-40/4 a 32xA100-40/4 b | 13: 32xA100-40/4 c 32xA100-40/4 f"}}};
  for (const auto& [each, golden] : rows)
    expect_golden(atlas(), problem_of(opt(), figure_10(each), Faults::kept), golden);
}

TEST(Atlas, FixedSortsByAllThatAnIterationCosts) {
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    Problem problem = problem_of(opt(), {{"A100-40", zone_a, 32}, {"A100-40", west, 32}}, faults);
    problem.objective = Objective::cost;
    const auto answer = atlas().plan(problem);
    ASSERT_TRUE(answer.has_value());
    double least = std::numeric_limits<double>::infinity();
    for (const Proposal& proposal : answer->plans)
      least = std::min(least, evaluate(proposal.plan, opt().inputs, opt().job, faults)->cost.value());
    const double first = evaluate(answer->plans.front().plan, opt().inputs, opt().job, faults)->cost.value();
    // Kept: traffic alone is counted, and one machine has none.
    EXPECT_EQ(first == least, faults == Faults::fixed) << first << " " << least;
  }
}

// 6 devices in each of two zones are three groups of 4 by their sum and two by zone: the original ends with an index
// that is out of range.
TEST(Atlas, PlacesWholeGroupsOnly) {
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    const auto answer = atlas().plan(
        problem_of(opt(), {{"A100-40", zone_a, 6}, {"A100-40", zone_b, 6}, {"V100-16", zone_b, 8}}, faults));
    ASSERT_TRUE(answer.has_value());
    for (const Proposal& proposal : answer->plans)
      for (const auto& [zone, devices] : devices_by_zone(proposal.plan)) EXPECT_LE(devices, 4) << zone;
    ASSERT_EQ(answer->notes.size(), 1U);
    EXPECT_NE(answer->notes.front().find("V100-16 not used"), std::string::npos);
  }
}

TEST(Atlas, AsksForTimesOfWholeNodes) {
  Problem problem = problem_of(opt(), {{"A100-40", zone_a, 24}}, Faults::fixed);
  problem.offers.front().gpus_per_node = 6;
  const auto answer = atlas().plan(problem);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::not_found);
  EXPECT_NE(answer.error().message().find("A100-40 with tensor parallel 6"), std::string::npos)
      << answer.error().message();
}

// Times of a chain against a schedule by hand: m micro-batches through S stages of t seconds take (m + S - 1) t.
TEST(Oobleck, ChainsOfEqualStagesTakeTheTimeOfOneForwardOneBackward) {
  using namespace oobleck_detail;
  ChainTime chain = chain_of_one(2.0);
  for (int i = 1; i < 4; ++i) chain = joined(chain, chain_of_one(2.0));
  EXPECT_DOUBLE_EQ(chain.iteration(10), 26.0);
  EXPECT_DOUBLE_EQ(chain.iteration(1), 8.0);
  EXPECT_EQ(chain.micro_batches_within(26.0), 10);
  EXPECT_EQ(chain.micro_batches_within(25.9), 9);
  EXPECT_EQ(chain.micro_batches_within(7.9), 0);
  // Stages of 1, 3, 2 seconds: 6 for the first micro-batch, 3 for each of the others but the one whose wait for the
  // third stage is hidden, 2 at the end: 6 + (10 - 3 + 1) 3 + 2.
  const ChainTime uneven = joined(joined(chain_of_one(1.0), chain_of_one(3.0)), chain_of_one(2.0));
  EXPECT_DOUBLE_EQ(uneven.iteration(10), 32.0);
}

Problem oobleck_problem(int nodes, int batch) {
  Problem problem = problem_of(opt(), {{"A100-40", zone_a, 4 * nodes}}, Faults::fixed);
  problem.job.global_batch = batch;
  return problem;
}

TEST(Oobleck, UsesAllNodesForTwoPipelinesOrMore) {
  for (const int nodes : {2, 5, 8, 20}) {
    const Problem problem = oobleck_problem(nodes, 1024);
    const auto answer = oobleck().plan(problem);
    ASSERT_TRUE(answer.has_value()) << answer.error().message();
    for (const Proposal& proposal : answer->plans) {
      EXPECT_GE(proposal.plan.pipelines.size(), 2U);
      EXPECT_EQ(proposal.plan.gpus().at("A100-40"), 4 * nodes);
      const auto plan = to_plan(proposal.plan, problem.job);
      ASSERT_TRUE(plan.has_value()) << plan.error().message();
      EXPECT_TRUE(check_plan(*plan, opt().model).has_value());
      const auto estimate = oobleck().estimate(proposal.plan, problem);
      ASSERT_TRUE(estimate.has_value()) << estimate.error().message();
      EXPECT_NEAR(estimate->iteration_time->value() * *proposal.throughput, 1.0, 1e-9);
    }
  }
}

// 5 nodes, 12 sequences: all sums of templates, all divisions of the batch.
TEST(Oobleck, FindsTheBestSumOfTemplatesAndDivisionOfTheBatch) {
  using namespace oobleck_detail;
  const int nodes = 5;
  const int batch = 12;
  const Problem problem = oobleck_problem(nodes, batch);
  const auto answer = oobleck().plan(problem);
  ASSERT_TRUE(answer.has_value()) << answer.error().message();
  for (const Proposal& proposal : answer->plans) {
    const int micro_batch = proposal.plan.micro_batch;
    const int micro_batches = batch / micro_batch;
    const StageCosts costs(opt().inputs, "A100-40", micro_batch, 4);
    const std::vector<Template> templates = make_templates(costs, nodes, static_cast<double>(micro_batches) / nodes);
    double best = std::numeric_limits<double>::infinity();
    std::vector<std::pair<std::size_t, int>> chosen;
    const std::function<void(std::size_t, int, int)> choose = [&](std::size_t from, int nodes_left, int batches_left) {
      if (nodes_left == 0 && batches_left == 0 && chosen.size() >= 2) {
        PlanList list;
        list.micro_batch = micro_batch;
        for (const auto& [entry, mine] : chosen) {
          ListPipeline pipeline;
          pipeline.micro_batches = mine;
          for (const TemplateStage& stage : templates[entry].stages)
            pipeline.stages.push_back(
                {.layers = stage.layers,
                 .replicas = {{.machines = {{.gpu = "A100-40", .gpus_per_node = 4, .zone = zone_a}},
                               .tensor_parallel = stage.gpus}}});
          list.pipelines.push_back(pipeline);
        }
        best = std::min(best, oobleck().estimate(list, problem)->iteration_time->value());
      }
      for (std::size_t entry = from; entry < templates.size(); ++entry)
        for (int mine = 1; templates[entry].nodes <= nodes_left && mine <= batches_left; ++mine) {
          chosen.emplace_back(entry, mine);
          choose(entry, nodes_left - templates[entry].nodes, batches_left - mine);
          chosen.pop_back();
        }
    };
    choose(0, nodes, micro_batches);
    EXPECT_NEAR(1.0 / *proposal.throughput, best, 1e-6 * best) << "micro-batch " << micro_batch;
  }
}

TEST(Oobleck, NeedsNodesToLose) {
  const auto answer = oobleck().plan(oobleck_problem(1, 1024));
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::infeasible);
  EXPECT_NE(answer.error().message().find("it survives 1 failure, so it needs 2 pipelines"), std::string::npos)
      << answer.error().message();
}

}  // namespace
}  // namespace sailor::planner::baselines::originals_test
