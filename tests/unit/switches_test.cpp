// Links across leaf switches, in the simulator and in the planner's decisions.
#include <gtest/gtest.h>

#include "tests/fakes/simulator_world.hpp"

namespace sailor::switches_test {
namespace {

using testing::World;

/// Four nodes of one core, two at each of two switches. A boundary's 32,768 bytes take 0.5 s within a switch, an
/// all-reduce of two ranks 3 s.
class Switches : public ::testing::Test {
 protected:
  Switches() {
    world.cluster.groups[0].nodes = {"n1", "n2", "n3", "n4"};
    world.cluster.groups[0].switches = {"s1", "s1", "s2", "s2"};
    world.cluster.topology = "tree";
    world.add_all_reduce(4, 3.0);
  }
  [[nodiscard]] simulator::Prediction predict(const Plan& plan) const {
    const auto prediction = world.predict(plan);
    EXPECT_TRUE(prediction.has_value()) << prediction.error().message();
    return *prediction;
  }
  static Plan two_pipelines(KeepTogether together) {
    Plan plan = World::plan(2, {{0, 3}, {3, 6}}, 4);
    plan.keep_together = together;
    return plan;
  }

  World world;
};

TEST_F(Switches, DoNotMatterWhereNobodySaysHowFastLinksAcrossAre) {
  const auto plain = predict(two_pipelines(KeepTogether::pipelines));
  EXPECT_FALSE(plain.crosses_switches);
  EXPECT_EQ(predict(two_pipelines(KeepTogether::replicas)).iteration_time, plain.iteration_time);
  EXPECT_DOUBLE_EQ(plain.stages[0].link.value(), 0.5 + 0.5);
}

TEST_F(Switches, APlanAtOneOfThemIsAsFastAsEver) {
  const Plan small = World::plan(1, {{0, 3}, {3, 6}}, 4);
  const Seconds before = predict(small).iteration_time;
  world.cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(1.0)};
  const auto prediction = predict(small);
  EXPECT_FALSE(prediction.crosses_switches);
  EXPECT_EQ(prediction.iteration_time, before);
}

TEST_F(Switches, SlowDownTheMessagesThatCrossThem) {
  world.cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(16384.0)};  // 2 s for a boundary
  const auto pipelines = predict(two_pipelines(KeepTogether::pipelines));
  EXPECT_DOUBLE_EQ(pipelines.stages[0].link.value(), 0.5 + 0.5);
  EXPECT_TRUE(pipelines.crosses_switches);  // sums do
  const auto replicas = predict(two_pipelines(KeepTogether::replicas));
  EXPECT_DOUBLE_EQ(replicas.stages[0].link.value(), 2.0 + 2.0);
  // Stage 0's own gradients: 2(n - 1)/n of them at that speed; those of the replicas at one switch as measured.
  using namespace testing::tiny_gpt;
  const double bytes = 4.0 * (positions + 2 * block);
  EXPECT_NEAR(pipelines.stages[0].synchronization.value() - replicas.stages[0].synchronization.value(),
              bytes / 16384.0 - 3.0, 1e-6);
}

TEST_F(Switches, AreNeverFasterAcrossThanWithin) {
  const auto plain = predict(two_pipelines(KeepTogether::pipelines));
  world.cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(1e15)};
  EXPECT_EQ(predict(two_pipelines(KeepTogether::pipelines)).iteration_time, plain.iteration_time);
}

planner::Request request() {
  planner::Request request;
  request.job = {.model = "tiny-gpt",
                 .global_batch = 8,
                 .sequence_length = 64,
                 .precision = Precision::fp32,
                 .optimizer = Optimizer::adamw};
  return request;
}

TEST_F(Switches, DecideWhatThePlannerKeepsTogether) {
  auto pinned = request();
  pinned.pins.data_parallel = 2;
  pinned.pins.pipeline_parallel = 2;
  const auto best = [&] {
    const auto found = world.search(pinned);
    EXPECT_TRUE(found.has_value()) << found.error().message();
    return found->plans.front().plan.keep_together;
  };
  EXPECT_EQ(best(), KeepTogether::pipelines);
  // Gradients of megabytes, of which each step of a sum sends half; messages between stages of kilobytes
  world.cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(2e5)};
  EXPECT_EQ(best(), KeepTogether::replicas);
  // Messages between stages are many
  world.cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(1e12), .latency = Seconds(2.0)};
  EXPECT_EQ(best(), KeepTogether::pipelines);
}

TEST_F(Switches, KeepAPlanAtOneOfThemWhereThatIsFaster) {
  world.cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(1e9)};
  const auto wide = world.search(request());
  ASSERT_TRUE(wide.has_value()) << wide.error().message();
  EXPECT_EQ(wide->plans.front().plan.ranks(), 4);
  world.cluster.across_switches = SwitchLink{.bandwidth = BytesPerSecond(100.0)};
  const auto narrow = world.search(request());
  ASSERT_TRUE(narrow.has_value()) << narrow.error().message();
  EXPECT_EQ(narrow->plans.front().plan.ranks(), 2);
  EXPECT_FALSE(narrow->plans.front().prediction.crosses_switches);
}

}  // namespace
}  // namespace sailor::switches_test
