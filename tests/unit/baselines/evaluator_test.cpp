// The authors' evaluator of lists of pipelines against figures of the original and against the one for single entries.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "planner/artifact/artifact.hpp"
#include "planner/baselines/plan_list.hpp"
#include "tests/fakes/published_profiles.hpp"
#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace sailor::planner::baselines::evaluator_test {
namespace {

using testing::published;
using testing::published_gpus;

constexpr double exact = 1e-9;
const std::string zone_a = "us-central1-a";

const Model& opt() {
  static const Model model = testing::published_model("OPT-350");
  return model;
}
const TrainingJob& job() {
  static const TrainingJob job = testing::published_job("OPT-350", 1024);
  return job;
}
const Inputs& inputs() {
  static const Inputs inputs = Inputs::build(job(), opt(), published(), published_gpus()).value();
  return inputs;
}

Replica group(const std::string& gpu, int tensor_parallel, const std::string& zone = zone_a, int gpus_per_node = 4) {
  return {.machines = {{.gpu = gpu, .gpus_per_node = gpus_per_node, .zone = zone}}, .tensor_parallel = tensor_parallel};
}
/// As Metis and FlashFlex write it: a machine for every device.
Replica spread(const std::string& gpu, int tensor_parallel) {
  Replica replica = group(gpu, tensor_parallel);
  replica.machines.resize(static_cast<std::size_t>(tensor_parallel), replica.machines.front());
  return replica;
}

struct StageSpec {
  int layers;
  std::vector<std::pair<int, Replica>> replicas;
};

ListPipeline pipeline_of(const std::vector<StageSpec>& specs) {
  ListPipeline pipeline;
  int first = 0;
  for (const StageSpec& spec : specs) {
    ListStage stage{.layers = {first, first + spec.layers}, .replicas = {}};
    for (const auto& [count, replica] : spec.replicas)
      stage.replicas.insert(stage.replicas.end(), static_cast<std::size_t>(count), replica);
    pipeline.stages.push_back(std::move(stage));
    first += spec.layers;
  }
  return pipeline;
}

PlanList list_of(int micro_batch, const std::vector<StageSpec>& specs) {
  return {.pipelines = {pipeline_of(specs)}, .micro_batch = micro_batch};
}

PlanList grid(int stages, int replicas, int tensor_parallel, int micro_batch, int gpus_per_node = 4) {
  return grid_plan(26, stages, replicas, tensor_parallel, micro_batch,
                   {.gpu = "A100-40", .gpus_per_node = gpus_per_node, .zone = zone_a});
}

EvaluatorScore score_of(const PlanList& plan, Faults faults = Faults::kept) {
  const auto score = evaluate(plan, inputs(), job(), faults);
  EXPECT_TRUE(score.has_value()) << score.error().message();
  return score.value_or(EvaluatorScore{});
}

// Seconds and USD that the original evaluator printed for these plans.
TEST(ListEvaluator, AgreesWithTheOriginalInEveryPart) {
  struct Golden {
    PlanList plan;
    double micro_batches;
    double reduction;
    double iteration;
    double egress;
  };
  const auto v100 = group("V100-16", 4);
  const auto a100 = group("A100-40", 1);
  std::vector<Golden> goldens{{grid(1, 8, 4, 8), 16, 0.388120070, 7.993186070, 0.0},
                              {grid(1, 32, 1, 1), 32, 1.955940462, 8.573950462, 0.0},
                              {grid(2, 32, 1, 1), 32, 0.988713608, 4.878033608, 0.0},
                              {grid(4, 4, 2, 2, 2), 128, 0.206632057, 9.885539580, 0.0},
                              {grid(8, 8, 2, 2, 2), 64, 0.187845751, 3.480567820, 0.0},
                              {list_of(1, {{3, {{20, v100}}},
                                           {3, {{20, a100}}},
                                           {4, {{20, a100}}},
                                           {4, {{20, a100}}},
                                           {4, {{20, a100}}},
                                           {4, {{20, v100}}},
                                           {4, {{20, v100}}}}),
                               52, 0.245591504, 2.770739489, 0.0},
                              {list_of(8, {{26,
                                            {{8, group("A100-40", 4, "us-central1-f")},
                                             {8, group("A100-40", 4, "us-central1-c")},
                                             {8, group("A100-40", 4, "us-central1-b")},
                                             {8, group("A100-40", 4)}}}}),
                               4, 0.508520136, 2.410490136, 0.126303662}};
  for (const Golden& golden : goldens) {
    SCOPED_TRACE(describe(golden.plan));
    const EvaluatorScore score = score_of(golden.plan);
    EXPECT_EQ(score.micro_batches, golden.micro_batches);
    // The figures have 9 decimals.
    EXPECT_NEAR(score.synchronization_time.value(), golden.reduction, 6e-10);
    EXPECT_NEAR(score.iteration_time.value() / golden.iteration, 1.0, exact);
    EXPECT_NEAR(score.egress_cost.value(), golden.egress, 6e-10);
    EXPECT_TRUE(score.fits);
  }
}

// Iterations per second and USD per iteration of plans of figures 7, 8b, 10 and 12, whose figures have 6 and 5 digits.
TEST(ListEvaluator, ScoresThePublishedPlans) {
  struct Row {
    std::string name;
    PlanList plan;
    double throughput;
    double cost;
  };
  const auto a100 = group("A100-40", 1);
  const auto v100 = group("V100-16", 1);
  const auto piper = [&](const std::vector<std::pair<int, int>>& stages) {
    std::vector<StageSpec> specs;
    for (const auto& [layers, replicas] : stages) specs.push_back({layers, {{replicas, a100}}});
    return list_of(1, specs);
  };
  const auto several = [&](int pipelines, const std::vector<int>& layers) {
    std::vector<StageSpec> specs;
    for (const int count : layers) specs.push_back({count, {{1, a100}}});
    PlanList plan{.pipelines = {}, .micro_batch = 1};
    plan.pipelines.resize(static_cast<std::size_t>(pipelines), pipeline_of(specs));
    return plan;
  };
  // Pipelines of 6, 7 and 8 devices: 24 blocks evenly, the embedding in the first stage and the head in the last.
  const auto mixed = [&](int of_six, int of_seven, int of_eight) {
    PlanList plan = several(of_six, {5, 4, 4, 4, 4, 5});
    for (const PlanList& more : {several(of_seven, {4, 3, 3, 3, 4, 4, 5}), several(of_eight, {4, 3, 3, 3, 3, 3, 3, 4})})
      plan.pipelines.insert(plan.pipelines.end(), more.pipelines.begin(), more.pipelines.end());
    return plan;
  };
  const std::vector<Row> rows{
      {"7, Sailor", grid(1, 20, 4, 4), 0.272244, 0.29984},
      {"7, AMP", grid(2, 64, 1, 1), 0.323791, 0.40338},
      {"7, Galvatron", grid(4, 4, 2, 2), 0.101158, 0.32279},
      {"7, Metis", grid(1, 128, 1, 2), 0.252139, 0.51801},
      {"7, Piper: unequal replicas", piper({{7, 8}, {6, 8}, {13, 16}}), 0.062012, 0.52655},
      {"7, Piper", piper({{6, 16}, {5, 16}, {10, 32}, {5, 16}}), 0.148594, 0.54935},
      {"7, Piper, five stages", piper({{4, 16}, {3, 16}, {3, 16}, {13, 64}, {3, 16}}), 0.116570, 1.12043},
      {"7, FlashFlex: four pipelines", several(4, {4, 3, 3, 3, 3, 3, 3, 4}), 0.084443, 0.38668},
      {"7, FlashFlex: 13 pipelines", mixed(11, 2, 0), 0.208297, 0.39190},
      {"7, FlashFlex: 20 pipelines", mixed(13, 6, 1), 0.296255, 0.44087},
      {"8b, Metis: groups over several machines",
       list_of(1, {{5, {{128, v100}}}, {8, {{128, spread("V100-16", 2)}}}, {13, {{128, a100}}}}), 0.429228, 1.01502},
      {"8b, Metis", list_of(1, {{7, {{64, v100}}}, {19, {{64, a100}}}}), 0.227318, 0.51095},
      {"10, Atlas",
       list_of(8, {{26,
                    {{8, group("A100-40", 4, "us-central1-f")},
                     {8, group("A100-40", 4, "us-central1-c")},
                     {8, group("A100-40", 4, "us-central1-b")},
                     {8, group("A100-40", 4)}}}}),
       0.414853, 0.44114},
      {"12, Sailor", list_of(8, {{26, {{32, group("A100-40", 4, "us-central1-b")}, {32, group("A100-40", 4)}}}}),
       0.662873, 0.45824}};
  for (const Row& row : rows) {
    const EvaluatorScore score = score_of(row.plan);
    EXPECT_NEAR(1.0 / score.iteration_time.value(), row.throughput, 6e-7) << row.name;
    EXPECT_NEAR(score.cost.value(), row.cost, 6e-6) << row.name;
  }
}

// By hand: 24 x 103,739,392 parameters + 4 x 8 x activations; 3e9 bytes for the planner, 5.06e9 for the validation,
// whose figure is 30,307,358,976.
TEST(ListEvaluator, HasBothMemoryRulesOfTheOriginal) {
  const EvaluatorScore score = score_of(grid(1, 8, 4, 8));
  EXPECT_DOUBLE_EQ(score.validation_memory.value(), 30'307'358'976.0);
  EXPECT_DOUBLE_EQ(score.peak_memory.value(), 30'307'358'976.0 - 5.06e9 + 3e9);
  EXPECT_FALSE(score_of(grid(1, 8, 1, 4)).fits) << "4 x 4 x 2.4e9 floats on 40 GiB";
}

TEST(ListEvaluator, TheMemoryTestOfAGridLooksAtOneReplicaOfEachStage) {
  PlanList plan = list_of(4, {{26, {{1, group("A100-40", 4)}, {1, group("A100-40", 1)}}}});
  EXPECT_FALSE(score_of(plan).fits);
  plan.grid = true;
  EXPECT_TRUE(score_of(plan).fits);
}

// Metis on 128 A100 and 384 V100: 0.41503 with the compute of the middle stage counted, at the degree of the group.
TEST(ListEvaluator, FixedCountsTheComputeOfGroupsOverSeveralMachines) {
  const PlanList plan = list_of(
      1, {{5, {{128, group("V100-16", 1)}}}, {8, {{128, spread("V100-16", 2)}}}, {13, {{128, group("A100-40", 1)}}}});
  EXPECT_NEAR(1.0 / score_of(plan, Faults::fixed).iteration_time.value(), 0.41503, 6e-6);
  // The same group said with one machine.
  const PlanList same = list_of(
      1, {{5, {{128, group("V100-16", 1)}}}, {8, {{128, group("V100-16", 2)}}}, {13, {{128, group("A100-40", 1)}}}});
  EXPECT_EQ(score_of(plan, Faults::fixed).iteration_time, score_of(same, Faults::fixed).iteration_time);
}

TEST(ListEvaluator, FixedAddsTheAllReduceBetweenNodesToTheShareOfEach) {
  Replica two_nodes = group("A100-40", 8);
  two_nodes.machines.push_back(two_nodes.machines.front());
  const PlanList spread_plan = list_of(1, {{26, {{1, two_nodes}}}});
  const PlanList one_node = list_of(1, {{26, {{1, group("A100-40", 4)}}}});
  ASSERT_EQ(devices_per_machine(two_nodes), 4);
  ASSERT_EQ(nodes_of(two_nodes), 2);
  const double update = inputs().times("A100-40", 1, 4)->update.front();
  const double half = (score_of(one_node, Faults::fixed).iteration_time.value() - update) / 2.0 / 1024.0;
  // s = 1 x 2048 x 1024 x 4 bytes over 8 devices; twice in each of 24 blocks and once in the embedding, forward and
  // backward.
  const auto* link = inputs().inter("A100-40", zone_a, 4, "A100-40", zone_a, 4);
  const double sums = 2.0 * (24.0 * 2.0 + 1.0) * link->all_reduce(2048.0 * 1024.0 * 4.0, 8);
  const double expected = 1024.0 * (half + sums) + update;
  EXPECT_NEAR(score_of(spread_plan, Faults::fixed).iteration_time.value() / expected, 1.0, exact);
}

TEST(ListEvaluator, TheBatchIsDividedByTheReplicasOfTheLastPipelinesFirstStage) {
  PlanList plan = list_of(1, {{13, {{8, group("A100-40", 1)}}}, {13, {{2, group("A100-40", 1)}}}});
  EXPECT_EQ(score_of(plan).micro_batches, 128.0);
  plan.pipelines.push_back(pipeline_of({{26, {{4, group("A100-40", 4)}}}}));
  EXPECT_EQ(score_of(plan).micro_batches, 128.0) << "1024 / (4 replicas x 2 pipelines)";
  plan.pipelines.push_back(pipeline_of({{26, {{3, group("A100-40", 4)}}}}));
  EXPECT_EQ(score_of(plan).micro_batches, 114.0) << "1024 / 9, rounded up";
}

TEST(ListEvaluator, ReductionsAreDividedByTheSmallestDegreeButAtMostFour) {
  const auto reduction = [](int degree, int other) {
    return score_of(
               list_of(2, {{26, {{1, group("V100-16", degree, zone_a, 8)}, {1, group("V100-16", other, zone_a, 8)}}}}))
        .synchronization_time.value();
  };
  EXPECT_EQ(reduction(8, 8), reduction(4, 4));
  EXPECT_EQ(reduction(8, 2), reduction(2, 2));
  EXPECT_GT(reduction(2, 2), reduction(4, 4));
}

TEST(ListEvaluator, DegreesThatWereNotMeasuredTakeNoTimeAndFixedRefusesThem) {
  // Eight is a measured micro-batch of A100-40, so the original's table has a degree of 8, of zeros.
  const PlanList plan = grid(1, 4, 8, 8, 8);
  EXPECT_EQ(evaluate(grid(1, 1, 8, 8, 8), inputs(), job(), Faults::kept)->iteration_time.value(), 0.0);
  const auto fixed = evaluate(plan, inputs(), job(), Faults::fixed);
  ASSERT_FALSE(fixed.has_value());
  EXPECT_EQ(fixed.error().code, ErrorCode::not_found);
  EXPECT_EQ(fixed.error().what, "the profile has no times of A100-40 with micro-batch 8 and tensor parallel 8");
  // Three is neither a degree nor a micro-batch.
  for (const Faults faults : {Faults::kept, Faults::fixed})
    EXPECT_FALSE(evaluate(grid(1, 4, 3, 8), inputs(), job(), faults).has_value());
}

TEST(ListEvaluator, RefusesListsWithoutStagesLayersOrLinks) {
  const auto error_of = [](const PlanList& plan) {
    const auto score = evaluate(plan, inputs(), job(), Faults::kept);
    EXPECT_FALSE(score.has_value());
    return score ? std::string() : score.error().what;
  };
  EXPECT_EQ(error_of({}), "the plan has no pipeline");
  EXPECT_EQ(error_of(grid(27, 1, 1, 1)), "stage 26 of pipeline 0 holds layers [26, 26) of a model of 26");
  PlanList foreign = grid(2, 1, 1, 1);
  foreign.pipelines[0].stages[1].replicas[0].machines[0].gpu = "A100-80";
  EXPECT_NE(error_of(foreign).find("A100-80"), std::string::npos);
}

TEST(PlanList, DescriptionsAreShortWhereStagesAreAlike) {
  EXPECT_EQ(describe(grid(2, 32, 1, 1)), "P2 D32 T1 b1");
  EXPECT_EQ(describe(list_of(1, {{7, {{8, group("A100-40", 1)}}}, {19, {{8, group("A100-40", 1)}}}})),
            "P2 D8 T1 b1, layers 7/19");
  EXPECT_EQ(describe(list_of(1, {{7, {{8, group("A100-40", 1)}}}, {19, {{4, group("V100-16", 4)}}}})),
            "P2: 7 layers on 8 A100-40 T1; 19 layers on 4 V100-16 T4, b1");
  PlanList list = list_of(1, {{7, {{8, group("A100-40", 1)}}}, {19, {{16, group("A100-40", 1)}}}});
  EXPECT_EQ(describe(list), "P2 T1 A100-40, layers 7/19, D 8/16, b1");
  list = list_of(1, {{26, {{1, group("A100-40", 4)}}}});
  list.pipelines.resize(3, list.pipelines.front());
  list.pipelines.push_back(pipeline_of({{13, {{2, group("A100-40", 1)}}}, {13, {{2, group("A100-40", 1)}}}}));
  EXPECT_EQ(describe(list), "3 x (P1 D1 T4 A100-40) and P2 D2 T1 A100-40, layers 13/13, b1");
  Replica mixed = spread("A100-40", 2);
  mixed.machines[1].gpu = "V100-16";
  EXPECT_EQ(describe(list_of(1, {{26, {{3, mixed}}}})), "P1: 26 layers on 3 A100-40 + V100-16 T2, b1");
}

TEST(PlanList, SaysWhatAPlanCannot) {
  const auto error_of = [](const PlanList& plan) {
    const auto converted = to_plan(plan, job());
    EXPECT_FALSE(converted.has_value());
    return converted ? std::string() : converted.error().what;
  };
  EXPECT_EQ(error_of(list_of(1, {{7, {{8, group("A100-40", 1)}}}, {19, {{4, group("A100-40", 1)}}}})),
            "stage 1 of pipeline 0 has 4 replicas and stage 0 has 8, which plan.toml cannot say");
  Replica mixed = spread("A100-40", 2);
  mixed.machines[1].gpu = "V100-16";
  EXPECT_NE(error_of(list_of(1, {{26, {{1, mixed}}}})).find("A100-40 in zone 'us-central1-a' and V100-16"),
            std::string::npos);
  Replica two_nodes = group("A100-40", 8);
  two_nodes.machines.push_back(two_nodes.machines.front());
  EXPECT_NE(error_of(list_of(1, {{26, {{1, two_nodes}}}})).find("is on 2 nodes"), std::string::npos);
  EXPECT_TRUE(to_plan(list_of(1, {{26, {{1, spread("A100-40", 4)}}}}), job()).has_value())
      << "several devices of one node";
}

TEST(PlanList, APlanDividesTheBatchAsEvenlyAsItCanBe) {
  PlanList list{.pipelines = {}, .micro_batch = 1};
  list.pipelines.resize(3, pipeline_of({{26, {{1, group("A100-40", 4)}}}}));
  const Plan plan = to_plan(list, job()).value();
  ASSERT_EQ(plan.pipelines.size(), 2U);
  EXPECT_EQ(plan.pipelines[0].micro_batches, 342);
  EXPECT_EQ(plan.pipelines[1].micro_batches, 341);
  EXPECT_EQ(plan.pipelines[1].count, 2);
}

#ifdef SAILOR_HAVE_RAPIDCHECK

/// Stages with equal numbers of replicas in random places.
PlanList random_list() {
  const int stages = *rc::gen::inRange(1, 7);
  const int replicas = *rc::gen::inRange(1, 6);
  PlanList list{.pipelines = {{}}, .micro_batch = *rc::gen::element(1, 2, 4)};
  std::vector<int> cuts =
      *rc::gen::unique<std::vector<int>>(static_cast<std::size_t>(stages - 1), rc::gen::inRange(1, 26));
  cuts.push_back(0);
  cuts.push_back(26);
  std::sort(cuts.begin(), cuts.end());
  for (int i = 0; i < stages; ++i) {
    ListStage stage{.layers = {cuts[i], cuts[i + 1]}, .replicas = {}};
    for (int j = 0; j < replicas; ++j)
      stage.replicas.push_back(group(*rc::gen::element<std::string>("A100-40", "V100-16"), *rc::gen::element(1, 2, 4),
                                     *rc::gen::element<std::string>("us-central1-a", "us-central1-b", "us-west1-b")));
    list.pipelines.front().stages.push_back(std::move(stage));
  }
  return list;
}

RC_GTEST_PROP(ListEvaluatorProperty, EqualsTheEvaluatorOfPlansAndComesBackFromThem, ()) {
  const PlanList list = random_list();
  const Plan plan = to_plan(list, job()).value();
  const auto other = artifact_score(plan, opt(), published(), published_gpus());
  for (const Faults faults : {Faults::kept, Faults::fixed}) {
    const auto score = evaluate(list, inputs(), job(), faults);
    RC_ASSERT(score.has_value() == other.has_value());
    if (!other) return;
    const auto near = [](double a, double b) { return std::abs(a - b) <= exact * std::max(std::abs(a), std::abs(b)); };
    RC_ASSERT(near(score->pipeline_time.value(), other->pipeline_time.value()));
    RC_ASSERT(near(score->peak_memory.value(), other->peak_memory.value()));
    RC_ASSERT(score->fits == other->fits);
  }
  // Folding changes the order of the replicas, so the rings agree where there is nothing to fold.
  if (plan.pipelines.size() == list.pipelines[0].stages[0].replicas.size()) {
    const auto score = evaluate(list, inputs(), job(), Faults::kept);
    RC_ASSERT(std::abs(score->iteration_time / other->iteration_time - 1.0) < exact);
    RC_ASSERT(std::abs(score->cost / other->cost_per_iteration - 1.0) < exact);
    const PlanList back = from_plan(plan, {{"A100-40", 4}, {"V100-16", 4}}).value();
    for (std::size_t i = 0; i < back.pipelines[0].stages.size(); ++i)
      RC_ASSERT(back.pipelines[0].stages[i].replicas == list.pipelines[0].stages[i].replicas);
  }
}

#endif

}  // namespace
}  // namespace sailor::planner::baselines::evaluator_test
