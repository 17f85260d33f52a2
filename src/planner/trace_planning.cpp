#include "planner/trace_planning.hpp"

#include <set>
#include <string>
#include <utility>

#include "core/log.hpp"
#include "planner/planner.hpp"

namespace sailor::planner {

namespace {

PricedPlan priced(Plan plan, const simulator::Prediction& prediction) {
  plan.prediction = simulator::summary(prediction);
  return {.plan = std::move(plan),
          .iteration_time = prediction.iteration_time,
          .cost_per_iteration = prediction.cost_per_iteration};
}

}  // namespace

Result<std::vector<TraceStep>> plan_trace(const std::vector<AvailabilityStep>& steps, const Request& request,
                                          const simulator::Environment& environment, Seconds reconfiguration) {
  const LayerCosts costs = simulator::layer_costs_for(environment);
  const auto on = [&](const Cluster& cluster) {
    return simulator::Environment{.model = environment.model,
                                  .profile = environment.profile,
                                  .gpus = environment.gpus,
                                  .framework = environment.framework,
                                  .cluster = &cluster,
                                  .measured_only = environment.measured_only,
                                  .costs = &costs};
  };
  std::set<std::string> left_out;  // said once, not for every step
  Request best_only = request;
  best_only.max_plans = 1;
  best_only.effort.explains_limits = false;
  const TracePlanner trace_planner{.find = [&](const Cluster& cluster) -> Result<PricedPlan> {
                                     auto found = find_plans(best_only, on(cluster));
                                     if (!found) return fail(found.error());
                                     if (!found->not_linked.empty() && left_out.insert(found->not_linked).second)
                                       log_warning("{}", found->not_linked);
                                     for (const std::string& what : found->left_out)
                                       if (left_out.insert(what).second) log_warning("left out: {}", what);
                                     Candidate& best = found->plans.front();
                                     return priced(std::move(best.plan), best.prediction);
                                   },
                                   .price = [&](const Plan& plan, const Cluster& cluster) -> Result<PricedPlan> {
                                     const auto prediction = simulator::simulate(plan, on(cluster));
                                     if (!prediction) return fail(prediction.error());
                                     return priced(plan, *prediction);
                                   }};
  return replan(steps, environment.cluster, environment.gpus, request.objective, reconfiguration, trace_planner);
}

}  // namespace sailor::planner
