// sailor-plan --preflight: finds the problems of a job before it is submitted.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/plan/cluster_input.hpp"
#include "apps/plan/plan_options.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "preflight/preflight.hpp"
#include "profile/profile.hpp"

namespace sailor::apps {

/// The input of the checks: a plan, or the reason why there is none.
struct PreflightInput {
  const ClusterInput& cluster;
  const GpuCatalogue& gpus;
  const Plan* plan = nullptr;
  const Model* model = nullptr;
  std::optional<Result<std::vector<preflight::ProfileFacts>>> profile{};
  std::optional<double> memory_headroom{};
  std::optional<Error> not_simulated{};
  std::optional<Error> no_plan{};
};

/// Gathers the facts that the checks need, and checks the job. Errors: usage (a time that cannot be read), not_found
/// (an unknown environment of the site).
Result<std::vector<preflight::Check>> check_job(const PlanOptions& options, const Environment& environment,
                                                const PreflightInput& input);

/// The contents of the profile for each GPU type of the plan, of the model of this name.
std::vector<preflight::ProfileFacts> profile_facts(const Profile& profile, const Plan& plan, const std::string& model);

/// The checks as JSON, with the keys outcome and checks.
nlohmann::ordered_json preflight_to_json(const std::vector<preflight::Check>& checks);

/// sailor-plan --preflight PLAN: prints the checks and returns the exit status.
Result<int> preflight_of_plan(const PlanOptions& options, const Environment& environment);

}  // namespace sailor::apps
