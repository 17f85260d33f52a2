// Small models of every kind train on the GPU to the losses of the CPU. Exit status: 0 all agree, 1 some do not, 3 no
// usable GPU.
#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "runtime/cuda/cuda_device.hpp"
#include "trainer_runs.hpp"

using namespace sailor;
using namespace sailor::runtime;
using namespace sailor::runtime::test;

int main() {
  try {
    fmt::print("# trainings of 20 iterations on {}, against the CPU: largest difference of a loss\n",
               make_cuda_device()->name());
  } catch (const std::exception& error) {
    fmt::print("no usable GPU: {}\n", error.what());
    return 3;
  }
  int failed = 0;
  int passed = 0;
  constexpr int iterations = 20;
  for (const Model& shallow :
       {gpt_model(), opt_model(), llama_model(), mixed_model(), experts_model(), shared_expert_model()})
    for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        const Model model = deep(shallow);
        Plan plan = plan_of({{2, 3, {{{{0, model.layers()}}, 1, recompute}}}});
        plan.job.precision = precision;
        const double tolerance = precision == Precision::fp32 ? 1e-4 : precision == Precision::bf16 ? 1e-2 : 2e-3;
        std::string what = fmt::format("{}, {}, recompute {}", model.name, to_string(precision), to_string(recompute));
        try {
          const Outcome expected = train(plan, model, {.iterations = iterations});
          const Outcome outcome = train(plan, model, {.iterations = iterations, .make_device = [&](int) {
                                                        return make_cuda_device({.tf32 = precision == Precision::tf32});
                                                      }});
          double worst = 0.0;
          for (std::size_t i = 0; i < expected.losses.size(); ++i)
            worst = std::max(worst, std::abs(outcome.losses[i] / expected.losses[i] - 1.0));
          const bool good = worst <= tolerance;
          fmt::print("{} {}: {:.2g}\n", good ? "ok" : "FAILED", what, worst);
          (good ? passed : failed) += 1;
        } catch (const std::exception& error) {
          fmt::print("FAILED {}: {}\n", what, error.what());
          failed += 1;
        }
      }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
