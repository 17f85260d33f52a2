// sailor-plan --planner NAME: the planners that the Sailor paper compares with.
#pragma once

#include <string>
#include <vector>

#include "apps/options.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"
#include "planner/baselines/baseline.hpp"
#include "planner/request.hpp"
#include "reports/plans.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

/// --planner, --planner-faults, --judge, --planner-seed.
std::vector<Option> planner_options();
/// --planner-faults, for every program that has it.
planner::baselines::Faults planner_faults(const Options& options);

/// Whether --planner asks for the list of planners.
bool wants_planner_list(const Options& options);
/// Whether --planner names a planner other than this project's own.
bool by_published_planner(const Options& options);
/// Refuses unknown names, and options that do not go with the planner. Errors: usage.
Result<void> check_planner_options(const Options& options);

/// Runs the planner, writes its proposals, and returns the exit status. `heading` describes the content of `simulated`;
/// `origin` goes into the plan that is written. Errors: infeasible, with counts, if no plan is accepted; usage, if the
/// plan cannot be expressed in the form that --output or --format asks for.
Result<int> plan_by_published(const Options& options, const planner::Request& request,
                              const simulator::Environment& simulated, const reports::Heading& heading,
                              const std::vector<NodeGroup>& nodes, const PlanOrigin& origin);

}  // namespace sailor::apps
