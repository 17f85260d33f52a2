// Whether a running training changes its plan when GPUs come and go.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/availability_trace.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "planner/request.hpp"

namespace sailor::planner {

/// Whether the nodes of the cluster, all of them, can hold the plan, each stage on its GPU type and in its zone.
bool holds(const Cluster& cluster, const Plan& plan);

/// A plan with its time and cost on the cluster of a step.
struct PricedPlan {
  Plan plan;
  Seconds iteration_time{};
  Usd cost_per_iteration{};
};

/// Iterations and cost of a plan in a step. It begins with `lost` time, when the plan does not train but its devices
/// are paid.
struct StepOutcome {
  double iterations = 0.0;
  Usd cost{};
};
StepOutcome outcome(const PricedPlan& plan, Seconds duration, Seconds lost);

/// Whether changing to `found` pays within the step: a strictly better throughput, cost per iteration or throughput per
/// USD of the whole step, reconfiguration included.
bool change_pays(Objective objective, const PricedPlan& running, const PricedPlan& found, Seconds duration,
                 Seconds reconfiguration);

/// How much better changing to `found` is over the whole step, reconfiguration included: 0.1 = 10% more iterations,
/// iterations per USD, or their product, as the objective says; -1 when the step is too short for an iteration.
double gain_of_change(Objective objective, const PricedPlan& running, const PricedPlan& found, Seconds duration,
                      Seconds reconfiguration);

/// How much better `found` is while it runs, under the objective: 0.1 = 10%.
double gain(Objective objective, const PricedPlan& running, const PricedPlan& found);

enum class Decision {
  start,   ///< the first plan: nothing is lost
  keep,    ///< the running plan is the best, or a better one does not pay
  change,  ///< a better plan pays
  forced,  ///< the running plan has lost its GPUs
  resume,  ///< after a pause
  pause,   ///< no plan fits
};
std::string_view to_string(Decision decision);

struct TraceStep {
  AvailabilityStep step;
  Decision decision = Decision::pause;
  std::optional<PricedPlan> plan;   ///< the plan that trains in this step
  std::optional<PricedPlan> found;  ///< the best plan of this step
  StepOutcome outcome;              ///< of `plan`
  std::optional<double> gain;       ///< of `found` over the running plan, if that can go on: share of the objective
  std::string problem;              ///< why there is no plan
};

/// Callbacks that the decisions need, so that they can be tested without the planner.
struct TracePlanner {
  /// Finds the best plan for a cluster. Errors infeasible and not_found mean a pause; others end the replanning.
  std::function<Result<PricedPlan>(const Cluster&)> find;
  /// Prices the running plan on another cluster that can hold it.
  std::function<Result<PricedPlan>(const Plan&, const Cluster&)> price;
};

/// Plans every step of the trace. Errors: those of `planner`.
Result<std::vector<TraceStep>> replan(const std::vector<AvailabilityStep>& steps, const Cluster* like,
                                      const GpuCatalogue& gpus, Objective objective, Seconds reconfiguration,
                                      const TracePlanner& planner);

}  // namespace sailor::planner
