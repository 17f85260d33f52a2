// A plan for every step of a trace of availability.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/availability.hpp"
#include "planner/request.hpp"
#include "simulator/simulator.hpp"

namespace sailor::planner {

/// How a trace is planned.
struct TraceTimes {
  Seconds reconfiguration{};
  Seconds last_step{};
};

/// Plans the trace; `environment.cluster`, which may be null, says what nodes, prices and links are like. Errors:
/// those of the file, of the planner and the simulator.
Result<std::vector<TraceStep>> plan_trace(const std::string& path, const Request& request,
                                          const simulator::Environment& environment, const TraceTimes& times);

}  // namespace sailor::planner
