// Inputs of a prediction: their sources, missing measurements, and plans that do not fit into memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "simulator/simulator.hpp"
#include "tests/fakes/simulator_world.hpp"

namespace sailor::simulator_inputs_test {
namespace {

using testing::World;
using namespace testing::tiny_gpt;

TEST(Simulator, MissingMeasurementIsRefusedWithMeasuredOnlyAndNamesWhatIsThere) {
  Plan plan = World::plan(1, {{0, 6}}, 1);
  plan.micro_batch = 4;
  plan.job.global_batch = 4;
  World world;
  world.measured_only = true;
  const auto p = world.predict(plan);
  ASSERT_FALSE(p.has_value());
  EXPECT_EQ(p.error().code, ErrorCode::not_found);
  EXPECT_EQ(p.error().message(),
            "the profile has no layers of micro-batch 4 for model tiny-gpt, GPU cpu, precision fp32, recompute none, "
            "tensor parallel 1, sequence length 64 (micro-batches there: 1, 2); measure it with sailor-profile layers, "
            "or import it with sailor-profile import");
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
  // An estimate widens the range beyond what the framework description leaves.
  EXPECT_GT(p->iteration_time_p95.value(), p->iteration_time.value() * (1 + 1.645 * 0.05) * 1.001);
}

/// One rank without any measurement, by Sailor's own framework.
Result<simulator::Prediction> predict_alone(const std::string& model_name, const std::string& gpu,
                                            Recompute recompute) {
  const Model model = find_model(model_name, SAILOR_SOURCE_DIR "/profiles/models").value();
  const World world;
  const Profile nothing{ProfileData()};
  Plan plan = World::plan(1, {{0, model.layers()}}, 8);
  plan.job.model = model_name;
  plan.job.sequence_length = 8192;
  plan.job.precision = Precision::bf16;
  plan.pipelines[0].stages[0].gpu = gpu;
  plan.pipelines[0].stages[0].recompute = recompute;
  return simulator::simulate(plan,
                             {.model = model, .profile = nothing, .gpus = world.gpus, .framework = world.framework});
}

// Published by pytorch/torchtitan (LLaMA-3-8B, sequences of 8,192, selective recomputation; the H100 at 500 W) and by
// NVIDIA/dgxc-benchmarking (H100): tokens per second and GPU, communication of sharded data parallelism included.
TEST(Simulator, EstimatesInBf16HoldPublishedRunsAndSayWhatTheyRestOn) {
  const std::vector<std::tuple<std::string, double, double>> published{{"A100-80", 2904, 2973},
                                                                       {"GH200-96", 5762, 10153}};
  for (const auto& [gpu, lowest, highest] : published) {
    SCOPED_TRACE(gpu);
    const auto p = predict_alone("llama-3-8b", gpu, Recompute::selective);
    ASSERT_TRUE(p.has_value()) << p.error().message();
    const double tokens = 8 * 8192;
    EXPECT_LE(tokens / p->iteration_time_p95.value(), lowest);
    EXPECT_GE(tokens / p->iteration_time_p5.value(), highest);
    EXPECT_GT(tokens / p->iteration_time.value(), lowest / 1.25);
    EXPECT_LT(tokens / p->iteration_time.value(), highest * 1.25);
    const std::string said =
        "layer times of llama-3-8b on " + gpu +
        " (no profile of the model at all; from peak rates; by the rates of the framework's "
        "description: expect errors of about 25%; one in ten is off by more than a factor of 1.85)";
    EXPECT_TRUE(std::any_of(p->estimated_inputs.begin(), p->estimated_inputs.end(),
                            [&](const simulator::EstimatedInput& input) { return input.what == said; }));
  }
}

// LLaMA-3-8B keeps for each token of a block, in hidden states: input, sum, query, key and value of 32 and 8 heads,
// attention's output, two inner widths of 14,336; selective recomputation drops attention's output.
TEST(Simulator, EstimatedActivationsKeepNoScoresUnderFusedAttention) {
  constexpr double hidden = 2.0 * 8192 * 4096;
  const auto none = predict_alone("llama-3-8b", "GH200-96", Recompute::none);
  ASSERT_TRUE(none.has_value()) << none.error().message();
  EXPECT_DOUBLE_EQ(none->stages[0].memory.activations.value(), 32 * (2 + 1.5 + 1 + 7) * hidden);
  const auto selective = predict_alone("llama-3-8b", "GH200-96", Recompute::selective);
  EXPECT_DOUBLE_EQ(selective->stages[0].memory.activations.value(), 32 * (2 + 1.5 + 7) * hidden);
  EXPECT_GT(selective->iteration_time, none->iteration_time);
}

TEST(Simulator, InterpolatedLayersAreMarkedAndMeasuredOnesAreNot) {
  World world;
  for (LayerTime& row : world.data.layer_times)
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
  world.data.links.clear();
  const auto replicas = world.predict(World::plan(2, {{0, 6}}, 1));
  ASSERT_FALSE(replicas.has_value());
  EXPECT_EQ(replicas.error().code, ErrorCode::not_found);
  EXPECT_EQ(replicas.error().message(),
            "the profile has no all_reduce or send_receive between cpu and cpu, inter_node (there: none; none); "
            "measure it with sailor-profile links, "
            "or import it with sailor-profile import");
  const auto stages = world.predict(World::plan(1, {{0, 3}, {3, 6}}, 1));
  ASSERT_FALSE(stages.has_value());
  EXPECT_EQ(stages.error().message(),
            "the profile has no send_receive between cpu and cpu, inter_node (there: none); measure it with "
            "sailor-profile links, "
            "or import it with sailor-profile import");
}

TEST(Simulator, AProcessWhoseMemoryNobodyKnowsIsRefused) {
  World world;
  world.data.processes.clear();
  world.framework.base.reset();
  const auto p = world.predict(World::plan(1, {{0, 6}}, 1));
  ASSERT_FALSE(p.has_value());
  EXPECT_EQ(
      p.error().message(),
      "the profile has no memory of a process of framework sailor on cpu before its first tensor; measure it with "
      "sailor-profile layers, or give base_bytes in the framework's file");
}

TEST(Simulator, ImpossiblePlacesAreRefusedByName) {
  World world;
  Plan plan = World::plan(1, {{0, 6}}, 1);
  Stage& stage = plan.pipelines[0].stages[0];
  stage.gpu = "gh200";
  EXPECT_EQ(world.predict(plan).error().message(), "GPU 'gh200' is another name of GH200-96; write the latter");
  stage.gpu = "cpu";
  stage.tensor_parallel = 3;
  EXPECT_EQ(
      world.predict(plan).error().message(),
      "pipeline 0, stage 0: tensor_parallel 3 does not divide the 4 attention heads of tiny-gpt; use a degree that "
      "does");
  stage.tensor_parallel = 1;
  world.cluster.zones = {{.name = "a", .region = "", .prices = {}}, {.name = "b", .region = "", .prices = {}}};
  stage.zone = "c";
  EXPECT_EQ(world.predict(plan).error().message(),
            "the plan has cpu in zone 'c', which is neither a zone of the cluster (a, b) nor a partition with such "
            "nodes; correct the plan, or name the cluster that it was made for");
  // Zones without a link are not one place.
  Plan two = World::plan(1, {{0, 3}, {3, 6}}, 1);
  two.pipelines[0].stages[0].zone = "a";
  two.pipelines[0].stages[1].zone = "b";
  EXPECT_EQ(
      world.predict(two).error().message(),
      "no link joins the zones 'a' and 'b'; add it with its bandwidth to [[links]] of the cluster file, or measure "
      "it with sailor-profile links --zone");
}

/// What memory_problem() says when a core has `bytes`.
std::string problem(World world, const Plan& plan, double bytes) {
  world.cluster.groups[0].memory_per_node = Bytes(bytes);
  const auto prediction = world.predict(plan);
  EXPECT_TRUE(prediction.has_value());
  EXPECT_FALSE(prediction->fits);
  const Profile profile(world.data);
  return simulator::memory_problem(plan, *prediction, world.environment(profile)).value_or("");
}

TEST(Simulator, PlanThatDoesNotFitSaysWhichStageByHowMuchAndWhatToChange) {
  World world;
  world.framework.supports_recompute = world.framework.supports_tensor_parallel = true;
  for (LayerMemory& row : world.data.layer_memory) row.output = Bytes(20.0 * row.key.micro_batch);
  // 16·9256 + 460 + 7 + 1,000,000 = 1,148,563 bytes. No micro-batch, recomputation or sharding makes them 1 MiB.
  const Plan plan = World::plan(1, {{0, 6}}, 1);
  EXPECT_EQ(
      problem(world, plan, 1024 * 1024),
      "stage 0 of pipeline 0 needs 1.10 MiB but a cpu has 1.00 MiB (parameters and optimizer 145 KiB, activations "
      "460 B): 97.6 KiB too much; no change of micro-batch, recomputation, tensor parallelism or optimizer sharding "
      "alone makes it fit; more stages or larger devices may");
  // Full recomputation saves 4·(100 - 20) bytes of activations and needs 80 more of workspace: 240 less.
  EXPECT_TRUE(problem(world, plan, 1148563 - 240)
                  .ends_with("240 B too much; it would fit with recompute = \"full\" on stage 0 of pipeline 0"))
      << problem(world, plan, 1148563 - 240);
  // Sailor's own runtime cannot recompute yet: that is no advice.
  World ours = world;
  ours.framework.supports_recompute = false;
  EXPECT_TRUE(problem(ours, plan, 1148563 - 240).ends_with("more stages or larger devices may"));
  // Two sequences instead of one: 460 more.
  Plan twice = plan;
  twice.micro_batch = 2;
  twice.job.global_batch = 2;
  EXPECT_TRUE(problem(world, twice, 1148563)
                  .ends_with("460 B too much; it would fit with micro_batch = 1 and 2 times the micro_batches"))
      << problem(world, twice, 1148563);
  // Two replicas copy the gradients of the whole model to reduce them, and could halve the moments: 37,024 less.
  const double replica = 1148563 + 4 * (tied + positions + 4 * block + head);
  EXPECT_TRUE(problem(world, World::plan(2, {{0, 6}}, 1), replica - 1024)
                  .ends_with("1.00 KiB too much; it would fit with optimizer_sharding = \"zero1\""))
      << problem(world, World::plan(2, {{0, 6}}, 1), replica - 1024);
}

TEST(Simulator, AdviceOnMicroBatchesNamesThePipelineWhereTheyDiffer) {
  World world;
  world.framework.supports_recompute = false;
  world.framework.shardings.clear();
  Plan plan = World::join(World::plan(1, {{0, 6}}, 2), World::plan(1, {{0, 6}}, 1));
  plan.pipelines[1].micro_batch = 2;
  plan.job.global_batch = 4;
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // The second pipeline needs 460 bytes more for the activations of its second sequence.
  const double first = p->stages[0].memory.total().value();
  EXPECT_DOUBLE_EQ(p->stages[1].memory.total().value(), first + 460);
  EXPECT_TRUE(problem(world, plan, first + 100)
                  .ends_with("it would fit with micro_batch = 1 and 2 times the micro_batches on pipeline 1"))
      << problem(world, plan, first + 100);
}

}  // namespace
}  // namespace sailor::simulator_inputs_test
