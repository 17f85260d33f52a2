// Explanations of why plans win or lose, for predictions written by hand.
#include "planner/explain.hpp"

#include <gtest/gtest.h>

#include "planner/outline.hpp"

namespace sailor::planner::explain_test {
namespace {

Stage stage(int first, int last, std::string gpu = "A100-40", int tensor_parallel = 4, std::string zone = "a") {
  return {.layers = {first, last}, .gpu = std::move(gpu), .tensor_parallel = tensor_parallel, .zone = std::move(zone)};
}

Plan plan_of(std::vector<Pipeline> pipelines, int micro_batch = 2) {
  Plan plan;
  plan.micro_batch = micro_batch;
  plan.pipelines = std::move(pipelines);
  for (const Pipeline& pipeline : plan.pipelines)
    plan.job.global_batch += pipeline.count * pipeline.micro_batches * plan.micro_batch_of(pipeline);
  return plan;
}

/// Two stages of 3 s and 2 s a micro-batch, four micro-batches: the first computes 12 s of the 17 s of the pipeline,
/// and 1.5 s go to messages. Then 2 s of reduction and 1 s of optimizer step.
Candidate two_stages() {
  Candidate candidate;
  candidate.plan = plan_of({{.count = 2, .micro_batches = 4, .stages = {stage(0, 13), stage(13, 26)}}});
  simulator::Prediction& prediction = candidate.prediction;
  prediction.iteration_time = Seconds(20);
  prediction.pipeline_time = Seconds(17);
  prediction.transfer_time = Seconds(1.5);
  prediction.synchronization_time = Seconds(2);
  prediction.update_time = Seconds(1);
  prediction.cost_per_iteration = Usd(0.5);
  for (const int s : {0, 1}) {
    simulator::StagePrediction row{.pipeline_entry = 0, .stage = s};
    row.forward = Seconds(s == 0 ? 1.0 : 0.5);
    row.backward = Seconds(s == 0 ? 2.0 : 1.5);
    row.memory.weights = (s == 0 ? 6.0 : 4.0) * gib;
    row.capacity = 8.0 * gib;
    prediction.stages.push_back(row);
  }
  candidate.memory_headroom = 0.25;
  return candidate;
}

/// One stage that computes 10 s, and reduces for 5 s; none of it is more than a plan needs.
Candidate one_stage() {
  Candidate candidate;
  candidate.plan = plan_of({{.count = 4, .micro_batches = 2, .stages = {stage(0, 26)}}});
  simulator::Prediction& prediction = candidate.prediction;
  prediction.iteration_time = Seconds(16);
  prediction.pipeline_time = Seconds(10);
  prediction.synchronization_time = Seconds(5);
  prediction.update_time = Seconds(1);
  prediction.cost_per_iteration = Usd(0.4);
  simulator::StagePrediction row{.pipeline_entry = 0, .stage = 0};
  row.forward = Seconds(2);
  row.backward = Seconds(3);
  row.memory.weights = 6.0 * gib;
  row.capacity = 8.0 * gib;
  prediction.stages.push_back(row);
  candidate.memory_headroom = 0.25;
  return candidate;
}

Cluster nodes_of_four(int nodes) {
  Cluster cluster;
  cluster.groups.push_back({.nodes = {},
                            .count = nodes,
                            .gpu = "A100-40",
                            .gpus_per_node = 4,
                            .memory_per_node = Bytes(1e12),
                            .zone = "a",
                            .partitions = {}});
  return cluster;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(TimeParts, AddUpToTheIteration) {
  const Candidate candidate = two_stages();
  const TimeParts parts = time_parts(candidate.plan, candidate.prediction);
  EXPECT_DOUBLE_EQ(parts.compute.value(), 12.0);
  EXPECT_DOUBLE_EQ(parts.transfers.value(), 1.5);
  EXPECT_DOUBLE_EQ(parts.bubble.value(), 17.0 - 12.0 - 1.5);
  EXPECT_DOUBLE_EQ(parts.synchronization.value(), 2.0);
  EXPECT_DOUBLE_EQ(parts.update.value(), 1.0);
  EXPECT_DOUBLE_EQ(parts.total().value(), 20.0);
}

TEST(TimeParts, AreThoseOfThePipelineThatEndsLast) {
  Candidate candidate = two_stages();
  candidate.plan.pipelines.push_back({.count = 1, .micro_batches = 3, .stages = {stage(0, 26)}});
  simulator::StagePrediction row{.pipeline_entry = 1, .stage = 0};
  row.forward = Seconds(2);
  row.backward = Seconds(3.5);
  candidate.prediction.stages.push_back(row);
  candidate.prediction.slowest_entry = 1;
  candidate.prediction.transfer_time = Seconds(0);
  const TimeParts parts = time_parts(candidate.plan, candidate.prediction);
  EXPECT_DOUBLE_EQ(parts.compute.value(), 16.5);  // 3 x 5.5
  EXPECT_DOUBLE_EQ(parts.bubble.value(), 0.5);
}

TEST(Explain, SaysWhyTheWinnerWinsAndWhatTheNextLosesBy) {
  SearchResult result;
  result.plans = {one_stage(), two_stages()};
  result.bound = {.found = 1.0 / 16.0, .bound = 1.013 / 16.0, .gap = 0.013};
  Request request;
  request.memory_margin = 0.05;
  result.nodes = nodes_of_four(6).groups;
  EXPECT_FALSE(has(explain(result, request), "It was found by"));
  result.plans.front().found_by = {Step::part_of_cluster, Step::two_pools, Step::local_search};
  const std::string text = explain(result, request);
  EXPECT_TRUE(has(text,
                  "It was found by a part of the cluster on its own, then templates over two pools, then local "
                  "search.\n"))
      << text;
  EXPECT_TRUE(
      has(text, "Plan 1 is 4 x [A100-40 tp4] b2 n2: 16.0 s an iteration (0.0625 iterations/s), $0.400, 16 devices."))
      << text;
  // 10, 5 and 1 s of 16 s.
  EXPECT_TRUE(has(text,
                  "computation 10.0 s (62%: 26 layers on A100-40 tp4, 2 x 2 sequences), reduction of gradients "
                  "5.00 s (31%: 4 pipelines), optimizer step 1.00 s (6.2%"))
      << text;
  EXPECT_TRUE(has(text, "Proved: no other plan is more than 1.3% faster")) << text;
  EXPECT_TRUE(has(text, "Memory is tightest on A100-40 (stage 0): 6.00 GiB of 8.00 GiB, 25% free; 5% was asked for."))
      << text;
  EXPECT_TRUE(has(text, "8 of 24 A100-40 stay idle")) << text;
  // Of 16 s: bubble 3.5 s, reduction -3 s, computation +2 s, messages 1.5 s; the whole +4 s.
  EXPECT_TRUE(
      has(text,
          "Plan 2 is 25% slower: fill and drain +22% (4 micro-batches for 2 stages), reduction of gradients -19% "
          "(2 pipelines), computation +12% (13 layers on A100-40 tp4, 4 x 2 sequences), messages between "
          "stages +9.4%."))
      << text;
}

TEST(Explain, UnderTheObjectiveOfMoneySaysTimeAndRate) {
  SearchResult result;
  result.plans = {one_stage(), two_stages()};
  Request request;
  request.objective = Objective::cost;
  // 0.5 / 0.4 USD; 20 / 16 s: as many USD per second.
  EXPECT_TRUE(has(explain(result, request), "Plan 2 is 25% dearer (25% slower, as many USD per second)"));
  // 20 s x $0.50 = 10 beside 16 s x $0.40 = 6.4: throughput per USD of 0.64.
  request.objective = Objective::throughput_per_usd;
  EXPECT_TRUE(has(explain(result, request), "Plan 2 is 36% worse in throughput per USD (25% slower,"))
      << explain(result, request);
}

TEST(Explain, BoundsAreRoundedUpAsInTheTable) {
  EXPECT_EQ(at_most(0.0123), "1.3%");
  EXPECT_EQ(at_most(2.6227), "263%");
  SearchResult result;
  result.plans = {one_stage()};
  result.bound = {.found = 1.0, .bound = 3.6227, .gap = 2.6227};
  EXPECT_TRUE(has(explain(result, {}), "Proved: no other plan is more than 263% faster")) << explain(result, {});
}

TEST(BrokenLimits, AreNamedWithHowMuchTheyAreMissedBy) {
  const Candidate candidate = two_stages();  // 20 s, 0.05 iterations/s, $0.50, 16 devices on 4 nodes
  const Cluster cluster = nodes_of_four(6);
  Request request;
  EXPECT_TRUE(broken_limits(candidate, request, &cluster).empty());
  request.limits = {.cost = Usd(0.4),
                    .throughput = 0.1,
                    .gpus = 15,
                    .nodes = 3,
                    .node_hours = 10.0,
                    .wall_time = Seconds(2 * 3600.0)};
  request.iterations = 720;  // 4 h, 16 node-hours
  const std::vector<std::string> expected{"an iteration costs $0.5, 25% over --max-cost $0.4",
                                          "it does 0.0500 iterations/s, 50% under --min-throughput 0.100",
                                          "it takes 16 devices, --max-gpus allows 15",
                                          "it takes 4 nodes, --max-nodes allows 3",
                                          "the training takes 4.00 h, 100% over --within 2.00 h",
                                          "the training takes 16.0 node-hours, 60% over --max-node-hours 10"};
  EXPECT_EQ(broken_limits(candidate, request, &cluster), expected);
  request.limits = {.cost = Usd(0.5), .throughput = 0.05, .gpus = 16, .nodes = 4};
  EXPECT_TRUE(broken_limits(candidate, request, &cluster).empty());
  // A cost just over the limit, far over it, and over a limit of nothing.
  const auto cost_over = [&](double limit) {
    request.limits = {.cost = Usd(limit)};
    return broken_limits(candidate, request, &cluster).front();
  };
  EXPECT_EQ(cost_over(0.499), "an iteration costs $0.5, 0.2% over --max-cost $0.499");
  EXPECT_EQ(cost_over(0.001), "an iteration costs $0.5, 500 times --max-cost $0.001");
  EXPECT_EQ(cost_over(0.0), "an iteration costs $0.5, over --max-cost $0");
}

TEST(BrokenPins, AreNamedOnceEach) {
  Plan plan = two_stages().plan;  // 2 x [A100-40 tp4: 2x13] b2 n4, zone a
  Pins pins;
  for (const char* pin : {"pipeline_parallel=2", "data_parallel=2", "tensor_parallel=4", "micro_batch=2",
                          "schedule=1f1b", "recompute=none", "optimizer_sharding=none", "gpu=A100-40", "zone=a"})
    ASSERT_TRUE(add_pin(pin, pins).has_value()) << pin;
  EXPECT_TRUE(broken_pins(plan, pins).empty());
  pins = {};
  for (const char* pin : {"pipeline_parallel=4", "data_parallel=1", "tensor_parallel=1", "micro_batch=8",
                          "schedule=gpipe", "recompute=full", "optimizer_sharding=zero1", "gpu=V100-16", "gpu=cpu"})
    ASSERT_TRUE(add_pin(pin, pins).has_value()) << pin;
  pins.max_tensor_parallel = 2;
  const std::vector<std::string> expected{"its data_parallel is 2, --pin data_parallel=1",
                                          "its schedule is 1f1b, --pin schedule=gpipe",
                                          "its optimizer_sharding is none, --pin optimizer_sharding=zero1",
                                          "its pipeline_parallel is 2, --pin pipeline_parallel=4",
                                          "its micro_batch is 2, --pin micro_batch=8",
                                          "its tensor_parallel is 4, --pin tensor_parallel=1",
                                          "its recompute is none, --pin recompute=full",
                                          "its gpu is A100-40, --pin gpu=V100-16,gpu=cpu",
                                          "its tensor_parallel is 4, --max-tensor-parallel allows 2"};
  EXPECT_EQ(broken_pins(plan, pins), expected);
}

TEST(WhyNot, ComparesPartByPartAndNamesWhatForbidsThePlan) {
  Request request;
  request.limits.gpus = 8;
  const std::string text = why_not(two_stages(), one_stage(), request, {"it does not fit into memory: too much"});
  EXPECT_TRUE(has(text, "Yours is 2 x [A100-40 tp4: 2x13] b2 n4: 20.0 s an iteration")) << text;
  EXPECT_TRUE(has(text, "Yours cannot be chosen: it does not fit into memory: too much.")) << text;
  EXPECT_TRUE(has(text, "Yours cannot be chosen: it takes 16 devices, --max-gpus allows 8.")) << text;
  EXPECT_TRUE(has(text, "Yours is 25% slower: fill and drain +22%")) << text;
  EXPECT_TRUE(has(text, "fill and drain           3.50 s     0 s      +21.9%")) << text;
}

TEST(WhyNot, APlanThatIsFasterIsSoByItsIterationsPerSecond) {
  // 16 s instead of 20 s: 25% more iterations, as a bound would say it.
  EXPECT_TRUE(has(why_not(one_stage(), two_stages(), {}), "Yours is 25% faster: "));
}

TEST(WhyNot, SaysWhenItIsTheSamePlan) {
  EXPECT_TRUE(has(why_not(one_stage(), one_stage(), {}), "They are the same plan."));
}

TEST(Outline, FoldsStagesZonesAndCounts) {
  // Two micro-batch counts of one shape are one kind.
  EXPECT_EQ(outline(plan_of({{.count = 1, .micro_batches = 5, .stages = {stage(0, 26)}},
                             {.count = 3, .micro_batches = 4, .stages = {stage(0, 26)}}})),
            "4 x [A100-40 tp4] b2 n4-5");
  EXPECT_EQ(outline(plan_of({{.count = 2,
                              .micro_batches = 4,
                              .stages = {stage(0, 3, "V100-16"), stage(3, 6, "V100-16"), stage(6, 10, "V100-16"),
                                         stage(10, 26, "A100-40", 1)}}})),
            "2 x [V100-16 tp4: 2x3 4 | A100-40 tp1: 16] b2 n4");
  // Alike but for the zone: one kind in several zones; a pipeline across zones names them.
  EXPECT_EQ(outline(plan_of({{.count = 2, .micro_batches = 4, .stages = {stage(0, 26)}},
                             {.count = 2, .micro_batches = 4, .stages = {stage(0, 26, "A100-40", 4, "b")}}})),
            "4 x [A100-40 tp4] b2 n4 in 2 zones");
  EXPECT_EQ(
      outline(plan_of({{.count = 2, .micro_batches = 4, .stages = {stage(0, 13), stage(13, 26, "A100-40", 4, "b")}}})),
      "2 x [A100-40@a tp4: 13 | A100-40@b tp4: 13] b2 n4");
  // 8 of 11 sequences, and a micro-batch of its own.
  const Plan mixed = plan_of({{.count = 1, .micro_batches = 3, .micro_batch = 1, .stages = {stage(0, 26, "V100-16")}},
                              {.count = 1, .micro_batches = 4, .stages = {stage(0, 26)}}});
  EXPECT_EQ(outline(mixed), "1 x [A100-40 tp4] b2 n4 + 1 x [V100-16 tp4] b1 n3");
  EXPECT_NEAR(pipeline_kinds(mixed).front().batch_share, 8.0 / 11.0, 1e-12);
  Plan unusual_plan = plan_of({{.count = 1, .micro_batches = 4, .stages = {stage(0, 26)}}});
  unusual_plan.schedule = Schedule::gpipe;
  unusual_plan.optimizer_sharding = OptimizerSharding::zero1;
  unusual_plan.pipelines.front().stages.front().recompute = Recompute::full;
  EXPECT_EQ(outline(unusual_plan), "1 x [A100-40 tp4 recompute full] b2 n4, gpipe, zero1");
}

}  // namespace
}  // namespace sailor::planner::explain_test
