// Aceso: its operators against the layers that they are derived from, its cost models by hand and against scores of the
// artifact's authors, its primitives and its search.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "planner/baselines/aceso_search.hpp"
#include "planner/baselines/baseline.hpp"
#include "tests/fakes/published_profiles.hpp"

namespace sailor::planner::baselines::aceso_test {
namespace {

using aceso_detail::AcesoStage;
using aceso_detail::Config;
using aceso_detail::CostModel;
using aceso_detail::Operators;
using aceso_detail::Primitive;
using aceso_detail::Rated;
using aceso_detail::Site;
using testing::published;
using testing::published_gpus;

const std::string aceso_zone = "us-central1-a";
constexpr int batch = 1024;

const Inputs& aceso_inputs() {
  static const Model model = testing::published_model("OPT-350");
  static const Inputs inputs =
      Inputs::build(testing::published_job("OPT-350", batch), model, published(), published_gpus()).value();
  return inputs;
}

Problem aceso_problem(int gpus, Faults faults = Faults::kept) {
  Problem problem{.inputs = aceso_inputs(),
                  .job = testing::published_job("OPT-350", batch),
                  .offers = {{"A100-40", aceso_zone, gpus, 4}}};
  problem.faults = faults;
  return problem;
}

const Operators& operators_of(int gpus) {
  static std::map<int, Operators> all;
  if (!all.contains(gpus))
    all.emplace(gpus, Operators::build(aceso_inputs(), testing::published_job("OPT-350", batch),
                                       Site{"A100-40", aceso_zone, gpus, 4})
                          .value());
  return all.at(gpus);
}

CostModel model_of(int gpus) { return {operators_of(gpus), batch, aceso_inputs().configured_memory("A100-40")}; }

TEST(Aceso, OperatorsAddUpToTheirLayers) {
  const Operators& operators = operators_of(32);
  EXPECT_EQ(operators.count(), 13 * 24 + 3);
  for (const int size : {1, 8})
    for (const int degree : {1, 4}) {
      const auto& costs = operators.costs(size, degree);
      const LayerTimes& times = *aceso_inputs().times("A100-40", size, degree);
      const LayerSizes& sizes = *aceso_inputs().sizes(degree);
      for (int layer = 0; layer < 26; ++layer) {
        const LayerRange range = operators.of_layers({layer, layer + 1});
        EXPECT_EQ(range.size(), layer == 0 ? 1 : layer == 25 ? 2 : 13);
        EXPECT_NEAR(costs.time(range) / times.compute(layer, layer + 1), 1.0, 1e-9);
        EXPECT_NEAR(costs.parameters(range) / (4.0 * sizes.parameters_of(layer, layer + 1)), 1.0, 1e-9);
        EXPECT_NEAR(costs.activations(range) / (4.0 * size * sizes.activation_of(layer, layer + 1)), 1.0, 1e-9);
      }
    }
  // A block hands on its hidden state whole, scores only the share of a device: 16 heads of 2048 x 2048 floats.
  const int block = operators.of_layers({1, 2}).first;
  EXPECT_EQ(operators.costs(1, 4).output[static_cast<std::size_t>(block + 12)], 4.0 * 2048 * 1024);
  EXPECT_EQ(operators.costs(1, 4).output[static_cast<std::size_t>(block + 2)], 4.0 * 16 * 2048 * 2048 / 4);
}

TEST(Aceso, BoundariesInsideALayerGoToTheNearest) {
  const Operators& operators = operators_of(32);
  const LayerRange block = operators.of_layers({3, 4});
  EXPECT_EQ(operators.nearest_layer(block.first), 3);
  EXPECT_EQ(operators.nearest_layer(block.first + 1), 3);
  EXPECT_EQ(operators.nearest_layer(block.last - 1), 4);
  EXPECT_EQ(operators.nearest_layer(block.last), 4);
  EXPECT_EQ(operators.nearest_layer(operators.count()), 26);
}

/// 128 micro-batches of 8 sequences, 2 for each of four replicas.
TEST(Aceso, ItsTimeIsThatOfTheSlowestStage) {
  const CostModel model = model_of(32);
  Config config{.stages = {{.operators = {0, 315}, .tensor_parallel = 1, .data_parallel = 4}}, .micro_batch = 8};
  // Tokens' indices come in (2 x 2048 x 8 bytes), losses go out (2 x 2048 x 4 bytes), over a link between nodes.
  const double compute = aceso_inputs().times("A100-40", 2, 1)->compute(0, 26);
  const double time = model.predict(config).time;
  EXPECT_GT(time, 128.0 * compute);
  EXPECT_NEAR(time / (128.0 * compute), 1.0, 0.001);
  // 127 times the slower of two stages, and both once.
  config.stages = {{.operators = {0, 200}, .tensor_parallel = 1, .data_parallel = 4},
                   {.operators = {200, 315}, .tensor_parallel = 1, .data_parallel = 4}};
  const auto two = model.predict(config);
  EXPECT_DOUBLE_EQ(two.time, 127.0 * std::max(two.stage_seconds[0], two.stage_seconds[1]) + two.stage_seconds[0] +
                                 two.stage_seconds[1]);
  // The first stage keeps the activations of two micro-batches, the second of one.
  const auto& costs = operators_of(32).costs(2, 1);
  EXPECT_GT(two.stage_memory[0], 2.0 * costs.activations({0, 200}) + 4.0 * costs.parameters({0, 200}));
  EXPECT_LT(two.stage_memory[1], 2.0 * costs.activations({200, 315}) + 4.0 * costs.parameters({200, 315}));
}

/// A message of 8 MB finds the entry of 4 MB (its index is one too low), one of 1.5 MB that of 1 MB.
TEST(Aceso, LooksBandwidthsUpOneEntryTooLow) {
  const LinkCoefficients& link = *aceso_inputs().inter("A100-40", aceso_zone, 1, "A100-40", aceso_zone, 1);
  const auto seconds = [&](double bytes, double entry_mib) {
    return bytes / (link.bandwidth(entry_mib * mib.value()) * 1e9);
  };
  const Operators& operators = operators_of(32);
  EXPECT_DOUBLE_EQ(operators.send(8.0 * mib.value(), true), seconds(8.0 * mib.value(), 4.0));
  EXPECT_DOUBLE_EQ(operators.send(1.5 * mib.value(), true), seconds(1.5 * mib.value(), 1.0));
  // Below 0.5 MB it counts from the end: 0.25 MB (-2) finds that of 512 MB.
  EXPECT_DOUBLE_EQ(operators.send(0.25 * mib.value(), true), seconds(0.25 * mib.value(), 512.0));
  EXPECT_EQ(operators.send(0.0, true), 0.0);
}

/// Scores of the artifact's operator-level evaluator, with measured operators, of plans of these numbers of stages,
/// replicas and sequences. Which operators a stage has is not published: here as many as the next.
TEST(Aceso, ScoresOfGivenPlansAreNearThoseOfTheArtifact) {
  struct Golden {
    int gpus;
    int stages;
    double throughput;
    double tolerance;
  };
  for (const Golden& golden :
       {Golden{32, 8, 0.115273, 0.02}, Golden{80, 24, 0.125617, 0.07}, Golden{128, 24, 0.224535, 0.04}}) {
    const CostModel model = model_of(golden.gpus);
    Config config = initial_config(model, golden.stages);
    config.micro_batch = 4;
    for (AcesoStage& stage : config.stages) std::swap(stage.tensor_parallel, stage.data_parallel);
    const auto score = evaluate_operators(config, model.operators(), aceso_inputs(), batch);
    ASSERT_TRUE(score.has_value()) << score.error().message();
    EXPECT_NEAR(1.0 / score->iteration_time / golden.throughput, 1.0, golden.tolerance) << golden.gpus;
    EXPECT_TRUE(score->fits);
  }
}

TEST(Aceso, Figure7IsNearThatOfTheArtifact) {
  Problem problem = aceso_problem(32);
  problem.work_limit = 500;
  const auto small = aceso().plan(problem);
  ASSERT_TRUE(small.has_value()) << small.error().message();
  EXPECT_EQ(describe(small->plans.front().plan).substr(0, 8), "P8 D4 T1");
  EXPECT_NEAR(1.0 / small->plans.front().own_score->iteration_time.value() / 0.115273, 1.0, 0.05);
  EXPECT_NEAR(small->plans.front().own_score->cost.value() / 0.28326, 1.0, 0.05);
  EXPECT_NE(small->notes.front().find("substitute"), std::string::npos);
  // 96 of 128 GPUs: who leaves some idle at the start can never use them.
  problem.offers.front().gpus = 128;
  const auto large = aceso().plan(problem);
  ASSERT_TRUE(large.has_value()) << large.error().message();
  EXPECT_EQ(describe(large->plans.front().plan).substr(0, 9), "P24 D4 T1");
  EXPECT_EQ(large->plans.front().plan.gpus().at("A100-40"), 96);
  EXPECT_NEAR(1.0 / large->plans.front().own_score->iteration_time.value() / 0.224535, 1.0, 0.05);
}

TEST(Aceso, TheRepairedSearchUsesIdleDevices) {
  Problem kept = aceso_problem(128);
  Problem fixed = aceso_problem(128, Faults::fixed);
  kept.work_limit = fixed.work_limit = 500;
  const auto before = aceso().plan(kept);
  const auto after = aceso().plan(fixed);
  ASSERT_TRUE(before.has_value() && after.has_value());
  EXPECT_GT(after->plans.front().plan.gpus().at("A100-40"), 96);
  EXPECT_GT(*after->plans.front().throughput, *before->plans.front().throughput);
}

TEST(Aceso, PlansHoldEveryLayerAndAtMostTheDevices) {
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    Problem problem = aceso_problem(36, faults);
    problem.work_limit = 300;
    const auto proposals = aceso().plan(problem);
    ASSERT_TRUE(proposals.has_value()) << proposals.error().message();
    std::set<std::string> different;
    for (const Proposal& proposal : proposals->plans) {
      different.insert(describe(proposal.plan));
      EXPECT_LE(proposal.plan.gpus().at("A100-40"), 36);
      int first = 0;
      for (const ListStage& stage : proposal.plan.pipelines.front().stages) {
        EXPECT_EQ(stage.layers.first, first);
        EXPECT_GT(stage.layers.size(), 0);
        first = stage.layers.last;
      }
      EXPECT_EQ(first, 26);
    }
    EXPECT_EQ(different.size(), proposals->plans.size());
    EXPECT_TRUE(std::is_sorted(proposals->plans.begin(), proposals->plans.end(),
                               [](const Proposal& a, const Proposal& b) { return *a.throughput > *b.throughput; }));
  }
}

/// All that primitives lead to keeps the operators in order, and GPUs at most those there are, all of them if all were
/// used and none may be idle.
TEST(Aceso, PrimitivesKeepAConfigurationWhole) {
  using enum Primitive;
  const CostModel model = model_of(32);
  int reached = 0;
  for (const int stages : {4, 8, 11})
    for (const bool use_idle : {false, true})
      for (const int size : {1, 4}) {
        Config config = initial_config(model, stages);
        config.micro_batch = size;
        ASSERT_TRUE(choose_degrees(config, model));
        const Rated rated{config, model.predict(config)};
        for (int target = 0; target < stages; ++target)
          for (const Primitive primitive : {move_operators, more_replicas, fewer_replicas, wider_groups,
                                            narrower_groups, larger_batch, smaller_batch})
            for (const Config& next : apply(primitive, rated, target, model, use_idle)) {
              ++reached;
              EXPECT_NE(next, config);
              int operators = 0;
              for (const AcesoStage& stage : next.stages) {
                EXPECT_EQ(stage.operators.first, operators);
                EXPECT_GT(stage.operators.size(), 0);
                EXPECT_TRUE(CostModel::is_allowed(next.micro_batch, stage.data_parallel));
                operators = stage.operators.last;
              }
              EXPECT_EQ(operators, 315);
              EXPECT_LE(next.gpus(), 32);
              if (!use_idle) {
                EXPECT_EQ(next.gpus(), config.gpus());
              }
            }
      }
  EXPECT_GT(reached, 50);
}

/// The slowest stage hands operators on until it is below the goal. Inside one node, since the goal knows no others.
TEST(Aceso, MovingOperatorsMakesTheSlowestStageFaster) {
  const CostModel model = model_of(4);
  const Config config{.stages = {{{0, 235}, 2, 1}, {{235, 315}, 2, 1}}, .micro_batch = 1};
  const Rated rated{config, model.predict(config)};
  const auto moved = apply(Primitive::move_operators, rated, 0, model, false);
  ASSERT_FALSE(moved.empty());
  for (const Config& next : moved) {
    EXPECT_LT(next.stages[0].operators.last, 235);
    EXPECT_LT(model.predict(next).time, rated.predicted.time);
  }
}

TEST(Aceso, MoreWorkIsNeverWorse) {
  const CostModel model = model_of(32);
  double before = std::numeric_limits<double>::infinity();
  for (const std::uint64_t ratings : {1U, 10U, 100U, 1000U}) {
    const auto found = alleviate(model, 9, false, {ratings, [] { return false; }});
    ASSERT_FALSE(found.empty());
    EXPECT_LE(found.front().predicted.time, before);
    before = found.front().predicted.time;
  }
  const auto start = initial_config(model, 9);
  EXPECT_LT(before, model.predict(start).time);
}

TEST(Aceso, EstimatesAGivenPlanWithoutItsGradients) {
  const Problem problem = aceso_problem(32);
  const Machine machine{"A100-40", 4, aceso_zone};
  // 1024 sequences over 8 replicas: 128 micro-batches of one sequence for each.
  const auto estimate = aceso().estimate(grid_plan(26, 1, 8, 1, 1, machine), problem);
  ASSERT_TRUE(estimate.has_value()) << estimate.error().message();
  const double compute = 128.0 * aceso_inputs().times("A100-40", 1, 1)->compute(0, 26);
  EXPECT_NEAR(estimate->iteration_time->value() / compute, 1.0, 0.001);
  const auto more = aceso().estimate(grid_plan(26, 1, 8, 1, 4, machine), problem);
  ASSERT_TRUE(more.has_value()) << more.error().message();
  EXPECT_GT(*more->peak_memory, *estimate->peak_memory);
}

TEST(Aceso, SaysWhatItCannotTake) {
  Problem problem = aceso_problem(3);
  const auto small = aceso().plan(problem);
  ASSERT_FALSE(small.has_value());
  EXPECT_EQ(small.error().what, "Aceso needs at least one whole node in the first offer");
  problem.offers = {{"H200-141", aceso_zone, 8, 4}};
  const auto unknown = aceso().plan(problem);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, ErrorCode::not_found);
  EXPECT_NE(unknown.error().what.find("no times of opt-350m-sailor on H200-141"), std::string::npos)
      << unknown.error().what;
  PlanList two = grid_plan(26, 1, 2, 1, 1, {"A100-40", 4, aceso_zone});
  two.pipelines.push_back(two.pipelines.front());
  EXPECT_EQ(aceso().estimate(two, problem).error().code, ErrorCode::invalid_input);
  PlanList mixed = grid_plan(26, 1, 2, 1, 1, {"A100-40", 4, aceso_zone});
  mixed.pipelines.front().stages.front().replicas.back().machines.front().gpu = "V100-16";
  EXPECT_EQ(aceso().estimate(mixed, problem).error().code, ErrorCode::invalid_input);
  const auto unmeasured = aceso().estimate(grid_plan(26, 1, 1, 1, 8, {"V100-16", 4, aceso_zone}), problem);
  ASSERT_FALSE(unmeasured.has_value());
  EXPECT_EQ(unmeasured.error().code, ErrorCode::not_found);
}

TEST(Aceso, EndsWhenItsTimeIsUp) {
  Problem problem = aceso_problem(32);
  int asked = 0;
  problem.is_over = [&] { return ++asked > 200; };
  const auto proposals = aceso().plan(problem);
  ASSERT_TRUE(proposals.has_value());
  EXPECT_TRUE(proposals->out_of_time);
  EXPECT_FALSE(proposals->plans.empty());
}

}  // namespace
}  // namespace sailor::planner::baselines::aceso_test
