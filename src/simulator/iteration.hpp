// A whole iteration: all pipelines, then gradient reductions between replicas, then the optimizer step.
//
// A stage takes part in its reductions in a fixed order; each starts when the last of its holders has reached it.
// Without overlap, reductions follow the stage's passes. With overlap, gradients are reduced in buckets during the last
// backward pass, as soon as it has left their layers. With a sharded optimizer, half of a reduction (the
// reduce-scatter) comes before the step and half (the all-gather of the weights) after it.
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
  Seconds end{};        ///< until the last all-gather of weights if the optimizer is sharded; else `updated`
  std::size_t slowest_pipeline = 0;  ///< entry whose passes end last
  std::size_t last_stage = 0;        ///< index into PlanCosts::stages of the stage that ends last
};

/// Reused storage.
struct IterationScratch {
  std::vector<Seconds> ends;     // by stage
  std::vector<Seconds> network;  // by stage: time from which it is free for the next reduction
  std::vector<LeastEnd> least;   // of one pipeline, by stage
};

/// The iteration by the closed form: closed_form() of every pipeline. A later stage ends earlier, by the backward
/// passes and transfers of the stages before it.
IterationTimes closed_iteration(const PlanCosts& costs, IterationScratch& scratch);

/// Lower bound of the event-driven form, in O(stages): by least_ends() of every pipeline.
IterationTimes least_iteration(const PlanCosts& costs, IterationScratch& scratch);

/// The iteration by the event-driven form. `timeline`, if given, receives what every stage does.
IterationTimes event_driven_iteration(const PlanCosts& costs, Timeline* timeline = nullptr);
/// The same, with `run` in place of run_pipeline() to get the ends of a pipeline's stages.
IterationTimes event_driven_iteration(const PlanCosts& costs,
                                      const std::function<std::span<const StageEnd>(const PipelineTimes&)>& run);

}  // namespace sailor::simulator
