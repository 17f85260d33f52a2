// A whole iteration: all pipelines, then gradients summed between replicas, then the optimizer step.
//
// A stage takes part in its reductions in a fixed order, each of which starts when the last of its holders has come to
// it. Without overlap that is after the stage's passes. With overlap gradients go in buckets, beside the last backward
// pass, as soon as it has left the layers that they are of. With a sharded optimizer half of a reduction (the scatter)
// comes before the step and half (the gathering of weights) after it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/units.hpp"
#include "plan/timeline.hpp"
#include "simulator/costs.hpp"

namespace sailor::simulator {

struct IterationTimes {
  Seconds pipelines{};  ///< until the last pass of all
  Seconds reduced{};    ///< until the last reduction, at least `pipelines`
  Seconds updated{};    ///< until the last optimizer step
  Seconds end{};        ///< until the last gathering of weights, where the optimizer is sharded; else `updated`
  std::size_t slowest_pipeline = 0;  ///< entry whose passes end last
  std::size_t last_stage = 0;        ///< index into PlanCosts::stages of the one that ends last
};

/// Storage that is used again.
struct IterationScratch {
  std::vector<Seconds> ends;     // by stage
  std::vector<Seconds> network;  // by stage: free for the next reduction
  std::vector<LeastEnd> least;   // of a pipeline
};

/// By the closed form, for every pipeline closed_form(). A stage behind the first is done earlier by the backward
/// passes and transfers before it.
IterationTimes closed_iteration(const PlanCosts& costs, IterationScratch& scratch);

/// What the event-driven form does not fall below, in O(stages): by least_ends() of every pipeline.
IterationTimes least_iteration(const PlanCosts& costs, IterationScratch& scratch);

/// Event-driven. `timeline`, where given, gets what every stage does.
IterationTimes event_driven_iteration(const PlanCosts& costs, Timeline* timeline = nullptr);
/// The same where `run` knows the ends of a pipeline's stages, as run_pipeline() says them.
IterationTimes event_driven_iteration(const PlanCosts& costs,
                                      const std::function<std::span<const StageEnd>(const PipelineTimes&)>& run);

}  // namespace sailor::simulator
