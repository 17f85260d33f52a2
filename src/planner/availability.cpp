#include "planner/availability.hpp"

#include <algorithm>
#include <utility>

#include "plan/cluster_nodes.hpp"

namespace sailor::planner {

bool holds(const Cluster& cluster, const Plan& plan) {
  return place_on_nodes(plan, placement_nodes(cluster.usable("", false))).has_value();
}

StepOutcome outcome(const PricedPlan& plan, Seconds duration, Seconds lost) {
  const Seconds useful = std::max(Seconds(0.0), duration - lost);
  const Usd cost = plan.cost_per_iteration * (duration / plan.iteration_time);
  return {.iterations = useful / plan.iteration_time, .cost = cost};
}

bool change_pays(Objective objective, const PricedPlan& running, const PricedPlan& found, Seconds duration,
                 Seconds reconfiguration) {
  const StepOutcome kept = outcome(running, duration, Seconds(0.0));
  const StepOutcome changed = outcome(found, duration, reconfiguration);
  if (changed.iterations <= 0.0) return false;
  switch (objective) {
    case Objective::throughput:
      return changed.iterations > kept.iterations;
    case Objective::cost:
      return changed.cost / changed.iterations < kept.cost / kept.iterations;
    case Objective::throughput_per_usd:  // iterations per second x iterations per USD
      return changed.iterations * changed.iterations * kept.cost.value() >
             kept.iterations * kept.iterations * changed.cost.value();
  }
  return false;
}

double gain_of_change(Objective objective, const PricedPlan& running, const PricedPlan& found, Seconds duration,
                      Seconds reconfiguration) {
  const StepOutcome kept = outcome(running, duration, Seconds(0.0));
  const StepOutcome changed = outcome(found, duration, reconfiguration);
  if (changed.iterations <= 0.0 || kept.iterations <= 0.0) return -1.0;
  const double iterations = changed.iterations / kept.iterations;
  const double cost = changed.cost > Usd(0.0) ? kept.cost / changed.cost : 1.0;
  switch (objective) {
    case Objective::throughput:
      return iterations - 1.0;
    case Objective::cost:
      return iterations * cost - 1.0;
    case Objective::throughput_per_usd:
      return iterations * iterations * cost - 1.0;
  }
  return 0.0;
}

double gain(Objective objective, const PricedPlan& running, const PricedPlan& found) {
  const double time = running.iteration_time / found.iteration_time;
  const double cost = found.cost_per_iteration > Usd(0.0) ? running.cost_per_iteration / found.cost_per_iteration : 1.0;
  switch (objective) {
    case Objective::throughput:
      return time - 1.0;
    case Objective::cost:
      return cost - 1.0;
    case Objective::throughput_per_usd:
      return time * cost - 1.0;
  }
  return 0.0;
}

std::string_view to_string(Decision decision) {
  switch (decision) {
    case Decision::start:
      return "start";
    case Decision::keep:
      return "keep";
    case Decision::change:
      return "change";
    case Decision::forced:
      return "forced";
    case Decision::resume:
      return "resume";
    case Decision::pause:
      return "pause";
  }
  return "";
}

Result<std::vector<TraceStep>> replan(const std::vector<AvailabilityStep>& steps, const Cluster* like,
                                      const GpuCatalogue& gpus, Objective objective, Seconds reconfiguration,
                                      const TracePlanner& planner) {
  std::vector<TraceStep> result;
  std::optional<Plan> running;
  bool started = false;
  for (const AvailabilityStep& step : steps) {
    TraceStep row{.step = step, .plan = {}, .found = {}, .outcome = {}, .gain = {}, .problem = {}};
    const Cluster cluster = cluster_at(step, like, gpus);
    Result<PricedPlan> found = fail(ErrorCode::infeasible, "there are no GPUs");
    if (!cluster.groups.empty()) found = planner.find(cluster);
    if (!found && found.error().code != ErrorCode::infeasible && found.error().code != ErrorCode::not_found)
      return fail(found.error());
    if (found)
      row.found = *std::move(found);
    else
      row.problem = found.error().message();

    if (running && holds(cluster, *running)) {
      auto kept = planner.price(*running, cluster);
      if (!kept) return fail(kept.error());
      row.decision = Decision::keep;
      row.plan = *std::move(kept);
      if (row.found) row.gain = gain(objective, *row.plan, *row.found);
      if (row.found && plan_fingerprint(row.found->plan) != plan_fingerprint(row.plan->plan) &&
          change_pays(objective, *row.plan, *row.found, step.duration, reconfiguration)) {
        row.decision = Decision::change;
        row.plan = row.found;
      }
    } else if (row.found) {
      row.decision = running ? Decision::forced : started ? Decision::resume : Decision::start;
      row.plan = row.found;
    }
    const bool lost =
        row.decision == Decision::change || row.decision == Decision::forced || row.decision == Decision::resume;
    running.reset();
    if (row.plan) {
      started = true;
      running = row.plan->plan;
      row.outcome = outcome(*row.plan, step.duration, lost ? reconfiguration : Seconds(0.0));
    }
    result.push_back(std::move(row));
  }
  return result;
}

}  // namespace sailor::planner
