// sailor-plan --planner NAME: the planners that the Sailor paper compares with.
#pragma once

#include <string>
#include <vector>

#include "apps/plan/plan_options.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"
#include "planner/baselines/baseline.hpp"
#include "planner/request.hpp"
#include "reports/plans.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

/// --planner, --planner-faults, --judge, --planner-seed.
std::vector<Option> planner_options(PlanOptions& options);
/// --planner-faults, for every program that has it.
planner::baselines::Faults planner_faults(const OptionValue<std::string>& option);

/// Whether --planner asks for the list of planners.
bool wants_planner_list(const PlanOptions& options);
/// Whether --planner names a planner other than this project's own.
bool by_published_planner(const PlanOptions& options);
/// Refuses unknown names, and options that do not go with the planner. Errors: usage.
Result<void> check_planner_options(const PlanOptions& options);

/// Runs the planner, writes its proposals, and returns the exit status. `heading` describes the content of `simulated`;
/// `origin` goes into the plan that is written. Errors: infeasible, with counts, if no plan is accepted; usage, if the
/// plan cannot be expressed in the form that --output or --format asks for.
Result<int> plan_by_published(const PlanOptions& options, const planner::Request& request,
                              const simulator::Environment& simulated, const reports::Heading& heading,
                              const std::vector<NodeGroup>& nodes, const PlanOrigin& origin);

}  // namespace sailor::apps
