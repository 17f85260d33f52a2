// A plan for every step of a trace of availability.
#pragma once

#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/availability.hpp"
#include "planner/request.hpp"
#include "simulator/simulator.hpp"

namespace sailor::planner {

/// Plans the steps of a trace; `environment.cluster`, which may be null, gives the nodes, prices and links to use.
/// `reconfiguration`: time of a change of plan. Errors: those of the planner and the simulator.
Result<std::vector<TraceStep>> plan_trace(const std::vector<AvailabilityStep>& steps, const Request& request,
                                          const simulator::Environment& environment, Seconds reconfiguration);

}  // namespace sailor::planner
