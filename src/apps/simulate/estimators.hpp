// sailor-simulate --estimator NAME: estimates a plan with the cost models of other projects.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/simulate/simulate_options.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "planner/baselines/plan_list.hpp"
#include "profile/profile.hpp"
#include "reports/published_plans.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

/// --estimator, --planner-faults.
std::vector<Option> estimator_options(SimulateOptions& options);
/// Refuses unknown names, and --planner-faults without an estimator. Errors: usage.
Result<void> check_estimator(const SimulateOptions& options);

/// The estimate of the cost model that --estimator names; std::nullopt if it is this project's own. Errors: those of
/// the estimator.
Result<std::optional<reports::OtherEstimate>> other_estimate(const SimulateOptions& options,
                                                             const planner::baselines::PlanList& list,
                                                             const TrainingJob& job, const Model& model,
                                                             const Profile& profile, const GpuCatalogue& gpus);
/// The same for a plan; `cluster` (may be null) gives the number of devices of a node.
Result<std::optional<reports::OtherEstimate>> other_estimate(const SimulateOptions& options, const Plan& plan,
                                                             const Model& model, const Profile& profile,
                                                             const GpuCatalogue& gpus, const Cluster* cluster);

/// Writes the estimates of the estimator and of this project's simulator for a list that is not expressible as a Plan;
/// the simulator's is a bound. Errors: infeasible when the list does not fit.
Result<void> simulate_list(const SimulateOptions& options, const Environment& environment, const GpuCatalogue& gpus,
                           const Profile& profile);

}  // namespace sailor::apps
