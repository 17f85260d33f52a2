// The command line of sailor-plan, and which options go together.
#pragma once

#include "apps/plan/plan_options.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "planner/request.hpp"
#include "profile/profile.hpp"

namespace sailor::apps {

CommandLine plan_command_line(PlanOptions& options);

/// Refuses options that need others or contradict them, before anything is read. Errors: usage.
Result<void> check_plan_options(const PlanOptions& options);

/// The request by the options. Errors: usage (pins, GPU types, times and node lists that cannot be read).
Result<planner::Request> read_request(const PlanOptions& options, const Model& model, const Profile& profile,
                                      const GpuCatalogue& gpus);

/// The value of --availability.
Availability availability_of(const PlanOptions& options);

/// Refuses nodes of --exclude that the cluster does not have. Errors: not_found.
Result<void> check_excluded_nodes(const planner::Request& request, const Cluster& cluster);

}  // namespace sailor::apps
