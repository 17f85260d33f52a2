// simulate() on plans worked out by hand. A micro-batch takes 1 + 1 s in the embedding, 2 + 4 in a block, 1 + 2 in the
// head; a message 0.5 s; an all-reduce of two 3 s; updates 0.5, 0.25 and 0.125 s.
#include "simulator/simulator.hpp"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/fakes/simulator_world.hpp"

namespace sailor::simulator_test {
namespace {

using testing::exactly;
using testing::World;
using namespace testing::tiny_gpt;

/// The step of a copy of the tied matrix: its part of the embedding's 1000 parameters (a made-up ratio) of 0.5 s.
constexpr double tied_update = 0.5 * tied / 1000.0;

TEST(Simulator, OneRankIsTheSumOfItsLayers) {
  const auto p = World().predict(World::plan(1, {{0, 6}}, 3));
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // (2 + 4·6 + 3) s per micro-batch, three of them; update 0.5 + 4·0.25 + 0.125.
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 3 * 29.0);
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 0.0);
  EXPECT_DOUBLE_EQ(p->update_time.value(), 1.625);
  EXPECT_DOUBLE_EQ(p->iteration_time.value(), 87.0 + 1.625);
  EXPECT_DOUBLE_EQ(p->closed_form_time.value(), 87.0 + 1.625);
  EXPECT_DOUBLE_EQ(p->bubble_fraction, 0.0);
  EXPECT_DOUBLE_EQ(p->stages[0].busy, 1.0);
  EXPECT_EQ(p->bound, simulator::Bound::compute);
  // 16 bytes of state for each of 1000 + 4·2000 + 256 parameters, 460 of activations, 7 of workspace, the base.
  EXPECT_DOUBLE_EQ(p->peak_memory.value(), 16.0 * 9256 + 460 + 7 + 1e6);
  // One core at 0.04 USD/h.
  EXPECT_DOUBLE_EQ(p->cost_per_iteration.value(), 0.04 * 88.625 / 3600);
  // Measurements without spread: only the 6% that the framework description leaves unexplained, 1.645 times.
  EXPECT_DOUBLE_EQ(p->iteration_time_p95.value(), 88.625 * (1 + 1.645 * 0.06));
  EXPECT_DOUBLE_EQ(p->iteration_time_p5.value(), 88.625 / (1 + 1.645 * 0.06));
}

TEST(Simulator, TwoStagesWaitForEachOther) {
  Timeline timeline;
  const auto p = World().predict(World::plan(1, {{0, 3}, {3, 6}}, 4), &timeline);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // Forward and backward: 5 + 9 s on stage 0, 5 + 10 on stage 1. Stage 1 computes 15 s for each micro-batch, and
  // exchanges messages with stage 0 for 1 s between two of them:
  //   stage 0: F0 0-5, send 5.5, F1 -10.5, exchange 20.5-21.5, B0 -30.5, F2 -35.5, exchange 36.5-37.5, B1 -46.5, F3
  //   -51.5,
  //            exchange 52.5-53.5, B2 -62.5, receive 68.5-69, B3 -78
  //   stage 1: F0 5.5-10.5, B0 -20.5, F1 21.5-26.5, B1 -36.5, F2 37.5-42.5, B2 -52.5, F3 53.5-58.5, B3 -68.5, send -69
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 78.0);
  // The tied embedding is on both stages: its gradient is summed over the two.
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 3.0);
  // Stage 1 steps 2 blocks, the head and its copy of the matrix.
  EXPECT_DOUBLE_EQ(p->update_time.value(), 2 * 0.25 + 0.125 + tied_update);
  EXPECT_DOUBLE_EQ(p->iteration_time.value(), 78.0 + 3.0 + 0.625 + tied_update);
  EXPECT_EQ(p->straggler_stage, 1);
  // 14 + 15 + 1 + 3·max(14 + 1, 15 + 1), and the same after it.
  EXPECT_DOUBLE_EQ(p->closed_form_time.value(), 30.0 + 3 * 16.0 + 3.0 + 0.625 + tied_update);
  // Two stages for 78 s, of which 4·14 and 4·15 are passes.
  EXPECT_DOUBLE_EQ(p->bubble_fraction, 1.0 - (56.0 + 60.0) / (2 * 78.0));
  EXPECT_DOUBLE_EQ(p->stages[0].link.value(), 1.0);
  EXPECT_DOUBLE_EQ(p->stages[0].busy, (56.0 + 0.5 + 2 * 0.25) / p->iteration_time.value());
  EXPECT_EQ(timeline.length, p->iteration_time);
}

TEST(Simulator, TheLongestPartBoundsAnIteration) {
  World world;
  const Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 1);
  // Passes of 15 s on stage 1, 1 s of messages, 3 s of reduction; of 30 s of the pipeline 14 are not stage 1's or
  // messages.
  EXPECT_EQ(world.predict(plan)->bound, simulator::Bound::compute);
  const auto slower = [&](LinkOperation operation, double seconds) {
    World other;
    for (LinkMeasurement& link : other.data.links)
      if (link.key.operation == operation) link.time = exactly(seconds);
    return other.predict(plan)->bound;
  };
  EXPECT_EQ(slower(LinkOperation::send_receive, 8.0), simulator::Bound::transfers);  // 16 s
  EXPECT_EQ(slower(LinkOperation::all_reduce, 16.0), simulator::Bound::reduction);
  // Four stages of 8, 6, 6 and 9 s, one micro-batch: the last computes 9 s of 29 + 3.
  EXPECT_EQ(world.predict(World::plan(1, {{0, 2}, {2, 3}, {3, 4}, {4, 6}}, 1))->bound, simulator::Bound::bubble);
}

TEST(Simulator, PipelinesOfDifferentDepthReduceAsTheyGetThere) {
  World world;
  world.add_all_reduce(3, 4.0);
  Timeline timeline;
  const auto p =
      world.predict(World::join(World::plan(1, {{0, 3}, {3, 6}}, 3), World::plan(1, {{0, 6}}, 1)), &timeline);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // As in TwoStagesWaitForEachOther, one micro-batch less: stage 1 is done with its passes at 52.5 and has sent at 53,
  // stage 0 is done at 62. The short pipeline is done at 29.
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 62.0);
  // Layers [3, 6) of stage 1 and the short pipeline: 53-56. Layers [0, 3) of stage 0 and the short pipeline: 62-65. The
  // tied matrix of all three: 65-69.
  std::vector<double> starts;
  for (const TimelineEvent& event : timeline.events)
    if (event.activity == Activity::reduce && event.pipeline_entry == 1) starts.push_back(event.start.value());
  EXPECT_EQ(starts, (std::vector<double>{53, 62, 65}));
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 69.0 - 62.0);
  EXPECT_DOUBLE_EQ(p->stages[2].synchronization.value(), 3.0 + 3.0 + 4.0);
}

TEST(Simulator, ShardedOptimizerStepsItsPartBetweenScatterAndGather) {
  Plan plan = World::plan(2, {{0, 6}}, 1);
  plan.optimizer_sharding = OptimizerSharding::zero1;
  const auto p = World().predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // Half of the 3 s, half of the step of 1.625 s, the other half of the 3 s.
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 29.0);
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 1.5 + 1.5);
  EXPECT_DOUBLE_EQ(p->update_time.value(), 0.8125);
  // fp32 moments (8 bytes) of half of the parameters.
  EXPECT_DOUBLE_EQ(p->stages[0].memory.optimizer.value(), 8.0 * 9256 / 2);
  EXPECT_DOUBLE_EQ(p->stages[0].memory.gradients.value(), 4.0 * 9256);
}

TEST(Simulator, FullyShardedWeightsAreGatheredInEveryPass) {
  Plan plan = World::plan(2, {{0, 6}}, 3);
  plan.optimizer_sharding = OptimizerSharding::zero3;
  World world;
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // An all-reduce of each of the six layers takes 3 s, so gathers and scatters of all of them 9 s each. Of each of
  // three micro-batches: forward 10 s and a gather, backward 19 s, a gather and a scatter.
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 3 * (10.0 + 9.0 + 19.0 + 18.0));
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 0.0);
  EXPECT_DOUBLE_EQ(p->update_time.value(), 0.8125);
  EXPECT_DOUBLE_EQ(p->closed_form_time.value(), p->iteration_time.value());
  // Halves of weights, gradients and moments; in full a block's gradients, its weights and those of the next one.
  EXPECT_DOUBLE_EQ(p->stages[0].memory.weights.value(), 4.0 * 9256 / 2);
  EXPECT_DOUBLE_EQ(p->stages[0].memory.gradients.value(), 4.0 * 9256 / 2);
  EXPECT_DOUBLE_EQ(p->stages[0].memory.optimizer.value(), 8.0 * 9256 / 2);
  EXPECT_DOUBLE_EQ(p->stages[0].memory.copies.value(), (4.0 + 2 * 4.0) * 2000);

  world.framework.prefetches_weights = true;
  const auto hidden = world.predict(plan);
  ASSERT_TRUE(hidden.has_value());
  // Forward 10 beside 9, backward 19 beside 18; a sixth of what is shorter hides behind nothing.
  EXPECT_DOUBLE_EQ(hidden->pipeline_time.value(), 3 * (10.0 + 9.0 / 6 + 19.0 + 18.0 / 6));

  // ZeRO-2 keeps whole weights, and is done with them after the step, as ZeRO-1.
  plan.optimizer_sharding = OptimizerSharding::zero2;
  const auto second = world.predict(plan);
  ASSERT_TRUE(second.has_value());
  EXPECT_DOUBLE_EQ(second->pipeline_time.value(), 3 * 29.0);
  EXPECT_DOUBLE_EQ(second->synchronization_time.value(), 3.0);
  EXPECT_DOUBLE_EQ(second->stages[0].memory.weights.value(), 4.0 * 9256);
  EXPECT_DOUBLE_EQ(second->stages[0].memory.gradients.value(), 4.0 * 9256 / 2);
  EXPECT_DOUBLE_EQ(second->stages[0].memory.copies.value(), 4.0 * 2000);
}

// Two groups of two replicas: each shards among its two, and counterparts of the groups sum their shards' gradients.
TEST(Simulator, ShardingGroupsExchangeWithinAndBetweenThem) {
  World world;
  world.add_all_reduce(4, 7.0);  // over two it takes 3 s
  world.framework.supports_sharding_degree = true;
  Plan plan = World::plan(4, {{0, 6}}, 3);
  plan.optimizer_sharding = OptimizerSharding::zero1;
  const auto whole = world.predict(plan);
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  EXPECT_DOUBLE_EQ(whole->synchronization_time.value(), 7.0);
  plan.sharding_degree = 2;
  const auto first = world.predict(plan);
  ASSERT_TRUE(first.has_value()) << first.error().message();
  // Before the step half of the group's 3 s and the 3 s between groups, after it the other half.
  EXPECT_DOUBLE_EQ(first->synchronization_time.value(), 1.5 + 3.0 + 1.5);
  EXPECT_DOUBLE_EQ(first->update_time.value(), 0.8125);
  EXPECT_DOUBLE_EQ(first->stages[0].memory.optimizer.value(), 8.0 * 9256 / 2);
  EXPECT_DOUBLE_EQ(whole->stages[0].memory.optimizer.value(), 8.0 * 9256 / 4);

  plan.optimizer_sharding = OptimizerSharding::zero3;
  const auto third = world.predict(plan);
  ASSERT_TRUE(third.has_value()) << third.error().message();
  // Each of six layers takes 3 s within a group, half of it to gather or to scatter, and 3 s between groups.
  EXPECT_DOUBLE_EQ(third->pipeline_time.value(), 3 * (10.0 + 9.0 + 19.0 + 9.0 + 9.0 + 18.0));
  EXPECT_DOUBLE_EQ(third->stages[0].memory.weights.value(), 4.0 * 9256 / 2);
  // A group of one replica shards nothing.
  plan.sharding_degree = 1;
  const auto none = world.predict(plan);
  ASSERT_TRUE(none.has_value()) << none.error().message();
  EXPECT_DOUBLE_EQ(none->pipeline_time.value(), 3 * (10.0 + 19.0 + 6 * 7.0));
  EXPECT_DOUBLE_EQ(none->stages[0].memory.weights.value(), 4.0 * 9256);
  // All replicas in one group are what is meant without a degree.
  plan.sharding_degree = 4;
  const auto all = world.predict(plan);
  plan.sharding_degree = 0;
  ASSERT_TRUE(all.has_value()) << all.error().message();
  EXPECT_DOUBLE_EQ(all->iteration_time.value(), world.predict(plan)->iteration_time.value());

  // Also where a tied embedding is summed over first and last stages.
  Plan tied = World::plan(2, {{0, 3}, {3, 6}}, 2);
  tied.optimizer_sharding = OptimizerSharding::zero1;
  const auto without = world.predict(tied);
  tied.sharding_degree = 2;
  ASSERT_TRUE(without.has_value()) << without.error().message();
  EXPECT_DOUBLE_EQ(world.predict(tied)->iteration_time.value(), without->iteration_time.value());
  // Advice names sharing by all four replicas where it makes the plan fit.
  plan.optimizer_sharding = OptimizerSharding::zero1;
  plan.sharding_degree = 2;
  world.cluster.groups[0].memory_per_node = first->stages[0].memory.total() * (1.0 - 1e-6);
  const Profile profile(world.data);
  const auto full = world.predict(plan);
  ASSERT_TRUE(full.has_value());
  EXPECT_NE(simulator::memory_problem(plan, *full, world.environment(profile))
                .value_or("")
                .find("it would fit with all replicas sharing (without sharding_degree)"),
            std::string::npos);
  world.framework.supports_sharding_degree = false;
  const auto refused = world.predict(plan);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("shards over all replicas, and sharding_degree is 2"), std::string::npos)
      << refused.error().message();
  plan.sharding_degree = 4;  // which is all of them
  EXPECT_TRUE(world.predict(plan).has_value());
}

TEST(Simulator, GpipeAndInterleavedKeepMoreInFlight) {
  const World world;
  Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 3);
  const auto one_f_one_b = world.predict(plan);
  plan.schedule = Schedule::gpipe;
  const auto gpipe = world.predict(plan);
  ASSERT_TRUE(one_f_one_b.has_value() && gpipe.has_value());
  // Per micro-batch 10 + 2·100 on stage 0; 2·100 and the head's 50 on stage 1.
  EXPECT_DOUBLE_EQ(one_f_one_b->stages[0].memory.activations.value(), 2 * 210.0);
  EXPECT_DOUBLE_EQ(one_f_one_b->stages[1].memory.activations.value(), 200.0);
  EXPECT_DOUBLE_EQ(one_f_one_b->stages[1].memory.logits.value(), 50.0);
  EXPECT_DOUBLE_EQ(gpipe->stages[0].memory.activations.value(), 3 * 210.0);
  EXPECT_DOUBLE_EQ(gpipe->stages[1].memory.activations.value(), 3 * 200.0);
  EXPECT_DOUBLE_EQ(gpipe->stages[1].memory.logits.value(), 3 * 50.0);
  // Stage 0: F0 0-5, send 5.5, F1 -10.5, send 10.5-11, F2 -16, send 16-16.5 (stage 1 is done with F1 at 16).
  // Stage 1: F0 5.5-10.5, F1 11-16, F2 16.5-21.5, B0 -31.5, send -32, B1 -42, send -42.5, B2 -52.5, send -53.
  // Stage 0: B0 32-41, receive 42-42.5, B1 -51.5, receive 52.5-53, B2 -62.
  EXPECT_DOUBLE_EQ(gpipe->pipeline_time.value(), 62.0);

  plan = World::plan(1, {{0, 1}, {1, 3}}, 2);
  plan.schedule = Schedule::interleaved_1f1b;
  plan.pipelines[0].stages[0].later_chunks = {{3, 5}};
  plan.pipelines[0].stages[1].later_chunks = {{5, 6}};
  const auto interleaved = world.predict(plan);
  ASSERT_TRUE(interleaved.has_value()) << interleaved.error().message();
  // As many micro-batches as stages: all forward passes come first, so all of both chunks is in flight.
  EXPECT_DOUBLE_EQ(interleaved->stages[0].memory.activations.value(), 2 * (10.0 + 200.0));
  EXPECT_DOUBLE_EQ(interleaved->stages[1].memory.activations.value(), 2 * 200.0);
  EXPECT_DOUBLE_EQ(interleaved->stages[1].memory.logits.value(), 2 * 50.0);
  // Chunks 1 + 1, 4 + 8, 4 + 8 and 1 + 2 s, in turn on stage 0 and 1; messages take 0.5 s beside the passes.
  //   stage 0: F 0-1, 1-2; second chunk F 6-10, 10-14, B 18-26, 26-34; first chunk B 35-36, 43-44
  //   stage 1: F 1.5-5.5, 5.5-9.5; second chunk F 10.5-11.5, 14.5-15.5, B 15.5-17.5, -19.5; first chunk B 26.5-34.5,
  //   -42.5
  EXPECT_DOUBLE_EQ(interleaved->pipeline_time.value(), 44.0);
  // max(2·15 + (29 - 15 + 3)/2, 29 + 3 + (2 - 1)·min(12, 12)), the reduction of the tied matrix, and the step of
  // stage 1.
  EXPECT_DOUBLE_EQ(interleaved->closed_form_time.value(), 44.0 + 3.0 + 2 * 0.25 + 0.125 + tied_update);
}

/// A catalogue whose CPU computes so slowly that the FLOP alone decide.
GpuCatalogue slow_products() {
  return GpuCatalogue::parse(
             "schema_version = 1\n[[gpus]]\nname = \"cpu\"\nkind = \"cpu\"\n"
             "peak_fp32_flop_per_s = 1\nmemory_bandwidth_bytes_per_s = 1e30\n"
             "price_usd_per_hour = 0.04\nsource = \"test\"\n",
             "gpus.toml")
      .value();
}

TEST(Simulator, RecomputationAddsForwardWorkAndKeepsLess) {
  World world;
  world.gpus = slow_products();
  world.framework.kernels = {};
  world.framework.attention_score = Bytes(1.0 / 2048);
  for (LayerMemory& row : world.data.layer_memory) row.output = Bytes(20.0 * row.key.micro_batch);
  Plan plan = World::plan(1, {{0, 6}}, 2);
  Stage& stage = plan.pipelines[0].stages[0];
  stage.recompute = Recompute::full;
  const auto full = world.predict(plan);
  ASSERT_TRUE(full.has_value()) << full.error().message();
  // A block's forward pass of 2 s once more; of its 100 bytes the 20 of its input stay, the rest comes back as
  // workspace (7 + 80).
  EXPECT_DOUBLE_EQ(full->pipeline_time.value(), 2 * (2.0 + 4 * (2.0 + 6.0) + 3.0));
  EXPECT_DOUBLE_EQ(full->stages[0].memory.activations.value(), 10 + 4 * 20.0);
  EXPECT_DOUBLE_EQ(full->stages[0].memory.workspace.value(), 87.0);
  EXPECT_EQ(full->origin, Origin::estimated);
  ASSERT_EQ(full->estimated_inputs.size(), 1U);
  EXPECT_EQ(full->estimated_inputs[0].what, "blocks of tiny-gpt on cpu with recompute = full (from those without)");

  stage.recompute = Recompute::selective;
  const auto selective = world.predict(plan);
  ASSERT_TRUE(selective.has_value()) << selective.error().message();
  // Per token the matrix products of a block are 2·(4·128² + 2·128·512) = 393,216 FLOP and scores and values
  // 4·64·128 = 32,768 more, masked ones included: a thirteenth of the forward pass once more. Scores: 4 heads x 64² =
  // 16,384, 8 bytes of the 100.
  EXPECT_DOUBLE_EQ(selective->pipeline_time.value(), 2 * (2.0 + 4 * (2.0 + 4.0 + 2.0 / 13) + 3.0));
  EXPECT_DOUBLE_EQ(selective->stages[0].memory.activations.value(), 10 + 4 * 92.0);
  EXPECT_DOUBLE_EQ(selective->stages[0].memory.workspace.value(), 7 + 8.0);

  // Scores never count for more than they are by formula: the block's other arrays stay.
  world.framework.attention_score = Bytes(1.0);
  EXPECT_GT(world.predict(plan)->stages[0].memory.activations, full->stages[0].memory.activations);
  world.framework.attention_score = Bytes(1.0 / 2048);

  // What comes and goes with the activations of a layer does so with all of them.
  world.framework.workspace_activations = 2.0;
  EXPECT_DOUBLE_EQ(world.predict(plan)->stages[0].memory.workspace.value(), 7 + 8.0 + 2 * 100.0);
  world.framework.workspace_activations = 0.0;

  world.measured_only = true;
  const auto refused = world.predict(plan);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::not_found);
  EXPECT_EQ(refused.error().message(),
            "the profile has no layers of tiny-gpt on cpu with recompute = selective; measure it with sailor-profile "
            "layers --recompute selective");
}

TEST(Simulator, SelectiveRecomputationWithoutScoresDoesWithoutAttentionsOutput) {
  World world;  // of Sailor's own runtime
  world.gpus = slow_products();
  Plan plan = World::plan(1, {{0, 6}}, 2);
  const auto none = world.predict(plan);
  plan.pipelines[0].stages[0].recompute = Recompute::selective;
  const auto selective = world.predict(plan);
  ASSERT_TRUE(selective.has_value()) << selective.error().message();
  // Kept per token: input, sum, query, key, value, attention's output and the inner width of 4: 10 hidden states, of
  // which one is dropped. The causal half of scores and values, 2·64·128 FLOP beside 393,216, once more: a twenty-fifth
  // of the forward pass.
  EXPECT_DOUBLE_EQ(selective->stages[0].memory.activations.value(), 10 + 4 * 90.0);
  EXPECT_NEAR(selective->pipeline_time / none->pipeline_time, (4 * (6.0 + 2.0 / 25) + 5) / 29, 1e-9);
}

TEST(Simulator, WhatALayerNeedsWhileItRunsIsCountedInArrays) {
  World world;
  world.framework.kernels = {};
  world.framework.workspace_scores = 2.0;
  world.framework.workspace_hidden_states = 3.0;
  world.framework.workspace_gradients = 1.0;
  world.framework.extra_logits = 2.0;
  world.framework.keeps_stage_inputs = true;
  const Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 4);
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // Of 4 bytes each: scores of 4 heads x 64², hidden states of 64 x 128, 2000 parameters of a block; logits 64 x 256.
  constexpr double hidden = 4 * 64 * 128;
  EXPECT_DOUBLE_EQ(p->stages[0].memory.workspace.value(), 4 * (2 * 4 * 64 * 64 + 2000) + 3 * hidden);
  EXPECT_DOUBLE_EQ(p->stages[1].memory.logits.value(), 50 + 2 * 4 * 64 * 256);
  // Two micro-batches are in flight at the first stage, which receives nothing, one at the second.
  EXPECT_DOUBLE_EQ(p->stages[0].memory.activations.value(), 2 * 210);
  EXPECT_DOUBLE_EQ(p->stages[1].memory.activations.value(), 200 + hidden);
  // What the profile has is part of it, not besides.
  for (LayerMemory& row : world.data.layer_memory) row.workspace = Bytes(1e7);
  EXPECT_DOUBLE_EQ(world.predict(plan)->stages[0].memory.workspace.value(), 1e7);
}

TEST(Simulator, MeasuredRecomputationCountsBeforeDerived) {
  World world;
  const std::size_t rows = world.data.layer_times.size();
  for (std::size_t i = 0; i < rows; ++i) {
    LayerTime time = world.data.layer_times[i];
    LayerMemory memory = world.data.layer_memory[i];
    time.key.recompute = memory.key.recompute = Recompute::full;
    if (time.key.kind == LayerKind::block) time.backward = exactly(5.0 * time.key.micro_batch);
    world.data.layer_times.push_back(time);
    world.data.layer_memory.push_back(memory);
  }
  world.measured_only = true;
  Plan plan = World::plan(1, {{0, 6}}, 1);
  plan.pipelines[0].stages[0].recompute = Recompute::full;
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 2.0 + 4 * (2.0 + 5.0) + 3.0);
  EXPECT_EQ(p->origin, Origin::measured);
}

/// The measurements once more under other degrees of tensor parallelism, on nodes of four cores.
TEST(Simulator, ASmallerTensorParallelGroupServesALargerOneInTurns) {
  World world;
  world.add_tensor_parallel();
  world.framework.stage_messages = simulator::StageMessages::whole;
  Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 1);
  plan.pipelines[0].stages[0].tensor_parallel = 2;
  plan.pipelines[0].stages[1].tensor_parallel = 4;
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // Each of two ranks sends to two of four, one after the other; back, two of four send to one each: 2·0.5 + 0.5 s.
  EXPECT_DOUBLE_EQ(p->stages[0].link.value(), 1.5);
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 14.0 + 15.0 + 1.5);
  // The tied matrix is cut in 2 and in 4 parts: those with the least tensor parallelism hold and reduce half of it.
  EXPECT_DOUBLE_EQ(p->stages[0].memory.copies.value(), 4.0 * tied / 2);
  // The other way round the gradients need two turns.
  std::swap(plan.pipelines[0].stages[0].tensor_parallel, plan.pipelines[0].stages[1].tensor_parallel);
  EXPECT_DOUBLE_EQ(world.predict(plan)->stages[0].link.value(), 1.5);
}

TEST(Simulator, StagesSendAsTheFrameworkDoes) {
  World world;
  world.add_tensor_parallel();
  world.set_proportional_links();
  world.framework.transfer_overhead = Seconds(1.0 / 64);
  Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 1);
  const auto link = [&](simulator::StageMessages how, int first, int second) {
    world.framework.stage_messages = how;
    plan.pipelines[0].stages[0].tensor_parallel = first;
    plan.pipelines[0].stages[1].tensor_parallel = second;
    const auto p = world.predict(plan);
    EXPECT_TRUE(p.has_value()) << p.error().message();
    return p ? p->stages[0].link.value() : 0.0;
  };
  using How = simulator::StageMessages;
  constexpr double exact = 1e-9;
  // Four pairs send a quarter each, in 0.125 s, and gather in half an all-reduce, 0.1 s; both ways.
  for (const How how : {How::pieces, How::once}) EXPECT_NEAR(link(how, 4, 4), 2 * (0.125 + 0.1 + 1.0 / 64), exact);
  EXPECT_NEAR(link(How::whole, 4, 4), 2 * (0.5 + 1.0 / 64), exact);
  // Two ranks to four. In parts of the sender, halves: each to two ranks in turn, 2 x 0.25 s; back quarters, of which
  // each rank receives two, 2 x 0.125 s. When every value crosses once, quarters both ways.
  EXPECT_NEAR(link(How::pieces, 2, 4), 0.5 + 0.1 + 0.25 + 0.05 + 4.0 / 64, exact);
  EXPECT_NEAR(link(How::once, 2, 4), 0.25 + 0.1 + 0.25 + 0.05 + 4.0 / 64, exact);
  // One rank has nothing to gather.
  EXPECT_NEAR(link(How::once, 4, 1), 0.5 + 0.5 + 0.1 + 8.0 / 64, exact);
}

TEST(Simulator, AGatherWithoutALinkInsideTheNodeIsEstimated) {
  World world;
  world.add_tensor_parallel();
  world.set_proportional_links();
  std::erase_if(world.data.links, [](const auto& row) { return row.key.scope == LinkScope::intra_node; });
  Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 1);
  for (Stage& stage : plan.pipelines[0].stages) stage.tensor_parallel = 4;
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_GT(p->stages[0].link.value(), 2 * 0.125);
  EXPECT_EQ(p->origin, Origin::estimated);
  ASSERT_EQ(p->estimated_inputs.size(), 1U);
  EXPECT_EQ(p->estimated_inputs[0].what, "link cpu - cpu, intra_node (not measured: 2 GB/s, by the device's figures)");
  world.measured_only = true;
  const auto refused = world.predict(plan);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(
      refused.error().what.starts_with("the profile has no all_reduce or send_receive between cpu and cpu, "
                                       "intra_node"))
      << refused.error().message();
}

TEST(Simulator, CopiesOfAPipelineCountAsTheWorstPlacedOfThem) {
  World world;
  world.cluster.groups[0].gpus_per_node = 3;
  const std::size_t links = world.data.links.size();
  for (std::size_t i = 0; i < links; ++i) {  // messages inside a node take no time
    LinkMeasurement row = world.data.links[i];
    row.key.scope = LinkScope::intra_node;
    row.time = exactly(0.0);
    world.data.links.push_back(row);
  }
  // Three copies of two stages on nodes of three cores: the second copy's stages are on two nodes.
  const auto folded = world.predict(World::plan(3, {{0, 3}, {3, 6}}, 8));
  Plan written_out = World::plan(1, {{0, 3}, {3, 6}}, 8);
  for (int i = 0; i < 2; ++i) written_out = World::join(written_out, World::plan(1, {{0, 3}, {3, 6}}, 8));
  const auto unfolded = world.predict(written_out);
  ASSERT_TRUE(folded.has_value()) << folded.error().message();
  ASSERT_TRUE(unfolded.has_value()) << unfolded.error().message();
  EXPECT_EQ(folded->iteration_time, unfolded->iteration_time);
  EXPECT_GT(folded->stages[0].link, Seconds(0.0));
  EXPECT_EQ(unfolded->stages[0].link, Seconds(0.0));
}

TEST(Simulator, RanksThatShareANodeSlowEachOtherDown) {
  World world;
  world.cluster.groups[0].gpus_per_node = 2;
  const std::size_t rows = world.data.layer_times.size();
  for (std::size_t i = 0; i < rows; ++i) {  // both cores of a node busy: forward passes take twice as long
    LayerTime row = world.data.layer_times[i];
    row.key.busy_ranks = 2;
    row.forward = exactly(2.0 * row.forward.median.value());
    world.data.layer_times.push_back(row);
  }
  const std::size_t links = world.data.links.size();
  for (std::size_t i = 0; i < links; ++i) {  // and messages inside a node half
    LinkMeasurement row = world.data.links[i];
    row.key.scope = LinkScope::intra_node;
    row.time = exactly(0.5 * row.time.median.value());
    world.data.links.push_back(row);
  }
  // A stage of its own node, and two that share one: embedding and two blocks 10 + 9 s, two blocks and head 10 + 10 s.
  EXPECT_DOUBLE_EQ(world.predict(World::plan(1, {{0, 6}}, 1))->pipeline_time.value(), 29.0);
  const auto shared = world.predict(World::plan(1, {{0, 3}, {3, 6}}, 1));
  ASSERT_TRUE(shared.has_value()) << shared.error().message();
  EXPECT_DOUBLE_EQ(shared->pipeline_time.value(), 39.0 + 2 * 0.25);
  EXPECT_DOUBLE_EQ(shared->synchronization_time.value(), 1.5);
  // Of three stages the last has a node to itself. Forward alone: embedding and block 1 + 2 s, two blocks 4 s, block
  // and head 2 + 1 s. Messages go inside a node, then between two.
  const auto three = world.predict(World::plan(1, {{0, 2}, {2, 4}, {4, 6}}, 1));
  ASSERT_TRUE(three.has_value()) << three.error().message();
  EXPECT_DOUBLE_EQ(three->stages[0].forward.value(), 2 * 3.0);
  EXPECT_DOUBLE_EQ(three->stages[1].forward.value(), 2 * 4.0);
  EXPECT_DOUBLE_EQ(three->stages[2].forward.value(), 3.0);
  EXPECT_DOUBLE_EQ(three->stages[0].link.value(), 0.5);
  EXPECT_DOUBLE_EQ(three->stages[1].link.value(), 1.0);
}

TEST(Simulator, ReplicasWithUnlikeTensorParallelismReduceTheLargerSlice) {
  World world;
  world.add_tensor_parallel();
  Plan other = World::plan(1, {{0, 6}}, 1);
  other.pipelines[0].stages[0].tensor_parallel = 4;
  const Plan plan = World::join(World::plan(1, {{0, 6}}, 1), other);
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // Both hold all layers, so the whole model travels in one reduction, of gradients in fp32.
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 3.0);
  EXPECT_DOUBLE_EQ(p->stages[0].memory.copies.value(), 4.0 * (tied + positions + 4 * block + head));
}

TEST(Simulator, FrameworkSaysWhatTrainingAddsToTheLayers) {
  World world;
  simulator::Framework& framework = world.framework;
  framework.name = "ours";
  framework.state = {
      {Precision::fp32, {.weight = Bytes(4), .gradient = Bytes(4), .optimizer = Bytes(8), .copy = {}}},
      {Precision::bf16, {.weight = Bytes(2), .gradient = Bytes(3), .optimizer = Bytes(8), .copy = Bytes(4)}}};
  framework.base = Bytes(3e9);
  framework.workspace_activations = 2.5;
  framework.transfer_overhead = Seconds(0.125);
  framework.reduction_rate = BytesPerSecond(tied);
  for (LayerTime& row : world.data.layer_times) row.key.precision = Precision::bf16;
  for (LayerMemory& row : world.data.layer_memory) row.key.precision = Precision::bf16;
  Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 1);
  plan.job.precision = Precision::bf16;
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // Stage 0: the embedding's 1000 parameters and 2·2000; the gradient of the tied matrix is copied while it is reduced.
  const simulator::RankMemory& memory = p->stages[0].memory;
  EXPECT_DOUBLE_EQ(memory.weights.value(), 2.0 * 5000);
  EXPECT_DOUBLE_EQ(memory.gradients.value(), 3.0 * 5000);
  EXPECT_DOUBLE_EQ(memory.optimizer.value(), 8.0 * 5000);
  EXPECT_DOUBLE_EQ(memory.copies.value(), 4.0 * 5000 + 3.0 * tied);
  EXPECT_DOUBLE_EQ(memory.communication.value(), 2 * 2.0 * 64 * 128);  // one neighbour, one message each way, bf16
  EXPECT_DOUBLE_EQ(memory.workspace.value(), 7 + 2.5 * 100);
  EXPECT_DOUBLE_EQ(memory.base.value(), 3e9);
  // Stage 1: the copy of the tied matrix is a full one.
  EXPECT_DOUBLE_EQ(p->stages[1].memory.weights.value(), 2.0 * (2 * 2000 + 256 + tied));
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 14.0 + 15.0 + 2 * 0.625);
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 3.0 + 3.0);  // 3 bytes of each parameter

  framework.copies_reduced_gradients = false;
  framework.base_by_gpu["cpu"] = Bytes(5e9);
  const auto other = world.predict(plan);
  EXPECT_DOUBLE_EQ(other->stages[0].memory.copies.value(), 4.0 * 5000);
  EXPECT_DOUBLE_EQ(other->stages[0].memory.base.value(), 5e9);

  framework.state.erase(Precision::bf16);
  EXPECT_EQ(world.predict(plan).error().message(),
            "framework 'ours' does not train with precision bf16; use precision fp32, or name another framework with "
            "--framework");
}

TEST(Simulator, HostBoundLayersLoseTheProfilersOverhead) {
  World world;
  world.framework.profiling_overhead = 0.5;
  // Blocks now take as long for two sequences as for one, so one takes 1 + 2 s of the device and the rest is the
  // host's: half of that is the profiler's.
  for (LayerTime& row : world.data.layer_times)
    if (row.key.kind == LayerKind::block && row.key.micro_batch == 2) {
      row.forward = exactly(2.0);
      row.backward = exactly(4.0);
    }
  const auto p = world.predict(World::plan(1, {{0, 6}}, 1));
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_DOUBLE_EQ(p->pipeline_time.value(), 2.0 + 4 * (1.5 + 3.0) + 3.0);
}

// Ten seconds for each of four ranks, a node: 40 s for every all-reduce, of which an embedding has one forward, a block
// two in each pass, and a head one backward.
TEST(Simulator, HostsOfPipelinesOnSeveralNodesLaunchAllReducesOutOfStep) {
  World world;
  world.add_tensor_parallel();
  world.framework.launch_delay_across_nodes = Seconds(10.0);
  const auto pass_times = [&](const std::vector<LayerRange>& layers, int tensor_parallel = 4, int count = 1) {
    Plan plan = World::plan(count, layers, 1);
    for (Stage& stage : plan.pipelines[0].stages) stage.tensor_parallel = tensor_parallel;
    const auto p = world.predict(plan);
    EXPECT_TRUE(p.has_value()) << p.error().message();
    std::vector<double> times;
    for (const auto& stage : p->stages) {
      times.push_back(stage.forward.value());
      times.push_back(stage.backward.value());
    }
    return times;
  };
  const std::vector<double> expected{5 * 40.0, 4 * 40.0, 4 * 40.0, 5 * 40.0};
  const std::vector<double> found = pass_times({{0, 3}, {3, 6}});
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 0.001);  // launches of 2 us
  EXPECT_LT(pass_times({{0, 6}}, 4, 2)[0], 40.0);             // two nodes, but no messages between stages
  EXPECT_LT(pass_times({{0, 3}, {3, 6}}, 2)[0], 20.0);        // one node
  world.framework.launch_delay_across_nodes = Seconds(0.01);  // 0.2 s of an embedding and two blocks that take 5 s
  EXPECT_DOUBLE_EQ(pass_times({{0, 3}, {3, 6}})[0], 5.0);
}

/// A node of so many cores in each of two zones.
Cluster two_zones(const GpuCatalogue& gpus, int cores) {
  std::string text = R"(schema_version = 1
name = "two zones"
[[zones]]
name = "a"
region = "x"
[[zones]]
name = "b"
region = "y"
[[links]]
from = "a"
to = "b"
bandwidth_bytes_per_s = 65536.0
latency_s = 0.25
egress_usd_per_byte = 1e-6
[[partitions]]
name = "normal"
[[nodes]]
count = 1
gpu = "cpu"
gpus_per_node = 1
memory_per_node_bytes = 1e9
partitions = ["normal"]
zone = "a"
[[nodes]]
count = 1
gpu = "cpu"
gpus_per_node = 1
memory_per_node_bytes = 1e9
partitions = ["normal"]
zone = "b"
)";
  const std::string key = "gpus_per_node = 1";
  for (std::size_t at = 0; (at = text.find(key, at)) != std::string::npos; at += key.size())
    text.replace(at + key.size() - 1, 1, std::to_string(cores));
  return parse_cluster(text, "c.toml", gpus).value();
}

TEST(Simulator, ShardingGroupsInTheirZonesSendGradientsOfShardsToOtherZones) {
  World world;
  world.cluster = two_zones(world.gpus, 2);
  world.framework.supports_sharding_degree = true;
  Plan plan = World::join(World::plan(2, {{0, 6}}, 3), World::plan(2, {{0, 6}}, 3));
  plan.pipelines[0].stages[0].zone = "a";
  plan.pipelines[1].stages[0].zone = "b";
  plan.optimizer_sharding = OptimizerSharding::zero3;
  const auto sent = [&](int degree) {
    plan.sharding_degree = degree;
    const auto p = world.predict(plan);
    EXPECT_TRUE(p.has_value()) << p.error().message();
    return p && p->egress_costs.size() == 2 ? p->egress_costs[0].amount.value() : 0.0;
  };
  const double weights = 4.0 * static_cast<double>(world.model.total_parameters());
  // In each of three micro-batches weights are gathered twice and gradients scattered once, by rings over four
  // replicas: three quarters of them leave a zone each time.
  EXPECT_NEAR(sent(0), 3 * 3 * weights * 3 / 4, 1e-6 * weights);
  // With a group in each zone what leaves is the gradients: all-reduced by rings of two, twice a half.
  EXPECT_NEAR(sent(2), 3 * weights, 1e-6 * weights);
  // Three replicas in one zone and one in the other: one of two groups has its ring over both.
  plan.pipelines[0].count = 3;
  plan.pipelines[1].count = 1;
  world.cluster.groups[0].gpus_per_node = 3;
  EXPECT_NEAR(sent(2), 3 * (3 * weights / 2) + 3 * weights, 1e-6 * weights);
}

TEST(Simulator, ZonesCostTimeAndMoneyForWhatLeavesThem) {
  World world;
  world.cluster = two_zones(world.gpus, 1);
  Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 2);
  plan.pipelines[0].stages[0].zone = "a";
  plan.pipelines[0].stages[1].zone = "b";
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // A message of 64·128 values in fp32 takes 0.25 + 0.5 s.
  EXPECT_DOUBLE_EQ(p->stages[0].link.value(), 1.5);
  // The tied matrix, by a ring of two: twice half of its 131,072 bytes, 0.25 + 1 s each.
  EXPECT_DOUBLE_EQ(p->synchronization_time.value(), 2.5);
  // Each way two messages, and 2·(2 - 1)/2 of the matrix.
  ASSERT_EQ(p->egress_costs.size(), 2U);
  for (const simulator::EgressCost& egress : p->egress_costs)
    EXPECT_DOUBLE_EQ(egress.amount.value(), 2 * 32768.0 + 4 * tied);
  EXPECT_DOUBLE_EQ(p->egress_cost_per_iteration.value(), 2e-6 * (2 * 32768.0 + 4 * tied));
  EXPECT_DOUBLE_EQ(p->cost_per_iteration.value(),
                   2 * 0.04 / 3600 * p->iteration_time.value() + p->egress_cost_per_iteration.value());

  // Without a bandwidth the cluster says what bytes cost and the profile how long they take, or that it does not know.
  world.cluster.links[0].bandwidth.reset();
  ASSERT_FALSE(world.predict(plan).has_value());
  EXPECT_TRUE(world.predict(plan).error().what.starts_with("no link joins the zones 'a' and 'b'"));
  for (const double bytes : {1.0, 1e12})
    world.data.links.push_back({.key = {.from = {.gpu = "cpu", .zone = "a"},
                                        .to = {.gpu = "cpu", .zone = "b"},
                                        .scope = LinkScope::inter_node},
                                .message = Bytes(bytes),
                                .time = testing::exactly(0.5)});
  const auto from_profile = world.predict(plan);
  ASSERT_TRUE(from_profile.has_value()) << from_profile.error().message();
  EXPECT_DOUBLE_EQ(from_profile->stages[0].link.value(), 1.0);
  EXPECT_DOUBLE_EQ(from_profile->egress_cost_per_iteration.value(), p->egress_cost_per_iteration.value());
}

TEST(Simulator, WhatLeavesAZoneFollowsTheMessages) {
  World world;
  world.add_tensor_parallel();
  world.set_proportional_links();
  world.cluster = two_zones(world.gpus, 4);
  Plan plan = World::plan(1, {{0, 3}, {3, 6}}, 1);
  plan.pipelines[0].stages[0].zone = "a";
  plan.pipelines[0].stages[0].tensor_parallel = 2;
  plan.pipelines[0].stages[1].zone = "b";
  plan.pipelines[0].stages[1].tensor_parallel = 4;
  using How = simulator::StageMessages;
  // Copies of the message that leave a, and b. The link between the zones carries them all, 0.5 s each, and parts of it
  // take its 0.25 s of latency two times.
  const std::vector<std::tuple<How, double, double>> expected{
      {How::whole, 4.0, 2.0}, {How::pieces, 2.0, 1.0}, {How::once, 1.0, 1.0}};
  for (const auto& [how, out, back] : expected) {
    SCOPED_TRACE(to_string(how));
    world.framework.stage_messages = how;
    const auto p = world.predict(plan);
    ASSERT_TRUE(p.has_value()) << p.error().message();
    ASSERT_EQ(p->egress_costs.size(), 2U);
    const double gradients = 4.0 * tied;  // a ring of two, as in the test above
    EXPECT_DOUBLE_EQ(p->egress_costs[0].amount.value(), out * 32768 + gradients);
    EXPECT_DOUBLE_EQ(p->egress_costs[1].amount.value(), back * 32768 + gradients);
    if (how != How::whole) {
      EXPECT_NEAR(p->stages[0].link.value(), 0.5 * (out + back) + 4 * 0.25 + 0.1 + 0.05, 1e-9);
    }
  }
}

TEST(Simulator, EveryPipelineHasItsOwnMicroBatch) {
  World world;
  Plan plan = World::join(World::plan(1, {{0, 3}, {3, 6}}, 4), World::plan(1, {{0, 3}, {3, 6}}, 2));
  plan.pipelines[1].micro_batch = 2;
  plan.job.global_batch = 4 + 2 * 2;
  const auto p = world.predict(plan);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  // Embedding and two blocks: 1 + 2·2 and 1 + 2·4 s for one sequence, 10 + 200 bytes; twice that for two.
  EXPECT_DOUBLE_EQ(p->stages[0].forward.value(), 5.0);
  EXPECT_DOUBLE_EQ(p->stages[0].backward.value(), 9.0);
  EXPECT_DOUBLE_EQ(p->stages[2].forward.value(), 10.0);
  EXPECT_DOUBLE_EQ(p->stages[2].backward.value(), 18.0);
  // Two in flight on the first stage, and two messages of 64·128 values in fp32 for each sequence.
  EXPECT_DOUBLE_EQ(p->stages[0].memory.activations.value(), 2 * 210.0);
  EXPECT_DOUBLE_EQ(p->stages[2].memory.activations.value(), 2 * 420.0);
  EXPECT_DOUBLE_EQ(p->stages[0].memory.communication.value(), 2 * 32768.0);
  EXPECT_DOUBLE_EQ(p->stages[2].memory.communication.value(), 4 * 32768.0);
}

/// Two ranks of node 0 sum with one rank of node 1, beside which another rank sums something else through the network.
TEST(Simulator, AReductionIsAsSlowAsOnItsBusiestNode) {
  World world;
  world.cluster.groups[0].gpus_per_node = 2;
  for (LinkMeasurement row : std::vector<LinkMeasurement>(world.data.links)) {
    if (row.key.operation != LinkOperation::send_receive) continue;
    row.key.scope = LinkScope::intra_node;
    world.data.links.push_back(row);
    row.key.scope = LinkScope::inter_node;
    row.key.from.ranks = row.key.to.ranks = 2;
    row.time = testing::exactly(1.0);  // two at once take twice as long as one
    world.data.links.push_back(row);
  }
  const Plan plan = World::join(World::plan(2, {{0, 6}}, 2), World::plan(1, {{0, 3}, {3, 6}}, 1));
  const auto prediction = world.predict(plan);
  ASSERT_TRUE(prediction.has_value()) << prediction.error().message();
  // Over three ranks 3 s x (4/3) / (2/2) = 4 s, twice that on node 1: layers 3 to 6, then 0 to 3. The tied embedding is
  // held by all four: 3 s x (6/4) / (2/2) = 4.5 s, one ring through each node.
  EXPECT_NEAR(prediction->synchronization_time.value(), 8.0 + 8.0 + 4.5, 1e-9);
}

}  // namespace
}  // namespace sailor::simulator_test
