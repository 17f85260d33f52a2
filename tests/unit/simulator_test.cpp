#include "simulator/simulator.hpp"

#include <gtest/gtest.h>

#include <set>

#include "planner/planner.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor {
namespace {

using planner::balance_layers;
using simulator::simulate;

using sailor::testing::exactly;

// Four nodes of one core each, and the measurements of tests/fakes/round_numbers.hpp.
class World {
 public:
  World() {
    model_ = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
    gpus_ = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
    cluster_ = parse_cluster(R"(schema_version = 1
name = "test"
[[partitions]]
name = "normal"
[[nodes]]
count = 4
gpu = "cpu"
gpus_per_node = 1
memory_per_node_bytes = 1e9
partitions = ["normal"]
)",
                             "c.toml", gpus_)
                   .value();
  }

  static Plan plan(int data_parallel, std::vector<LayerRange> ranges, int micro_batches) {
    Plan plan;
    plan.job = {.model = "tiny-gpt",
                .global_batch = data_parallel * micro_batches,
                .sequence_length = 64,
                .precision = Precision::fp32,
                .optimizer = Optimizer::adamw};
    Pipeline pipeline;
    pipeline.count = data_parallel;
    pipeline.micro_batches = micro_batches;
    for (const LayerRange range : ranges)
      pipeline.stages.push_back(
          {.layers = range, .gpu = "cpu", .tensor_parallel = 1, .zone = "", .recompute = Recompute::none});
    plan.pipelines.push_back(pipeline);
    return plan;
  }

  Result<simulator::Prediction> predict(const Plan& plan) const {
    const Profile profile(data_);
    return simulate(
        plan,
        {.model = model_, .profile = profile, .gpus = gpus_, .cluster = &cluster_, .measured_only = measured_only_});
  }
  Result<planner::SearchResult> search(const planner::Request& request) const {
    const Profile profile(data_);
    return planner::find_plans(
        request,
        {.model = model_, .profile = profile, .gpus = gpus_, .cluster = &cluster_, .measured_only = measured_only_});
  }
  static planner::Request request(int global_batch) {
    planner::Request request;
    request.job = {.model = "tiny-gpt",
                   .global_batch = global_batch,
                   .sequence_length = 64,
                   .precision = Precision::fp32,
                   .optimizer = Optimizer::adamw};
    return request;
  }

  Model model_;
  GpuCatalogue gpus_;
  Cluster cluster_;
  bool measured_only_ = false;
  ProfileData data_ = sailor::testing::round_numbers_profile();
};

TEST(Simulator, OneRankIsTheSumOfItsLayers) {
  const auto p = World().predict(World::plan(1, {{0, 6}}, 3));
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // (2 + 4·6 + 3) s per micro-batch, three of them; update 0.5 + 4·0.25 + 0.125.
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 3 * 29.0);
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 0.0);
  EXPECT_DOUBLE_EQ(p->update_time.value(), 1.625);
  EXPECT_DOUBLE_EQ(p->iteration_time.value(), 87.0 + 1.625);
  EXPECT_DOUBLE_EQ(p->bubble_fraction, 0.0);
  // 16 bytes of state for each of 1000 + 4·2000 + 256 parameters, 460 of activations, 7 of workspace, the base.
  EXPECT_DOUBLE_EQ(p->peak_memory.value(), 16.0 * 9256 + 460 + 7 + 1e6);
  // One core at 0.04 USD/h.
  EXPECT_DOUBLE_EQ(p->cost_per_iteration.value(), 0.04 * 88.625 / 3600);
}

TEST(Simulator, TwoStagesFollowTheFormula) {
  const World world;
  const auto p = world.predict(World::plan(1, {{0, 3}, {3, 6}}, 4));
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // t0 = 2 + 12 = 14, c0 = 0.5 + 0.5, t1 = 12 + 3 = 15: 14 + 15 + 1 + 3·max(15, 15).
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 30.0 + 3 * 15.0);
  // The tied embedding is on both stages: its gradient is summed over the two.
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 3.0);
  // Stage 1 steps 2 blocks, the head and its copy of the matrix (256·128 of the embedding's 1000 parameters: a made-up
  // ratio).
  EXPECT_DOUBLE_EQ(p->update_time.value(), 0.5 + 0.125 + 0.5 * (256 * 128 / 1000.0));
  // Stage 0 keeps two micro-batches in flight, one message each way to its neighbour, and a copy of the matrix's
  // gradient while it is summed.
  const simulator::RankMemory& memory = p->stages[0].memory;
  EXPECT_DOUBLE_EQ(memory.activations.value(), 2 * (10 + 2 * 100));
  EXPECT_DOUBLE_EQ(memory.communication.value(), 2 * 4.0 * 64 * 128 + 4.0 * 256 * 128);
  // Stage 1: the copy of the tied matrix is a full one.
  EXPECT_DOUBLE_EQ(p->stages[1].memory.weights.value(), 4.0 * (2 * 2000 + 256 + 256 * 128));
}

TEST(Simulator, PipelinesOfDifferentDepthWaitForTheSlowest) {
  Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 3);
  Plan other = World::plan(1, {{0, 6}}, 1);
  plan.pipelines.push_back(other.pipelines[0]);
  plan.job.global_batch = 4;
  World world;
  for (const double bytes : {1.0, 1e12})
    world.data_.links.push_back({.key = {.from = {.gpu = "cpu"},
                                         .to = {.gpu = "cpu"},
                                         .scope = LinkScope::inter_node,
                                         .operation = LinkOperation::all_reduce,
                                         .ranks = 3},
                                 .message = Bytes(bytes),
                                 .time = exactly(4.0)});
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 30.0 + 2 * 15.0);
  // The rank of the short pipeline takes part in three reductions: the tied matrix of all three ranks (4 s), and the
  // layers it shares with either stage of the other pipeline (3 s each).
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 10.0);
}

TEST(Simulator, MissingMeasurementIsRefusedWithMeasuredOnlyAndNamesWhatIsThere) {
  Plan plan = World::plan(1, {{0, 6}}, 1);
  plan.micro_batch = 4;
  plan.job.global_batch = 4;
  World world;
  world.measured_only_ = true;
  const auto p = world.predict(plan);
  ASSERT_FALSE(p.has_value());
  EXPECT_EQ(p.error().code, ErrorCode::not_found);
  EXPECT_EQ(
      p.error().message(),
      "the profile has no layers of micro-batch 4 for model tiny-gpt, GPU cpu, precision fp32, recompute none, "
      "tensor parallel 1, sequence length 64 (micro-batches there: 1, 2); measure them with sailor-profile layers");
}

TEST(Simulator, EstimatedLayersAreUsedAndMarked) {
  Plan plan = World::plan(1, {{0, 6}}, 1);
  plan.micro_batch = 4;
  plan.job.global_batch = 4;
  const auto p = World().predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_EQ(p->origin, Origin::estimated);
  ASSERT_EQ(p->estimated_inputs.size(), 1U);
  EXPECT_EQ(p->estimated_inputs[0].origin, Origin::estimated);
  EXPECT_TRUE(
      p->estimated_inputs[0].what.starts_with("layer times of tiny-gpt on cpu at tensor parallel 1, micro-batch 4 (not "
                                              "measured; scaled from cpu; expect errors"))
      << p->estimated_inputs[0].what;
  EXPECT_EQ(simulator::summary(*p).origin, "estimated");
  // Work grows by two from micro-batch 2 to 4, the weights that are read do not.
  EXPECT_GT(p->pipeline_time.value(), 1.5 * 2 * 29.0);
  EXPECT_LE(p->pipeline_time.value(), 2 * 2 * 29.0);
}

TEST(Simulator, InterpolatedLayersAreMarkedAndMeasuredOnesAreNot) {
  World world;
  for (LayerTime& row : world.data_.layer_times)
    if (row.key.micro_batch == 2) row.key.micro_batch = 3;
  const auto measured = world.predict(World::plan(1, {{0, 6}}, 1));
  ASSERT_TRUE(measured.has_value());
  EXPECT_EQ(measured->origin, Origin::measured);
  EXPECT_TRUE(measured->estimated_inputs.empty());
  Plan plan = World::plan(1, {{0, 6}}, 1);
  plan.micro_batch = 2;
  plan.job.global_batch = 2;
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_EQ(p->origin, Origin::interpolated);
  // Micro-batch 3 now takes the 58 s that were those of 2, micro-batch 1 takes 29.
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), (29.0 + 58.0) / 2);
}

TEST(Simulator, AMissingLinkIsNeverEstimated) {
  World world;
  world.data_.links.clear();
  const auto p = world.predict(World::plan(2, {{0, 6}}, 1));
  ASSERT_FALSE(p.has_value());
  EXPECT_EQ(p.error().code, ErrorCode::not_found);
}

TEST(Simulator, PlanThatDoesNotFitSaysWhichStageAndByHowMuch) {
  World world;
  world.cluster_.groups[0].memory_per_node = Bytes(1024 * 1024);
  const Plan plan = World::plan(1, {{0, 6}}, 1);
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value());
  EXPECT_FALSE(p->fits);
  EXPECT_EQ(simulator::memory_problem(plan, *p),
            "stage 0 of pipeline 0 needs 1.10 MiB but a cpu has 1.00 MiB (97.6 KiB too much; parameters and optimizer "
            "145 KiB, activations 460 B)");
}

TEST(Planner, FindsTheFastestOfAllHomogeneousPlans) {
  const World world;
  auto found = world.search(World::request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // Independent count: 4 devices, micro-batch 1 (8 micro-batches) and 2 (4): all d·p <= 4 with p <= 6, d <=
  // micro-batches: p=1: d=1..4, p=2: d=1..2, p=3: 1, p=4: 1 -> 8 shapes for each.
  EXPECT_EQ(found->considered, 16U);
  for (std::size_t i = 1; i < found->plans.size(); ++i)
    EXPECT_LE(found->plans[i - 1].prediction.iteration_time, found->plans[i].prediction.iteration_time);
  for (const planner::Candidate& candidate : found->plans) {
    EXPECT_TRUE(check_plan(candidate.plan, world.model_).has_value());
    const auto again = world.predict(candidate.plan);
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->iteration_time, candidate.prediction.iteration_time);
  }
}

TEST(Planner, MicroBatchesThatDoNotDivideAreSharedUpToOne) {
  auto found = World().search(World::request(5));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  bool seen = false;
  for (const planner::Candidate& candidate : found->plans)
    if (candidate.plan.data_parallel() == 3 && candidate.plan.micro_batch == 1) {
      seen = true;
      ASSERT_EQ(candidate.plan.pipelines.size(), 2U);
      EXPECT_EQ(candidate.plan.pipelines[0].count, 2);
      EXPECT_EQ(candidate.plan.pipelines[0].micro_batches, 2);
      EXPECT_EQ(candidate.plan.pipelines[1].micro_batches, 1);
    }
  EXPECT_TRUE(seen);
}

TEST(Planner, NothingFitsIsInfeasibleAndNamesTheNearest) {
  World world;
  world.cluster_.groups[0].memory_per_node = Bytes(1000);
  const auto found = world.search(World::request(8));
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::infeasible);
  EXPECT_TRUE(found.error().what.starts_with("none of 16 plans fits into memory; the nearest is "))
      << found.error().what;
}

TEST(Planner, UnknownPartitionAndMissingProfileAreNamed) {
  World world;
  planner::Request request = World::request(8);
  request.partition = "normel";
  EXPECT_EQ(world.search(request).error().message(),
            "partition 'normel' not found (known: normal); did you mean --partition normal?");
  request.partition = "normal";
  request.job.sequence_length = 32;
  EXPECT_EQ(world.search(request).error().message(),
            "the profile has no fp32 measurement of model tiny-gpt on cpu at sequence length 32; measure it with "
            "sailor-profile "
            "layers; it has: cpu at sequence length 64");
}

TEST(Planner, PlansThatNeedWhatWasNotMeasuredAreLeftOutAndCounted) {
  World world;
  world.data_.links.clear();
  const auto found = world.search(World::request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // Only one rank does without a reduction: the model's embedding is tied.
  EXPECT_EQ(found->considered, 2U);
  EXPECT_EQ(found->not_measured, 14U);
  EXPECT_EQ(
      found->missing,
      "the profile has no all_reduce or send_receive between cpu and cpu, inter_node (there: none; none); measure it "
      "with sailor-profile links");
}

TEST(Planner, ADeviceWithoutAnyProfileIsEstimatedAndMarked) {
  World world;
  world.cluster_.groups[0].gpu = "H200-141";
  world.cluster_.groups[0].gpus_per_node = 2;
  const auto found = world.search(World::request(8));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  // Tensor parallel 1 and 2, micro-batches 1, 2, 4, 8. There are no links of an H200: only plans of one stage of one
  // pipeline need none.
  EXPECT_EQ(found->considered, 8U);
  EXPECT_GT(found->not_measured, 0U);
  for (const planner::Candidate& candidate : found->plans) {
    EXPECT_EQ(candidate.prediction.origin, Origin::estimated);
    EXPECT_EQ(candidate.plan.prediction->origin, "estimated");
    ASSERT_FALSE(candidate.prediction.estimated_inputs.empty());
    EXPECT_TRUE(candidate.prediction.estimated_inputs[0].what.starts_with(
        "layer times of tiny-gpt on H200-141 (no profile; scaled from cpu; expect errors of about"))
        << candidate.prediction.estimated_inputs[0].what;
  }
  world.measured_only_ = true;
  const auto refused = world.search(World::request(8));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message(),
            "the profile has no fp32 measurement of model tiny-gpt on H200-141 at sequence length 64; measure it with "
            "sailor-profile layers");
}

TEST(Planner, MicroBatchesBetweenMeasuredOnesAreConsidered) {
  World world;
  world.cluster_.groups[0].count = 1;
  for (LayerTime& row : world.data_.layer_times)
    if (row.key.micro_batch == 2) row.key.micro_batch = 6;
  std::set<int> seen;
  const auto found = world.search(World::request(24));
  ASSERT_TRUE(found.has_value()) << found.error().message();
  for (const planner::Candidate& candidate : found->plans) {
    seen.insert(candidate.plan.micro_batch);
    const bool measured = candidate.plan.micro_batch == 1 || candidate.plan.micro_batch == 6;
    EXPECT_EQ(candidate.prediction.origin, measured ? Origin::measured : Origin::interpolated);
  }
  EXPECT_EQ(seen, (std::set<int>{1, 2, 3, 4, 6}));  // those of 1 to 6 that divide 24
  world.measured_only_ = true;
  EXPECT_EQ(world.search(World::request(24))->considered, 2U);
}

TEST(Planner, LayersAreBalancedOptimally) {
  EXPECT_EQ(balance_layers({1, 1, 1, 1}, 2), (std::vector<LayerRange>{{0, 2}, {2, 4}}));
  EXPECT_EQ(balance_layers({5, 1, 1, 1}, 2), (std::vector<LayerRange>{{0, 1}, {1, 4}}));
  EXPECT_EQ(balance_layers({1, 2, 3}, 3), (std::vector<LayerRange>{{0, 1}, {1, 2}, {2, 3}}));
  // Brute force over all cuts of six layers into three stages.
  const std::vector<double> times{3, 1, 4, 1, 5, 9};
  double best = 1e9;
  for (int a = 1; a < 5; ++a)
    for (int b = a + 1; b < 6; ++b) {
      double sums[3] = {0, 0, 0};
      for (int i = 0; i < 6; ++i) sums[i < a ? 0 : i < b ? 1 : 2] += times[static_cast<std::size_t>(i)];
      best = std::min(best, std::max({sums[0], sums[1], sums[2]}));
    }
  double largest = 0;
  for (const LayerRange& range : balance_layers(times, 3)) {
    double sum = 0;
    for (int i = range.first; i < range.last; ++i) sum += times[static_cast<std::size_t>(i)];
    largest = std::max(largest, sum);
  }
  EXPECT_EQ(largest, best);
}

}  // namespace
}  // namespace sailor
