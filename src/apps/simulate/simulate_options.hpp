// The options of sailor-simulate.
#pragma once

#include <string>

#include "apps/options.hpp"
#include "apps/simulate/plan_input.hpp"

namespace sailor::apps {

struct SimulateOptions : CommonOptions, PlanInputOptions {
  OptionValue<std::string> plan, profile, framework, trace, trace_ranks, plot, against, format;
  OptionValue<bool> copies, measured_only;
  // estimator_options()
  OptionValue<std::string> estimator, planner_faults;
};

}  // namespace sailor::apps
