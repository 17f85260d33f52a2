// sailor-simulate --estimator NAME: what the cost models of others say of a plan.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
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
std::vector<Option> estimator_options();
/// Refuses names that are not known, and --planner-faults without an estimator. Errors: usage.
Result<void> check_estimator(const Options& options);

/// The estimate of the cost model that --estimator names; nothing where it is this project's own. Errors: those of the
/// estimator.
Result<std::optional<reports::OtherEstimate>> other_estimate(const Options& options,
                                                             const planner::baselines::PlanList& list,
                                                             const TrainingJob& job, const Model& model,
                                                             const Profile& profile, const GpuCatalogue& gpus);
/// The same of a plan; `cluster` (may be null) says how many devices nodes have.
Result<std::optional<reports::OtherEstimate>> other_estimate(const Options& options, const Plan& plan,
                                                             const Model& model, const Profile& profile,
                                                             const GpuCatalogue& gpus, const Cluster* cluster);

/// Writes what the estimator and this project's simulator say of a list that a Plan cannot say: of the latter a bound.
/// Errors: infeasible when it does not fit.
Result<void> simulate_list(const Options& options, const Environment& environment, const GpuCatalogue& gpus,
                           const Profile& profile);

}  // namespace sailor::apps
