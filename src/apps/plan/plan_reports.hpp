// What sailor-plan prints: the plans found, as a table or as JSON, by either cost model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "planner/artifact/artifact.hpp"
#include "planner/planner.hpp"
#include "planner/request.hpp"

namespace sailor::apps {

/// What was searched, a row per plan, best first (more where its pipelines differ), how far from the best possible it
/// may be, and what the numbers stand on.
std::string plans_report(const planner::Request& request, const planner::SearchResult& result);
std::string plans_report(const planner::Request& request, const planner::ArtifactResult& result);

/// objective, space, cost_model, considered, did_not_fit, stop, bound, left_out, plans.
nlohmann::ordered_json plans_to_json(const planner::Request& request, const planner::SearchResult& result);
nlohmann::ordered_json plans_to_json(const planner::Request& request, const planner::ArtifactResult& result);

}  // namespace sailor::apps
