// Whole models train on an emulated GPU (tests/fakes/cuda) to the losses of the CPU.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string_view>
#include <thread>

#include "runtime/cuda/cuda_device.hpp"
#include "runtime/cuda/nccl_transport.hpp"
#include "trainer_runs.hpp"

namespace sailor::runtime::test::cuda_training_test {
namespace {

TEST(CudaTraining, ModelsTrainToTheLossesOfTheCpu) {
  constexpr int iterations = 3;
  int turn = 0;
  for (const Model& shallow :
       {gpt_model(), opt_model(), llama_model(), mixed_model(), experts_model(), shared_expert_model()})
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      // Every precision meets every kind.
      const Recompute recompute = std::array{Recompute::none, Recompute::selective, Recompute::full}[turn++ % 4 % 3];
      const Model model = deep(shallow);
      Plan plan = plan_of({{2, 3, {{{{0, model.layers()}}, 1, recompute}}}});
      plan.job.precision = precision;
      const Outcome expected = train(plan, model, {.iterations = iterations});
      const Outcome outcome =
          train(plan, model, {.iterations = iterations, .make_device = [](int) { return make_cuda_device(); }});
      SCOPED_TRACE(fmt::format("{}, {}, recompute {}", model.name, to_string(precision), to_string(recompute)));
      const double tolerance = precision == Precision::fp32 ? 1e-5 : precision == Precision::fp16 ? 1e-3 : 8e-3;
      for (int i = 0; i < iterations; ++i) {
        const auto k = static_cast<std::size_t>(i);
        EXPECT_NEAR(outcome.losses[k] / expected.losses[k], 1.0, tolerance);
        EXPECT_NEAR(outcome.norms[k] / expected.norms[k], 1.0, 10.0 * tolerance);
      }
      // One for the loss, and each block with experts waits in both micro-batches to know how many tokens they get,
      // again where it is computed again.
      const int blocks_with_experts = model.experts.count > 0 ? model.blocks - model.experts.first_dense : 0;
      const int passes = recompute == Recompute::full ? 2 : 1;
      EXPECT_EQ(outcome.host_waits, 1.0 + 2 * blocks_with_experts * passes);
      EXPECT_EQ(expected.host_waits, outcome.host_waits);
    }
}

// Ranks are threads, each with a GPU of its own; NCCL is a fake one that runs on their streams, late. All divisions
// with SAILOR_LONG=1.
TEST(CudaTraining, EveryDivisionTrainsOverNcclToTheLossesOfTheCpu) {
  constexpr int iterations = 2;
  const Model model = deep(gpt_model());
  const Outcome expected = train(plan_of({{12, 1, {{{{0, model.layers()}}}}}}), model, {.iterations = iterations});
  const bool all = std::getenv("SAILOR_LONG") != nullptr;
  const std::set<std::string_view> sample{"replicas of three degrees", "interleaved, several degrees", "gpipe",
                                          "zero1 of several degrees", "everything at once"};
  std::size_t trained = 0;
  for (const auto& [name, plan] : divisions(model.layers())) {
    if (!all && !sample.contains(name)) continue;
    ++trained;
    SCOPED_TRACE(name);
    const Outcome outcome =
        train(plan, model,
              {.iterations = iterations,
               .make_device = [](int) { return make_cuda_device(); },
               .make_transport =
                   [](Control& control, Device& device) {
                     return make_nccl_transport(control, dynamic_cast<CudaDevice&>(device), {.timeout = Seconds(60.0)});
                   }});
    for (std::size_t i = 0; i < iterations; ++i) {
      EXPECT_NEAR(outcome.losses[i] / expected.losses[i], 1.0, 1e-4);
      EXPECT_NEAR(outcome.norms[i] / expected.norms[i], 1.0, 1e-3);
    }
    EXPECT_EQ(outcome.host_waits, 1.0);
  }
  EXPECT_GE(trained, sample.size());
}

/// A sum over both ranks, awaited.
float sum_over_two(Transport& transport, CudaDevice& device, float value) {
  const auto group = transport.make_group({0, 1});
  Tensor number(device, {1});
  device.write(number.data(), &value, sizeof(value));
  group->all_reduce_sum(device.main(), number.floats(), 1);
  device.read(&value, number.data(), sizeof(value));
  return value;
}

TEST(CudaTraining, ARankThatAbortsLeavesTheOthersATimeoutAndUsableDevices) {
  run_ranks(2, [&](const World& world) {
    const auto device = make_cuda_device();
    const float mine = world.rank() == 0 ? 1.0f : 2.0f;
    {
      const auto transport = make_nccl_transport(world.control, *device, {.timeout = Seconds(1.0)});
      EXPECT_EQ(transport->name(), "NCCL 2.28.9");
      EXPECT_EQ(sum_over_two(*transport, *device, mine), 3.0f);
      const auto group = transport->make_group({0, 1});
      Tensor number(*device, {1});
      device->synchronize();
      const auto wanted = world.rank() == 0 ? TransportError::Cause::timeout : TransportError::Cause::aborted;
      if (world.rank() == 1) transport->abort();
      try {
        // The other rank takes part in no sum any more.
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
        group->all_reduce_sum(device->main(), number.floats(), 1);
        device->synchronize();
        ADD_FAILURE() << "rank " << world.rank() << " noticed nothing";
      } catch (const TransportError& error) {
        EXPECT_EQ(error.cause(), wanted) << error.what();
      }
    }
    device->give_up_transfers();
    const auto transport = make_nccl_transport(world.control, *device, {.timeout = Seconds(60.0)});
    EXPECT_EQ(sum_over_two(*transport, *device, mine), 3.0f);
  });
}

}  // namespace
}  // namespace sailor::runtime::test::cuda_training_test
