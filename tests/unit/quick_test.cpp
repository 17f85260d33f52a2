#include <gtest/gtest.h>

#include "simulator/quick.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include "tests/fakes/random_plans.hpp"

namespace sailor::simulator::quick_test {
namespace {

using testing::RandomWorld;

double formula(const QuickSimulator& simulator, const Plan& plan) {
  double longest = 0.0;
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) {
    const EntryTimes& entry = simulator.entries()[i];
    longest =
        std::max(longest, (entry.fixed + entry.per_micro_batch * plan.pipelines[i].micro_batches + entry.tail).value());
  }
  return longest;
}

void check_equal(double value, double expected) { RC_ASSERT(std::abs(value / expected - 1.0) < 1e-12); }

TEST(QuickSimulator, EntriesSayTheIterationTimeForAnyNumberOfMicroBatches) {
  EXPECT_TRUE(rc::check([] {
    RandomWorld world;
    world.framework.overlaps_reduction = false;
    const Profile profile(world.data);
    const Environment environment = world.environment(profile);
    QuickSimulator simulator(environment);
    const Plan plan = world.random_plan();
    const auto before = simulator.predict(plan);
    if (!before) RC_FAIL(before.error().message());
    RC_ASSERT(simulator.entries().size() == plan.pipelines.size());
    check_equal(formula(simulator, plan), before->iteration_time.value());
    RC_ASSERT(before->pipeline_time <= before->iteration_time);

    Plan other = plan;
    other.job.global_batch = 0;
    for (Pipeline& pipeline : other.pipelines) {
      const int step = plan.schedule == Schedule::interleaved_1f1b ? static_cast<int>(pipeline.stages.size()) : 1;
      pipeline.micro_batches = step * *rc::gen::inRange(1, 40);
      other.job.global_batch += pipeline.count * pipeline.micro_batches * other.micro_batch_of(pipeline);
    }
    const double expected = formula(simulator, other);
    const auto after = simulator.predict(other);
    if (!after) RC_FAIL(after.error().message());
    check_equal(expected, after->iteration_time.value());
  }));
}

TEST(QuickSimulator, KnowsTheEventDrivenTimeAndABoundBelowIt) {
  EXPECT_TRUE(rc::check([] {
    RandomWorld world;
    const Profile profile(world.data);
    const Environment environment = world.environment(profile);
    QuickSimulator simulator(environment);
    for (int i = 0; i < 3; ++i) {  // what is remembered of one plan serves for the next
      const Plan plan = world.random_plan();
      const auto quick = simulator.predict(plan);
      const auto prediction = simulate(plan, environment);
      if (!quick || !prediction) RC_FAIL("a plan has no prediction");
      check_equal(simulator.event_driven_time().value(), prediction->iteration_time.value());
      check_equal(simulator.cost_of(prediction->iteration_time).value(), prediction->cost_per_iteration.value());
      RC_ASSERT(simulator.least_time() <= simulator.event_driven_time() * (1 + 1e-12));
    }
  }));
}

// Copies fill nodes in a pattern that comes back: whole numbers of patterns more change what there is of everything,
// and how long a reduction over them all takes, but nothing else.
TEST(QuickSimulator, MoreCopiesOfAPipelineTakeAsLongApartFromTheirReductions) {
  EXPECT_TRUE(rc::check([] {
    RandomWorld world;
    world.framework.overlaps_reduction = false;
    const Profile profile(world.data);
    const Environment environment = world.environment(profile);
    QuickSimulator simulator(environment);
    Plan plan = world.random_plan();
    plan.pipelines.resize(1);
    Pipeline& pipeline = plan.pipelines.front();
    const auto with_count = [&](int count) {
      pipeline.count = count;
      plan.job.global_batch = count * pipeline.micro_batches * plan.micro_batch_of(pipeline);
      const auto prediction = simulator.predict(plan);
      if (!prediction) RC_FAIL(prediction.error().message());
      return prediction->pipeline_time.value();
    };
    check_equal(with_count(1000), with_count(8));  // nodes of 4 are full after 4 copies
  }));
}

}  // namespace
}  // namespace sailor::simulator::quick_test
#endif
