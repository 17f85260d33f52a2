// The preflight's number of communicators against those that trainers make.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "preflight/communicators.hpp"
#include "tests/unit/trainer_runs.hpp"

namespace sailor::preflight::communicators_test {
namespace {

using namespace runtime::test;  // NOLINT(google-build-using-namespace): their plans and trainings

/// The number of communicators of the rank with most, the world's included.
int made_by_trainers(const Plan& plan, const Model& model) {
  int most = 0;
  std::mutex mutex;
  run_ranks(plan.ranks(), [&](const runtime::World& world) {
    const auto device = runtime::make_cpu_device();
    const auto samples = runtime::Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
    if (!samples) throw std::runtime_error(samples.error().message());
    runtime::TrainingState state(plan, model, world.rank(), *device);
    runtime::Trainer trainer(state, settings_of({}), world, &*samples);
    const std::scoped_lock lock(mutex);
    most = std::max(most, static_cast<int>(trainer.communicators()) + 1);
  });
  return most;
}

TEST(CountCommunicators, IsWhatTrainersMake) {
  for (const Model& small : {gpt_model(), opt_model(), llama_model(), experts_model()}) {
    const Model model = deep(small);
    std::vector<Named> plans = divisions(model.layers());
    if (model.experts.count > 0) plans = expert_divisions(model.layers());
    for (const auto& [name, plan] : plans)
      EXPECT_EQ(count_communicators(plan, model).most_per_rank, made_by_trainers(plan, model))
          << model.name << ", " << name;
  }
}

TEST(CountCommunicators, AddsUpThoseOfTheJob) {
  // Two stages of two ranks in two copies; every sequence in two parts; experts over parts and copies.
  Plan plan = in_parts(2, plan_of({{6, 1, {{{{0, 3}}, 2}, {{{3, 6}}}}, 2}}));
  const Model model = deep(experts_model());
  const std::int64_t undivided = count_communicators(plan, model).of_job;
  plan.expert_parallel = 4;
  // Four ranks share what is not an expert's: still a group for each tensor-parallel index of both stages. Nobody
  // shares experts; they were summed in the same groups.
  EXPECT_EQ(count_communicators(plan, model).of_job, undivided + plan.ranks() / 4);
}

}  // namespace
}  // namespace sailor::preflight::communicators_test
