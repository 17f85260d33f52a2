// A plan for every step of a trace of availability, as a table or as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "planner/availability.hpp"
#include "planner/request.hpp"

namespace sailor::reports {

/// Times with which a trace was planned.
struct TraceTimes {
  Seconds reconfiguration{};
  Seconds last_step{};
};

/// A row per step, and the sums.
std::string trace_report(const planner::Request& request, const std::vector<planner::TraceStep>& steps,
                         const TraceTimes& times);
/// `cluster`: the name of the cluster that describes the nodes; may be empty.
nlohmann::ordered_json trace_to_json(const planner::Request& request, const std::string& cluster,
                                     const std::vector<planner::TraceStep>& steps, const TraceTimes& times);

}  // namespace sailor::reports
