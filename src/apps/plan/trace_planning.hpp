// sailor-plan --availability-trace: a plan for every step of a trace.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/availability.hpp"
#include "planner/request.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

/// How a trace is planned.
struct TraceTimes {
  Seconds reconfiguration{};
  Seconds last_step{};
};

/// Plans the trace; `environment.cluster`, which may be null, says what nodes, prices and links are like. Errors:
/// those of the file, of the planner and the simulator.
Result<std::vector<planner::TraceStep>> plan_trace(const std::string& path, const planner::Request& request,
                                                   const simulator::Environment& environment, const TraceTimes& times);

/// A row per step, and the sums.
std::string trace_report(const planner::Request& request, const std::vector<planner::TraceStep>& steps,
                         const TraceTimes& times);
/// `cluster`: the name of the one that says what nodes are like; may be empty.
nlohmann::ordered_json trace_to_json(const planner::Request& request, const std::string& cluster,
                                     const std::vector<planner::TraceStep>& steps, const TraceTimes& times);

}  // namespace sailor::apps
