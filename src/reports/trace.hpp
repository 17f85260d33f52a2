// A plan for every step of a trace of availability, as a table or as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/request.hpp"
#include "planner/trace_planning.hpp"

namespace sailor::reports {

/// A row per step, and the sums.
std::string trace_report(const planner::Request& request, const std::vector<planner::TraceStep>& steps,
                         const planner::TraceTimes& times);
/// `cluster`: the name of the one that says what nodes are like; may be empty.
nlohmann::ordered_json trace_to_json(const planner::Request& request, const std::string& cluster,
                                     const std::vector<planner::TraceStep>& steps, const planner::TraceTimes& times);

}  // namespace sailor::reports
