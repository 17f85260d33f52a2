// What the runtime waits for: a device that computes late, in any order that streams and events allow, trains every kind
// of plan to the bits of one that computes at once; and the host waits for the device once per iteration.
#include <gtest/gtest.h>

#include "runtime/waits.hpp"
#include "tests/fakes/delayed_device.hpp"
#include "trainer_runs.hpp"

namespace sailor::runtime::test {
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

TEST(Streams, ADeviceThatIsLateTrainsEveryKindOfPlanToTheSameBits) {
  unsigned seed = 1;
  for (const Model& small : {gpt_model(), opt_model(), llama_model()}) {
    const Model model = deep(small);
    SCOPED_TRACE(model.name);
    for (const auto& [name, plan] : divisions(model.layers())) {
      SCOPED_TRACE(name);
      EXPECT_TRUE(equal(train(plan, model, {.iterations = iterations}), train(plan, model, late(seed++))));
    }
  }
}

TEST(Streams, ADeviceThatIsLateTrainsToTheSameBitsInBfloat16) {
  unsigned seed = 500;
  const Model model = deep(mixed_model());
  for (auto [name, plan] : divisions(model.layers())) {
    SCOPED_TRACE(name);
    plan.job.precision = Precision::bf16;
    EXPECT_TRUE(equal(train(plan, model, {.iterations = iterations}), train(plan, model, late(seed++))));
  }
}

TEST(Streams, TheHostWaitsForItsDeviceOncePerIteration) {
  const Model model = deep(gpt_model());
  for (const auto& [name, plan] : divisions(model.layers()))
    EXPECT_EQ(train(plan, model, {.iterations = iterations}).host_waits, 1.0) << name;
}

#ifdef SAILOR_TEST_WAITS
/// Plans in which every wait of the runtime matters.
std::vector<Plan> plans_that_wait(int last) {
  std::vector<Plan> plans;
  for (const auto& [name, plan] : divisions(last))
    for (const std::string_view wanted : {"zero1 of several degrees", "everything at once", "other depth and degree",
                                          "interleaved, several degrees", "gpipe"})
      if (name == wanted) plans.push_back(plan);
  return plans;
}

TEST(Streams, EveryWaitIsNeeded) {
  const Model model = deep(gpt_model());
  const std::vector<Plan> plans = plans_that_wait(model.layers());
  std::vector<Outcome> expected;
  for (const Plan& plan : plans) expected.push_back(train(plan, model, {.iterations = iterations}));
  constexpr unsigned most_seeds = 20;
  for (int wait = 0; wait < static_cast<int>(Wait::count); ++wait) {
    bool noticed = false;
    for (unsigned seed = 0; seed < most_seeds && !noticed; ++seed)
      for (std::size_t i = 0; i < plans.size() && !noticed; ++i) {
        left_out_wait = wait;
        try {
          noticed = !equal(train(plans[i], model, late(seed)), expected[i]);
        } catch (const std::exception&) {
          noticed = true;
        }
        left_out_wait = -1;
      }
    EXPECT_TRUE(noticed) << "without wait " << to_string(static_cast<Wait>(wait)) << " all losses are the same";
  }
}
#endif

}  // namespace
}  // namespace sailor::runtime::test
