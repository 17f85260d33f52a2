// sailor-plan --preflight: what would go wrong with a job, before it is submitted.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "apps/plan/cluster_input.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "preflight/preflight.hpp"
#include "profile/profile.hpp"

namespace sailor::apps {

/// What is checked: a plan, or why there is none.
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

/// Asks what is to be asked, and checks. Errors: usage (a time that cannot be read), not_found (an unknown
/// environment of the site).
Result<std::vector<preflight::Check>> check_job(const Options& options, const Environment& environment,
                                                const PreflightInput& input);

/// What the profile knows of each GPU type of the plan.
std::vector<preflight::ProfileFacts> profile_facts(const Profile& profile, const Plan& plan);

/// Keys outcome and checks.
nlohmann::ordered_json preflight_to_json(const std::vector<preflight::Check>& checks);

/// sailor-plan --preflight PLAN: prints the checks. The exit status.
Result<int> preflight_of_plan(const Options& options, const Environment& environment);

}  // namespace sailor::apps
