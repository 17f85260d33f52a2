// Whole models train on an emulated GPU (tests/fakes/cuda) to the losses of the CPU.
#include <gtest/gtest.h>

#include <array>

#include "runtime/cuda/cuda_device.hpp"
#include "trainer_runs.hpp"

namespace sailor::runtime::test {
namespace {

TEST(CudaTraining, ModelsTrainToTheLossesOfTheCpu) {
  constexpr int iterations = 3;
  int turn = 0;
  for (const Model& shallow : {gpt_model(), opt_model(), llama_model(), mixed_model()})
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
      EXPECT_EQ(outcome.host_waits, expected.host_waits);
    }
}

}  // namespace
}  // namespace sailor::runtime::test
