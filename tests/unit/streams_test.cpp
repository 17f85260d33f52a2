// Synchronisation of the runtime: a device that computes late, in any order that streams and events allow, trains every
// kind of plan to the same bits as one that computes at once; and the host waits for the device once per iteration.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "recovery_runs.hpp"
#include "runtime/waits.hpp"
#include "tests/fakes/delayed_device.hpp"
#include "tests/fakes/timed_device.hpp"
#include "trainer_runs.hpp"

namespace sailor::runtime::test::streams_test {
namespace {

constexpr int iterations = 3;

RunSettings late(unsigned seed) {
  return {.iterations = iterations, .make_device = [seed](int rank) {
            return std::make_unique<DelayedDevice>(seed + 1000 * static_cast<unsigned>(rank));
          }};
}

bool equal(const Outcome& a, const Outcome& b) {
  return a.losses == b.losses && a.norms == b.norms && a.weights == b.weights && a.spread == b.spread;
}

/// Every kind of plan, each with another model and precision than the one before; all mixtures with SAILOR_LONG=1,
/// which takes minutes.
TEST(Streams, ADeviceThatIsLateTrainsEveryKindOfPlanToTheSameBits) {
  const bool all = std::getenv("SAILOR_LONG") != nullptr;
  const std::vector<Model> models{gpt_model(), opt_model(), llama_model(), mixed_model()};
  const std::vector<Precision> precisions{Precision::fp32, Precision::bf16, Precision::fp16};
  unsigned turn = 0;
  for (std::size_t m = 0; m < models.size(); ++m)
    for (std::size_t p = 0; p < precisions.size(); ++p) {
      const Model model = deep(models[m]);
      std::size_t number = 0;
      for (auto [name, plan] : share_of(divisions(model.layers()), 0, 1)) {
        const std::size_t mixture = number++ % (models.size() * precisions.size());
        if (!all && mixture != m * precisions.size() + p) continue;
        SCOPED_TRACE(fmt::format("{}, {}, {}", model.name, to_string(precisions[p]), name));
        plan.job.precision = precisions[p];
        EXPECT_TRUE(equal(train(plan, model, {.iterations = iterations}), train(plan, model, late(++turn))));
      }
    }
}

TEST(Streams, TheHostWaitsForItsDeviceOncePerIteration) {
  const Model model = deep(gpt_model());
  for (const auto& [name, plan] : divisions(model.layers()))
    EXPECT_EQ(train(plan, model, {.iterations = iterations}).host_waits, 1.0) << name;
}

/// Whether the parts of two iterations on a device that is late took some time, together at most as long as the host
/// waited for them: they are read before the device gets there only if the host does not wait.
bool times_make_sense(const Plan& plan, const Model& model, unsigned seed) {
  std::atomic<bool> all = true;
  run_ranks(plan.ranks(), [&](const World& world) {
    DelayedDevice device(seed + 1000 * static_cast<unsigned>(world.rank()));
    const auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
    const TrainerSettings settings = settings_of({});
    TrainingState state(plan, model, world.rank(), device);
    state.initialize(settings);
    Trainer trainer(state, settings, world, &*samples);
    trainer.timeline().keep_events(true);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 2; ++i) {
      (void)trainer.run();
      const PartTimes& parts = trainer.timeline().parts();
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      for (const Seconds part : parts)
        if (!(part >= Seconds(0.0) && part <= Seconds(waited.count()))) all = false;
      for (const TimelineEvent& event : trainer.timeline().events())
        if (event.end < event.start || event.end - event.start > Seconds(waited.count())) all = false;
    }
  });
  return all;
}

TEST(Streams, TimesAreReadWhenTheDeviceHasDoneWhatTheyAreOf) {
  const Model model = deep(gpt_model());
  for (const auto& [name, plan] : divisions(model.layers()))
    EXPECT_TRUE(plan.ranks() > 4 || times_make_sense(plan, model, 3)) << name;
}

/// The table of tests/gpu/bench_models: an iteration's operations, their costs, and no more time than the iteration
/// took.
TEST(Streams, OperationsOfAnIterationAreTimedAndCounted) {
  const Model model = deep(gpt_model());
  const Plan plan = plan_of({{.micro_batches = 2, .micro_batch = 3, .stages = {{.chunks = {{0, model.layers()}}}}}});
  run_ranks(1, [&](const World& world) {
    const auto cpu = make_cpu_device();
    TimedDevice device(*cpu);
    const auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
    const TrainerSettings settings = settings_of({});
    TrainingState state(plan, model, world.rank(), device);
    state.initialize(settings);
    Trainer trainer(state, settings, world, &*samples);
    (void)trainer.run();
    device.start_recording();
    const IterationResult result = trainer.run();
    const std::vector<TimedDevice::Total> totals = device.stop_recording();

    std::map<std::string, TimedDevice::Total> by_name;
    double flop = 0.0;
    Seconds time{};
    for (const TimedDevice::Total& total : totals) {
      flop += total.operation.flop * total.calls;
      time += total.time;
      by_name[total.operation.name] = total;
    }
    const double tokens = 2.0 * 3.0 * sequence_length;
    const double hidden = model.hidden;
    const double block = 4.0 * hidden * hidden + 2.0 * hidden * static_cast<double>(model.feed_forward);
    const double products = 6.0 * tokens * (model.blocks * block + hidden * static_cast<double>(model.vocabulary));
    const double attention = 3.5 * model.blocks * 4.0 * 6.0 * hidden * (sequence_length * (sequence_length + 1) / 2);
    EXPECT_DOUBLE_EQ(flop, products + attention);
    EXPECT_LE(time, result.time);
    EXPECT_EQ(by_name.at("attention, forward").calls, 2 * model.blocks);
    EXPECT_EQ(by_name.at("AdamW").operation.bytes, 28.0 * static_cast<double>(model.total_parameters()));
    EXPECT_EQ(by_name.at("cross-entropy").operation.bytes, 3.0 * 4.0 * tokens / 2.0 * model.vocabulary);
    const std::string table = operation_table(totals, result.time, 1e12, 1e12);
    EXPECT_NE(table.find("attention, backward 3 x 8 x 16"), std::string::npos) << table;
    EXPECT_NE(table.find("between operations"), std::string::npos) << table;
  });
}

#ifdef SAILOR_TEST_WAITS
/// Plans in which every wait of the runtime matters, first the one in which most are noticed.
std::vector<Plan> plans_that_wait(int last) {
  std::vector<Plan> plans;
  for (const std::string_view wanted : {"zero1 of several degrees", "interleaved, several degrees",
                                        "everything at once", "other depth and degree", "gpipe"})
    for (const auto& [name, plan] : divisions(last))
      if (name == wanted) plans.push_back(plan);
  return plans;
}

TEST(Streams, EveryWaitIsNeeded) {
  const Model model = deep(gpt_model());
  const std::vector<Plan> plans = plans_that_wait(model.layers());
  std::vector<Outcome> expected;
  std::vector<std::vector<WholeState>> states;
  for (const Plan& plan : plans) {
    expected.push_back(train(plan, model, {.iterations = iterations}));
    states.push_back(states_until(2, plan, model));
  }
  constexpr unsigned most_seeds = 20;
  for (int wait = 0; wait < static_cast<int>(Wait::count); ++wait) {
    bool noticed = false;
    for (unsigned seed = 0; seed < most_seeds && !noticed; ++seed)
      for (std::size_t i = 0; i < plans.size() && !noticed; ++i) {
        left_out_wait = wait;
        try {
          noticed = !equal(train(plans[i], model, late(seed)), expected[i]) ||
                    !times_make_sense(plans[i], model, seed) ||
                    !late_copies_are_right(plans[i], model, states[i], seed);
        } catch (const std::exception&) {
          noticed = true;
        }
        left_out_wait = -1;
      }
    EXPECT_TRUE(noticed) << "without wait " << to_string(static_cast<Wait>(wait))
                         << " all losses, times and copies are the same";
  }
}
#endif

}  // namespace
}  // namespace sailor::runtime::test::streams_test
