// Context and expert parallelism in simulate(), worked out by hand. The small model is tiny-gpt with 8 experts of width
// 32 in each of its four blocks, of which a token takes two: 2·128·32 parameters each, 65,536 of a block.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "plan/placement.hpp"
#include "planner/side_by_side.hpp"
#include "simulator/quick.hpp"
#include "tests/fakes/simulator_world.hpp"

namespace sailor::parallel_degrees_test {
namespace {

using testing::World;

constexpr double expert_weights = 65536.0;  // of a block
constexpr double sequence_tokens = 64.0;    // of a micro-batch of one sequence

/// GH200 that nobody measured, in nodes of `node` devices, with links of these speeds.
struct Estimated : World {
  explicit Estimated(int node, double within = 1e6, double between = 1e6) {
    data = {};
    model = parse_model(read_text_file(SAILOR_SOURCE_DIR "/profiles/models/tiny-gpt.toml").value() +
                            "\n[experts]\ncount = 8\nper_token = 2\nfeed_forward = 32\n",
                        "m.toml")
                .value();
    NodeGroup& group = cluster.groups[0];
    group.gpu = "GH200-96";
    group.gpus_per_node = node;
    group.count = 64;
    cluster.network = {.between_nodes = BytesPerSecond(between), .within_node = BytesPerSecond(within)};
    framework.kernels.context_exchange = ContextExchange::ring;
  }
  [[nodiscard]] simulator::Prediction predicted(const Plan& plan) const {
    auto prediction = predict(plan);
    EXPECT_TRUE(prediction.has_value()) << prediction.error().message();
    return prediction.value_or(simulator::Prediction{.stages = {{}}});
  }
};

Plan on_gpus(int count, const std::vector<LayerRange>& ranges, int micro_batches) {
  Plan plan = World::plan(count, ranges, micro_batches);
  for (Stage& stage : plan.pipelines[0].stages) stage.gpu = "GH200-96";
  return plan;
}

/// How much longer the passes of one micro-batch take over links of 1 MB/s than over links of 2 MB/s: by 0.5 s for each
/// MB that has to be waited for.
double extra_seconds(const Plan& plan, int node, double within, double between) {
  const auto slow = Estimated(node, within, between).predicted(plan);
  const auto fast = Estimated(node, 2 * within, 2 * between).predicted(plan);
  EXPECT_DOUBLE_EQ(slow.closed_form_time.value(), slow.iteration_time.value());  // one stage: both forms are exact
  return (slow.pipeline_time - fast.pipeline_time).value() / plan.pipelines[0].micro_batches;
}

/// How much longer the reductions of an iteration take over links of 1 MB/s than over links of 2 MB/s.
double extra_reduction(const Plan& plan, int node, double within, double between) {
  const auto time = [&](double speed) {
    Estimated world(node, speed * within, speed * between);
    world.framework.supports_sharding_degree = true;
    return world.predicted(plan).synchronization_time.value();
  };
  return time(1.0) - time(2.0);
}

TEST(ParallelDegrees, ShardingGroupsOfANodeExchangeThereAndTheirShardsBetweenNodes) {
  Plan plan = on_gpus(8, {{0, 6}}, 3);
  plan.optimizer_sharding = OptimizerSharding::zero1;
  const double all = 4.0 * static_cast<double>(Estimated(4).model.total_parameters());
  plan.sharding_degree = 4;
  // On nodes of four: rings of four there, and between two nodes a ring of a quarter for each device and its own link.
  EXPECT_NEAR(extra_reduction(plan, 4, 1e6, 1e30), 2 * all * 3 / 4 * 0.5e-6, 1e-6 * all * 1e-6);
  EXPECT_NEAR(extra_reduction(plan, 4, 1e30, 1e6), 2 * all / 4 * 1 / 2 * 0.5e-6, 1e-6 * all * 1e-6);
  // Groups of two leave nothing for the links within nodes but theirs; two of them on a node sum over four.
  plan.sharding_degree = 2;
  EXPECT_NEAR(extra_reduction(plan, 4, 1e6, 1e30), 2 * all * 1 / 2 * 0.5e-6, 1e-6 * all * 1e-6);
  EXPECT_NEAR(extra_reduction(plan, 4, 1e30, 1e6), 2 * all / 2 * 3 / 4 * 0.5e-6, 1e-6 * all * 1e-6);
  // On nodes of two a group of four lies over two of them.
  plan.sharding_degree = 4;
  EXPECT_NEAR(extra_reduction(plan, 2, 1e30, 1e6), 2 * all * 3 / 4 * 0.5e-6 + 2 * all / 4 * 1 / 2 * 0.5e-6,
              1e-6 * all * 1e-6);
}

TEST(ParallelDegrees, ShardingGroupsDivideTheReplicasAndHoldExpertGroups) {
  Plan plan = on_gpus(6, {{0, 6}}, 3);
  plan.optimizer_sharding = OptimizerSharding::zero3;
  const auto problem = [&] {
    const auto checked = check_plan(plan);
    return checked ? std::string() : checked.error().message();
  };
  plan.sharding_degree = 4;
  EXPECT_EQ(problem(),
            "sharding_degree 4 does not divide the 6 replicas of a layer (6 pipelines x context_parallel 1); change "
            "sharding_degree or the number of pipelines");
  plan.sharding_degree = 3;
  EXPECT_EQ(problem(), "");
  plan.expert_parallel = 2;
  EXPECT_EQ(problem(), "sharding_degree 3 is no multiple of expert_parallel 2; change one of them");
  plan.expert_parallel = 1;
  plan.optimizer_sharding = OptimizerSharding::none;
  EXPECT_EQ(problem(),
            "sharding_degree is 3 but optimizer_sharding is none: nothing is sharded; remove sharding_degree, or set "
            "optimizer_sharding");
  // Written, read and named.
  plan.optimizer_sharding = OptimizerSharding::zero1;
  const auto again = parse_plan(plan_to_toml(plan), "plan.toml");
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->sharding_degree, 3);
  EXPECT_EQ(plan_to_toml(*again), plan_to_toml(plan));
  EXPECT_NE(describe(plan).find("zero1 over 3"), std::string::npos) << describe(plan);
  EXPECT_NE(check_trainable(plan).error().message().find("the plan has sharding_degree = 3 of 6 replicas"),
            std::string::npos);
  plan.sharding_degree = 6;
  EXPECT_TRUE(check_trainable(plan).has_value());
}

TEST(ParallelDegrees, ExpertsAreDividedAndTheirOptimizerShardedAmongFewerReplicas) {
  Estimated world(4);
  Plan plan = on_gpus(4, {{0, 6}}, 2);
  plan.optimizer_sharding = OptimizerSharding::zero1;
  const double all = static_cast<double>(world.model.total_parameters());
  const double dense = all - 4 * expert_weights;
  const auto whole = world.predicted(plan).stages[0].memory;
  EXPECT_DOUBLE_EQ(whole.weights.value(), 4.0 * all);
  EXPECT_DOUBLE_EQ(whole.optimizer.value(), 8.0 * all / 4);
  plan.expert_parallel = 2;  // two ranks hold the same experts
  const auto halves = world.predicted(plan).stages[0].memory;
  EXPECT_DOUBLE_EQ(halves.weights.value(), 4.0 * (dense + 4 * expert_weights / 2));
  EXPECT_DOUBLE_EQ(halves.gradients.value(), 4.0 * (dense + 4 * expert_weights / 2));
  EXPECT_DOUBLE_EQ(halves.optimizer.value(), 8.0 * (dense / 4 + 4 * expert_weights / 2 / 2));
  plan.expert_parallel = 4;  // one
  const auto quarters = world.predicted(plan).stages[0].memory;
  EXPECT_DOUBLE_EQ(quarters.weights.value(), 4.0 * (dense + 4 * expert_weights / 4));
  EXPECT_DOUBLE_EQ(quarters.optimizer.value(), 8.0 * (dense / 4 + 4 * expert_weights / 4));
  // Groups of two replicas, in which each holds half of the experts: nothing else to share them with.
  plan.expert_parallel = 2;
  plan.sharding_degree = 2;
  world.framework.supports_sharding_degree = true;
  EXPECT_DOUBLE_EQ(world.predicted(plan).stages[0].memory.optimizer.value(),
                   8.0 * (dense / 2 + 4 * expert_weights / 2));
  // As many tokens go through them, so activations stay.
  EXPECT_DOUBLE_EQ(quarters.activations.value(), whole.activations.value());
}

TEST(ParallelDegrees, TokensTravelToTheirExpertsAndBackInBothPasses) {
  Plan plan = on_gpus(4, {{0, 6}}, 3);
  plan.expert_parallel = 4;
  // Each token is sent to two experts, 128 values of 4 bytes; 4 of 4 parts go to four ranks, one of which is the
  // sender. To the experts and back, in four blocks; backward once more, since no copies of tokens are kept.
  const double all = sequence_tokens * 2 * 128 * 4;
  EXPECT_NEAR(extra_seconds(plan, 4, 1e6, 1e30), 20 * all * 3 / 4 * 0.5e-6, 1e-9);
  // On nodes of one device all of it crosses the network.
  EXPECT_NEAR(extra_seconds(plan, 1, 1e30, 1e6), 20 * all * 3 / 4 * 0.5e-6, 1e-9);
  // On nodes of two, two of the four parts do, beside the one that stays on the node.
  EXPECT_NEAR(extra_seconds(plan, 2, 1e6, 1e6), 20 * all * 2 / 4 * 0.5e-6, 1e-9);
  EXPECT_NEAR(extra_seconds(plan, 2, 1e6, 1e30), 20 * all * 1 / 4 * 0.5e-6, 1e-9);
  // Full recomputation sends them to the experts and back once more.
  plan.pipelines[0].stages[0].recompute = Recompute::full;
  EXPECT_NEAR(extra_seconds(plan, 1, 1e30, 1e6), 28 * all * 3 / 4 * 0.5e-6, 1e-9);
}

TEST(ParallelDegrees, TheLoadOfExpertsIsAnAssumptionThatIsStated) {
  Plan plan = on_gpus(4, {{0, 6}}, 3);
  plan.expert_parallel = 4;
  Estimated world(4);
  const auto said = [](const simulator::Prediction& prediction) {
    std::string text;
    for (const auto& input : prediction.estimated_inputs)
      if (input.what.starts_with("load of")) text += input.what;
    return text;
  };
  const auto equal = world.predicted(plan);
  EXPECT_EQ(said(equal),
            "load of expert-parallel ranks (not measured: the busiest gets 1 x the mean, as if tokens were divided "
            "equally)");
  world.framework.kernels.expert_imbalance = 1.5;
  world.framework.states_expert_imbalance = true;
  const auto unequal = world.predicted(plan);
  EXPECT_EQ(said(unequal),
            "load of expert-parallel ranks (not measured: the busiest gets 1.5 x the mean, as the framework's file "
            "states)");
  // Half of the messages more, at 1 MB/s; the products of the experts add nothing that counts beside it.
  const double messages = 20 * sequence_tokens * 2 * 128 * 4 * 3 / 4 * 1e-6;
  EXPECT_NEAR((unequal.pipeline_time - equal.pipeline_time).value() / 3, 0.5 * messages, 1e-3 * messages);
  plan.expert_parallel = 1;
  EXPECT_EQ(said(world.predicted(plan)), "");
}

TEST(ParallelDegrees, KeysAndValuesGoRoundARingWhereAttentionDoesNotHideIt) {
  Plan plan = on_gpus(1, {{0, 6}}, 3);
  plan.context_parallel = 4;
  // 16 tokens of a rank, keys and values of 128 each: three times around forward, and twice that backward, as their
  // gradients travel, too.
  const double step = sequence_tokens / 4 * 2 * 128 * 4;
  EXPECT_NEAR(extra_seconds(plan, 4, 1e6, 1e30), 4 * 9 * step * 0.5e-6, 1e-9);
  EXPECT_NEAR(extra_seconds(plan, 1, 1e30, 1e6), 4 * 9 * step * 0.5e-6, 1e-9);
  EXPECT_NEAR(extra_seconds(plan, 2, 1e30, 1e6), 4 * 9 * step * 0.5e-6, 1e-9);  // the slowest step counts
  plan.pipelines[0].stages[0].recompute = Recompute::full;
  EXPECT_NEAR(extra_seconds(plan, 4, 1e6, 1e30), 4 * 12 * step * 0.5e-6, 1e-9);
}

TEST(ParallelDegrees, ExchangesOfHeadsAreMessagesToAllOthers) {
  const LayerKernels kernels{.context_exchange = ContextExchange::all_to_all};
  const Model model = find_model("llama-3-8b", SAILOR_SOURCE_DIR "/profiles/models").value();  // 32 and 8 heads of 128
  LayerKey key;
  key.kind = LayerKind::block;
  key.first_layer = 1;
  key.precision = Precision::bf16;
  key.tensor_parallel = 2;
  key.context_parallel = 4;
  key.micro_batch = 1;
  key.sequence_length = 8192;
  const double values = 8192.0 / 4 * 128 / 2;  // of one head, shared by two ranks
  const ExchangeWork none = exchange_work(model, key, kernels);
  EXPECT_DOUBLE_EQ(none.forward_heads.value(), 2 * values * (32 + 8 + 8 + 32));  // bytes
  EXPECT_DOUBLE_EQ(none.backward_heads.value(), 2 * values * (32 + 8 + 8 + 2 * 32));
  EXPECT_EQ(none.ring_step, Bytes(0));
  key.recompute = Recompute::full;
  EXPECT_EQ(exchange_work(model, key, kernels).backward_heads, none.forward_heads + none.backward_heads);
  EXPECT_TRUE(can_exchange(model, kernels, 2, 4));
  EXPECT_FALSE(can_exchange(model, kernels, 2, 8));
  EXPECT_TRUE(can_exchange(model, kernels, 16, 1));
  EXPECT_TRUE(can_exchange(model, {}, 2, 8));
}

TEST(ParallelDegrees, LongSequencesHideTheRingAndKeepHalfOfTheActivations) {
  const auto predicted = [](int context_parallel, double within) {
    Estimated world(4, within);
    world.model = find_model("llama-3-8b", SAILOR_SOURCE_DIR "/profiles/models").value();
    Plan plan = on_gpus(1, {{0, 34}}, 2);
    plan.job.model = "llama-3-8b";
    plan.job.sequence_length = 8192;
    plan.job.precision = Precision::bf16;
    plan.context_parallel = context_parallel;
    return world.predicted(plan);
  };
  const auto whole = predicted(1, 150e9);
  const auto half = predicted(2, 150e9);
  EXPECT_EQ(half.pipeline_time, predicted(2, 300e9).pipeline_time);  // 16 MB beside 0.5 ms of attention
  EXPECT_GT(predicted(2, 1e9).pipeline_time, half.pipeline_time);
  EXPECT_GT(half.pipeline_time, whole.pipeline_time * 0.5);  // weights are read as often, updates stay
  EXPECT_LT(half.pipeline_time, whole.pipeline_time * 0.55);
  EXPECT_DOUBLE_EQ(half.stages[0].memory.activations.value(), whole.stages[0].memory.activations.value() / 2);
  EXPECT_DOUBLE_EQ(half.stages[0].memory.weights.value(), whole.stages[0].memory.weights.value());
  // Both ranks have the same weights, whose gradients are summed.
  EXPECT_EQ(whole.synchronization_time, Seconds(0));
  EXPECT_GT(half.synchronization_time, Seconds(0));
  EXPECT_EQ(half.device_costs[0].devices, 2);
  // The same work in this time on two devices.
  EXPECT_DOUBLE_EQ(*half.utilization * 2 * half.iteration_time.value(),
                   *whole.utilization * whole.iteration_time.value());
}

TEST(ParallelDegrees, ThePlannersFormulaPricesThemAsTheSimulatorDoes) {
  const Estimated world(4, 1e9, 1e8);
  const Profile nothing{ProfileData()};
  const simulator::Environment environment = world.environment(nothing);
  simulator::QuickSimulator quick(environment);
  for (const int context_parallel : {1, 2})
    for (const int expert_parallel : {1, 2, 4, 8}) {
      Plan plan = on_gpus(4, {{0, 3}, {3, 6}}, 6);
      plan.optimizer_sharding = OptimizerSharding::zero1;
      plan.context_parallel = context_parallel;
      plan.expert_parallel = expert_parallel;
      if (4 * context_parallel % expert_parallel != 0) continue;
      SCOPED_TRACE(describe(plan));
      const auto prediction = world.predicted(plan);
      const auto formula = quick.predict(plan);
      ASSERT_TRUE(formula.has_value()) << formula.error().message();
      EXPECT_EQ(formula->iteration_time, prediction.closed_form_time);
      EXPECT_EQ(quick.event_driven_time(), prediction.iteration_time);
      EXPECT_EQ(formula->peak_memory, prediction.peak_memory);
      EXPECT_NEAR(prediction.closed_form_time / prediction.iteration_time, 1.0, 0.1);
    }
}

TEST(ParallelDegrees, NoMeasurementIsOfAPart) {
  World world;
  Plan plan = World::plan(1, {{0, 6}}, 3);
  const auto whole = world.predict(plan);
  plan.context_parallel = 2;
  const auto half = world.predict(plan);
  ASSERT_TRUE(whole.has_value() && half.has_value()) << half.error().message();
  EXPECT_EQ(whole->origin, Origin::measured);
  EXPECT_EQ(half->origin, Origin::estimated);
  EXPECT_LT(half->pipeline_time, whole->pipeline_time);
  world.measured_only = true;
  const auto refused = world.predict(plan);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message(),
            "layers of tiny-gpt at context parallel 2 and expert parallel 1 are not measured; allow estimates, or use "
            "degrees of 1");
}

TEST(ParallelDegrees, RanksThatExchangeTokensArePlacedTogether) {
  Plan plan = on_gpus(4, {{0, 3}, {3, 6}}, 1);
  plan.expert_parallel = 4;
  const NodeSizes fours{{"GH200-96", 4}};
  // Stage 0 of all four pipelines on one node, stage 1 on the other; a pipeline has two ranks.
  EXPECT_EQ(nodes_of_ranks(plan, fours).value(), (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
  plan.expert_parallel = 1;
  EXPECT_EQ(nodes_of_ranks(plan, fours).value(), (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
  // Groups of four on a node each: the two parts of a sequence are on two nodes.
  Plan wide = on_gpus(1, {{0, 6}}, 1);
  wide.pipelines[0].stages[0].tensor_parallel = 4;
  wide.context_parallel = 2;
  EXPECT_EQ(wide.ranks(), 8);
  EXPECT_EQ(nodes_of_ranks(wide, fours).value(), (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
  NodeUse use;
  ASSERT_TRUE(use.place(wide, fours).has_value());
  EXPECT_EQ(use.parts(0).parts, 2);
  EXPECT_EQ(use.parts(0).groups, 1);
  ASSERT_EQ(use.nodes().size(), 1U);
  EXPECT_EQ(use.nodes()[0].count, 2);
  EXPECT_EQ(use.nodes()[0].ranks, 4);
  const auto roles = rank_roles(wide);
  EXPECT_EQ(roles[5].context_parallel_index, 1);
  EXPECT_EQ(roles[5].tensor_parallel_index, 1);
}

planner::Request small_request() {
  planner::Request request;
  request.job = World::plan(1, {{0, 6}}, 16).job;
  return request;
}

TEST(ParallelDegrees, ThePlannerTriesDegreesAndSaysWhich) {
  Estimated world(4, 1e11, 1e10);
  world.cluster.groups[0].count = 4;
  world.framework.supports_expert_parallel = false;
  planner::Request request = small_request();
  const auto without = world.search(request);
  ASSERT_TRUE(without.has_value()) << without.error().message();
  EXPECT_EQ(without->degrees, "Not tried: expert_parallel, which framework sailor does not have.");
  world.framework.supports_context_parallel = world.framework.supports_expert_parallel = true;
  const auto found = world.search(request);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_TRUE(
      found->degrees.starts_with("Tried briefly: expert_parallel 1, 2, 4, 8. Searched in full: expert_parallel "))
      << found->degrees;
  EXPECT_LE(found->plans.front().prediction.iteration_time, without->plans.front().prediction.iteration_time);

  request.pins.expert_parallel = 4;
  const auto pinned = world.search(request);
  ASSERT_TRUE(pinned.has_value()) << pinned.error().message();
  EXPECT_EQ(pinned->degrees, "");
  for (const planner::Candidate& candidate : pinned->plans) {
    SCOPED_TRACE(describe(candidate.plan));
    EXPECT_EQ(candidate.plan.expert_parallel, 4);
    EXPECT_TRUE(check_plan(candidate.plan, world.model).has_value());
    EXPECT_EQ(candidate.prediction.iteration_time, world.predicted(candidate.plan).iteration_time);
  }
}

// Degrees and kinds of recomputation are searched side by side.
TEST(ParallelDegrees, TheNumberOfThreadsChangesNothingAndProgressIsThatOfAllSearches) {
  Estimated world(4, 1e11, 1e10);
  world.cluster.groups[0].count = 4;
  world.framework.supports_context_parallel = world.framework.supports_expert_parallel = true;
  world.framework.uniformity.one_recompute = true;
  planner::Request request = small_request();
  request.pins.recompute.reset();
  for (const bool pareto : {false, true}) {
    request.pareto = pareto;
    std::optional<planner::SearchResult> first;
    for (const int threads : {1, 2, 5}) {
      request.effort.threads = threads;
      planner::SearchProgress last;
      const auto found = world.search(request, [&](const planner::SearchProgress& progress) {
        EXPECT_GE(progress.considered, last.considered);
        EXPECT_TRUE(!last.best || progress.best >= last.best);
        last = progress;
      });
      ASSERT_TRUE(found.has_value()) << found.error().message();
      EXPECT_GT(last.considered, 0U);
      EXPECT_TRUE(last.best.has_value());
      if (!first) first = *found;
      EXPECT_EQ(found->considered, first->considered) << threads;
      EXPECT_EQ(found->degrees, first->degrees) << threads;
      ASSERT_EQ(found->plans.size(), first->plans.size());
      for (std::size_t i = 0; i < found->plans.size(); ++i)
        EXPECT_EQ(plan_fingerprint(found->plans[i].plan), plan_fingerprint(first->plans[i].plan)) << threads;
    }
  }
}

TEST(ParallelDegrees, SearchesSideBySideShareThreadsAndTime) {
  const auto efforts = [](int count, int threads) {
    std::vector<planner::Request> requests(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].max_plans = i + 1;
      requests[i].effort = {.time = Seconds(2.0), .threads = threads};
    }
    std::vector<std::pair<int, double>> seen(requests.size());
    const auto results = planner::search_side_by_side(requests, [&](const planner::Request& request) {
      seen[request.max_plans - 1] = {request.effort.threads, request.effort.time->value()};
      planner::SearchResult result;
      result.considered = request.max_plans;
      return Result<planner::SearchResult>(result);
    });
    EXPECT_EQ(results.size(), requests.size());
    for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i]->considered, i + 1);
    EXPECT_TRUE(std::equal(seen.begin() + 1, seen.end(), seen.begin()));
    return seen.front();
  };
  EXPECT_EQ(efforts(1, 6), std::pair(6, 2.0));
  EXPECT_EQ(efforts(3, 1), std::pair(1, 2.0));  // one after the other
  EXPECT_EQ(efforts(3, 8), std::pair(2, 6.0));  // all at once
  EXPECT_EQ(efforts(3, 2), std::pair(1, 3.0));  // two and one
}

TEST(ParallelDegrees, ThePlannerCountsTheDevicesOfDividedSequences) {
  Estimated world(4, 1e11, 1e10);
  world.cluster.groups[0].count = 5;
  world.framework.supports_context_parallel = true;
  planner::Request request = small_request();
  request.pins.context_parallel = 8;  // two nodes of four for each stage
  const auto most_ranks = [&] {
    const auto found = world.search(request);
    EXPECT_TRUE(found.has_value()) << found.error().message();
    if (!found) return -1;
    int most = 0;
    for (const planner::Candidate& candidate : found->plans) {
      EXPECT_EQ(candidate.plan.context_parallel, 8);
      EXPECT_EQ(candidate.prediction.device_costs[0].devices, candidate.plan.ranks());
      most = std::max(most, candidate.plan.ranks());
    }
    return most;
  };
  EXPECT_EQ(most_ranks(), 16);  // of 20
  request.limits.nodes = 3;
  EXPECT_EQ(most_ranks(), 8);
  request.limits.nodes.reset();
  request.limits.gpus = 15;
  EXPECT_EQ(most_ranks(), 8);
  request.limits.gpus = 7;
  EXPECT_FALSE(world.search(request).has_value());
}

TEST(ParallelDegrees, ThePlannerShardsWithinNodesWhereLinksBetweenThemAreSlow) {
  Estimated world(4, 1e9, 1e6);
  world.cluster.groups[0].count = 2;
  world.framework.supports_sharding_degree = true;
  world.framework.supports_expert_parallel = false;
  world.framework.shardings = {OptimizerSharding::zero3};
  planner::Request request = small_request();
  request.pins.optimizer_sharding = OptimizerSharding::zero3;
  request.pins.pipeline_parallel = request.pins.tensor_parallel = 1;
  request.pins.data_parallel = 8;
  const auto found = world.search(request);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_EQ(found->plans.front().plan.sharding_degree, 4);
  EXPECT_NE(
      found->degrees.find("Tried briefly: sharding_degree all replicas, 2, 4. Searched in full: sharding_degree 4, "
                          "and sharding_degree all replicas."),
      std::string::npos)
      << found->degrees;
  // Each plan once, that of all replicas without a degree; and as the simulator says.
  std::set<std::string> plans;
  bool whole = false;
  for (const planner::Candidate& candidate : found->plans) {
    EXPECT_TRUE(plans.insert(plan_fingerprint(candidate.plan)).second);
    EXPECT_NE(candidate.plan.sharding_degree, 8);
    EXPECT_EQ(candidate.prediction.iteration_time, world.predicted(candidate.plan).iteration_time);
    whole = whole || candidate.plan.sharding_degree == 0;
  }
  EXPECT_TRUE(whole);
  // Sharding over all takes less memory and more time.
  const Bytes all = world.predicted(found->plans.front().plan).stages[0].memory.total();
  request.pins.sharding_degree = 3;
  EXPECT_EQ(world.search(request).error().message(),
            "--pin sharding_degree=3 does not divide the 8 replicas of data_parallel 8 x context_parallel 1; pin a "
            "divisor");
  request.pins.sharding_degree = 8;
  const auto pinned = world.search(request);
  ASSERT_TRUE(pinned.has_value()) << pinned.error().message();
  EXPECT_EQ(pinned->plans.front().plan.sharding_degree, 8);
  EXPECT_LT(pinned->plans.front().prediction.peak_memory, all);
  EXPECT_GT(pinned->plans.front().prediction.iteration_time, found->plans.front().prediction.iteration_time);
}

TEST(ParallelDegrees, PinsThatCannotBeAreRefused) {
  Estimated world(4);
  world.framework.supports_expert_parallel = false;
  planner::Request request = small_request();
  const auto problem = [&](const char* pin) {
    request.pins = {};
    EXPECT_TRUE(planner::add_pin(pin, request.pins).has_value());
    const auto found = world.search(request);
    return found ? std::string("none") : found.error().message();
  };
  EXPECT_EQ(problem("expert_parallel=2"),
            "--pin expert_parallel=2: framework sailor does not have it; choose another framework, for example "
            "--framework megatron-core, or leave the pin out");
  world.framework.supports_context_parallel = world.framework.supports_expert_parallel = true;
  EXPECT_EQ(problem("expert_parallel=3"),
            "--pin expert_parallel=3: tiny-gpt has 8 experts, which it does not divide; pin a divisor of them");
  EXPECT_EQ(
      problem("context_parallel=5"),
      "--pin context_parallel=5: sequences are divided into twice as many parts, and 64 tokens are no multiple of "
      "that; pin another degree");
  EXPECT_EQ(problem("sharding_degree=2"),
            "--pin sharding_degree=2: framework sailor does not have it; choose another framework, for example "
            "--framework torch-fsdp, or leave the pin out");
  world.framework.supports_sharding_degree = true;
  request.space = planner::Space::paper;
  EXPECT_EQ(problem("context_parallel=2"),
            "--pin context_parallel=2: the paper's space does not have it; leave out --space paper or the pin");
}

}  // namespace
}  // namespace sailor::parallel_degrees_test
