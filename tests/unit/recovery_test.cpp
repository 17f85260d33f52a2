// Training that continues in the same processes after ranks were lost: state moves to a new plan bit for bit, and ranks
// catch up on updates that they missed.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <limits>
#include <optional>

#include "recovery_runs.hpp"
#include "runtime/recovery.hpp"
#include "tests/fakes/delayed_device.hpp"

namespace sailor::runtime::test::recovery_test {
namespace {

TEST(Recovery, EveryPlanGoesOnBitByBitFromTheStateOfAnother) {
  const TrainerSettings settings = settings_of({});
  const std::vector<Model> models{deep(gpt_model()), deep(opt_model()), deep(llama_model()), deep(experts_model())};
  const std::vector<Precision> precisions{Precision::fp32, Precision::bf16, Precision::fp16};
  int from_memory = 0;
  int lost = 0;
  std::atomic<int> spares_gave = 0;
  for (std::size_t turn = 0; turn < 40; ++turn) {
    const Model& model = models[turn % models.size()];
    std::vector<Named> plans = divisions(model.layers());
    if (model.experts.count > 0) {
      const std::vector<Named> more = expert_divisions(model.layers());
      plans.resize(more.size());  // as many with experts that are not divided
      plans.insert(plans.end(), more.begin(), more.end());
    }
    auto [name_before, before] = plans[turn % plans.size()];
    auto [name_after, after] = plans[(7 * turn + 11) % plans.size()];
    SCOPED_TRACE(fmt::format("{}, {} -> {}", model.name, name_before, name_after));
    before.job.precision = after.job.precision = precisions[turn / 3 % precisions.size()];
    std::vector<Survivor> ranks(static_cast<std::size_t>(before.ranks()));
    std::vector<double> losses;
    run_ranks(before.ranks(), [&](const World& world) {
      Survivor& mine = ranks[static_cast<std::size_t>(world.rank())];
      mine.state = std::make_unique<TrainingState>(before, model, world.rank(), *mine.device);
      mine.state->initialize(settings);
      train_until(3, *mine.state, settings, world, losses);
    });
    // Ranks that are not in the plan after, from the middle on, are lost, or spare: those give what they have. New ones
    // know nothing.
    const int spare = static_cast<int>(turn % 3);
    const int present = after.ranks() + spare;
    std::rotate(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(turn % ranks.size()), ranks.end());
    ranks.resize(static_cast<std::size_t>(present));
    WholeState all;
    for (Survivor& rank : ranks) EXPECT_TRUE(rank.state == nullptr || add_state(*rank.state, all));
    const bool is_whole = elements_of(all) == 3 * model.total_parameters();
    WholeState moved;
    std::mutex mutex;
    run_ranks(present, [&](const World& world) {
      Survivor& mine = ranks[static_cast<std::size_t>(world.rank())];
      if (mine.device == nullptr) mine.device = make_cpu_device();
      const bool is_spare = world.rank() >= after.ranks();
      auto recovery = recover(mine.state.get(), model, settings, *mine.device, world,
                              [&](const Plan*) -> Result<Plan> { return after; });
      if (!recovery) throw std::runtime_error(recovery.error().message());
      EXPECT_EQ(recovery->needs_checkpoint, !is_whole);
      EXPECT_EQ(recovery->state == nullptr, is_spare);
      if (is_spare && mine.state != nullptr && recovery->sent_bytes > 0) ++spares_gave;
      mine.state = std::move(recovery->state);
      if (recovery->needs_checkpoint || is_spare) return;
      EXPECT_EQ(mine.state->iteration(), 3);
      const std::scoped_lock lock(mutex);
      EXPECT_TRUE(add_state(*mine.state, moved));
      // What is computed with are the values, rounded.
      for (const Parameter* parameter : mine.state->parameters().parameters())
        for (const Piece& piece : parameter->pieces())
          for (std::int64_t i = 0; i < piece.count; ++i) {
            float value = all.at({parameter->layer, parameter->name, StoredArray::value}).at(piece.whole + i);
            if (parameter->value.type != DataType::float32)
              value = from_bits16(parameter->value.type, to_bits16(parameter->value.type, value));
            ASSERT_EQ(load(parameter->value + (piece.local + i)), value);
          }
    });
    ++(is_whole ? from_memory : lost);
    if (!is_whole) continue;
    run_ranks(after.ranks(), [&](const World& world) {
      train_until(6, *ranks[static_cast<std::size_t>(world.rank())].state, settings, world, losses);
    });
    EXPECT_EQ(moved, all);
    const Outcome undisturbed = train(before, model, {.iterations = 6});
    ASSERT_EQ(losses.size(), 6u);
    const double rounding = before.job.precision == Precision::fp32 ? 1e-4 : 5e-3;
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(losses[i] / undisturbed.losses[i], 1.0, rounding) << i;
  }
  EXPECT_GE(from_memory, 10);
  EXPECT_GE(lost, 3);
  EXPECT_GE(spares_gave, 3);
}

TEST(Recovery, RefusesAPlanOfMoreRanksThanThereAre) {
  run_ranks(2, [](const World& world) {
    const auto device = make_cpu_device();
    const auto recovery =
        recover(nullptr, deep(gpt_model()), settings_of({}), *device, world, [](const Plan*) -> Result<Plan> {
          return plan_of({{4, 1, {{{{0, 6}}}}, 3}});
        });
    ASSERT_FALSE(recovery);
    EXPECT_EQ(recovery.error().message(),
              "the new plan has 3 ranks but 2 are there; plan again for the ranks that are left");
  });
}

TEST(Recovery, AStateThatWasNotFilledYetIsNotTakenForOne) {
  const Model model = deep(gpt_model());
  const Plan plan = plan_of({{6, 1, {{{{0, 6}}}}, 2}});
  run_ranks(2, [&](const World& world) {
    // A failure came while ranks read a checkpoint: rank 1 has read its part, rank 0 has not.
    const auto device = make_cpu_device();
    TrainingState state(plan, model, world.rank(), *device);
    state.set_epoch(4);
    if (world.rank() == 1) state.initialize(settings_of({}));
    const auto recovery = recover(&state, model, settings_of({}), *device, world,
                                  [&](const Plan* before) -> Result<Plan> { return *before; });
    ASSERT_TRUE(recovery) << recovery.error().message();
    EXPECT_FALSE(recovery->needs_checkpoint);
    EXPECT_EQ(recovery->sent_bytes > 0, world.rank() == 1);
    EXPECT_EQ(recovery->state->epoch(), 5U);
  });
  run_ranks(2, [&](const World& world) {
    const auto device = make_cpu_device();
    TrainingState state(plan, model, world.rank(), *device);
    const auto recovery =
        recover(&state, model, settings_of({}), *device, world, [&](const Plan*) -> Result<Plan> { return plan; });
    ASSERT_TRUE(recovery) << recovery.error().message();
    EXPECT_TRUE(recovery->needs_checkpoint);
  });
}

TEST(Recovery, WhoHasJustJoinedKnowsTheLossOfTheLastIteration) {
  const Model model = deep(gpt_model());
  const TrainerSettings settings = settings_of({});
  const Plan plan = plan_of({{6, 1, {{{{0, 6}}}}}, {6, 1, {{{{0, 6}}}}}});
  std::vector<double> losses;
  run_ranks(2, [&](const World& world) {
    const auto device = make_cpu_device();
    auto state = std::make_unique<TrainingState>(plan, model, world.rank(), *device);
    state->initialize(settings);
    train_until(2, *state, settings, world, losses);
    const std::optional<IterationTotals> totals = state->last_totals();
    ASSERT_TRUE(totals);
    // A newcomer has taken the place of rank 0, twice, before another iteration was made.
    for (int times = 0; times < 2; ++times) {
      auto recovery = recover(world.rank() == 0 ? nullptr : state.get(), model, settings, *device, world,
                              [&](const Plan*) -> Result<Plan> { return plan; });
      ASSERT_TRUE(recovery) << recovery.error().message();
      state = std::move(recovery->state);
      ASSERT_TRUE(state->last_totals());
      EXPECT_EQ(state->last_totals()->loss, totals->loss);
    }
  });
}

/// A device whose host hears of a failure instead of the totals of an iteration, though all ranks have summed.
class DeafDevice final : public DelayedDevice {
 public:
  /// It fails at its host's wait number `deaf_wait`, once the others are through.
  DeafDevice(std::int64_t deaf_wait, std::latch& others) : DelayedDevice(7), deaf_wait_(deaf_wait), others_(others) {}

 private:
  void wait_for(const Event& event) override {
    DelayedDevice::wait_for(event);
    if (host_waits() != deaf_wait_) return;
    others_.wait();
    throw TransportError(TransportError::Cause::lost, "a rank has gone away");
  }
  std::int64_t deaf_wait_;
  std::latch& others_;
};

TEST(Recovery, RanksThatHaveNotHeardOfTheTotalsMakeUpForTheUpdate) {
  const Model model = deep(gpt_model());
  const TrainerSettings settings = settings_of({});
  for (const Precision precision : {Precision::fp32, Precision::fp16})
    for (const auto sharding : {OptimizerSharding::none, OptimizerSharding::zero1}) {
      // Nobody else has what rank 1 holds.
      Plan plan = plan_of({{3, 2, {{{{0, 3}}}, {{{3, 6}}}}}, {3, 2, {{{{0, 6}}, 2}}}}, {}, sharding);
      if (sharding == OptimizerSharding::none) plan = plan_of({{6, 2, {{{{0, 3}}}, {{{3, 6}}}}}});
      plan.job.precision = precision;
      const Outcome undisturbed = train(plan, model, {.iterations = 6});
      std::vector<double> losses;
      std::latch others(plan.ranks() - 1);
      run_ranks(plan.ranks(), [&](const World& world) {
        auto device = make_cpu_device();
        if (world.rank() == 1) {
          DeafDevice counting(std::numeric_limits<std::int64_t>::max(), others);
          TrainingState counted(plan, model, world.rank(), counting);
          counted.initialize(settings);
          device = std::make_unique<DeafDevice>(counting.host_waits() + 3, others);
        }
        auto state = std::make_unique<TrainingState>(plan, model, world.rank(), *device);
        state->initialize(settings);
        bool failed = false;
        try {
          // Under ZeRO-1 rank 1 gathers no values any more.
          train_until(3, *state, settings, world, losses, false);
        } catch (const TransportError&) {
          failed = true;
        }
        if (world.rank() != 1) others.count_down();
        EXPECT_EQ(failed, world.rank() == 1) << world.rank();
        EXPECT_EQ(state->iteration(), failed ? 2 : 3);
        auto recovery = recover(state.get(), model, settings, *device, world,
                                [&](const Plan* before) -> Result<Plan> { return *before; });
        ASSERT_TRUE(recovery) << recovery.error().message();
        ASSERT_FALSE(recovery->needs_checkpoint);
        EXPECT_EQ(recovery->sent_bytes == 0, sharding == OptimizerSharding::none);  // else values that others step
        state = std::move(recovery->state);
        EXPECT_EQ(state->iteration(), 3);
        train_until(6, *state, settings, world, losses);
      });
      EXPECT_EQ(losses, undisturbed.losses);
    }
}

}  // namespace
}  // namespace sailor::runtime::test::recovery_test
