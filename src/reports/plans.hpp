// What sailor-plan prints: the plans found, as a table or as JSON, by either cost model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/artifact/artifact.hpp"
#include "planner/planner.hpp"
#include "planner/request.hpp"

namespace sailor::reports {

/// Heading of every answer of sailor-plan.
struct Heading {
  std::string model;
  Precision precision = Precision::fp32;
  std::string why_precision;  ///< "as --precision says"
  std::string cluster;        ///< its name
  int nodes = 0;              ///< number of nodes that plans may take; `devices` by type
  std::map<std::string, std::int64_t> devices;
  std::size_t zones = 1;
  std::string profile;            ///< as --profile names it
  bool profile_has_model = true;  ///< if false, all layer times are estimated
};
/// `nodes`: the nodes that were searched for plans. The caller sets Heading::why_precision.
Heading heading_of(const planner::Request& request, const simulator::Environment& environment,
                   const std::vector<NodeGroup>& nodes, const std::string& profile);
/// One line: "opt-350m in bf16 on 24 nodes of clariden (96 GH200-96); profile published".
std::string heading_text(const Heading& heading);
/// Keys model, cluster, precision, profile.
nlohmann::ordered_json heading_to_json(const Heading& heading);

/// What was searched, a row per plan, best first (more rows if its pipelines differ), the gap to the bound, and what
/// the numbers are based on.
std::string plans_report(const Heading& heading, const planner::Request& request, const planner::SearchResult& result);
std::string plans_report(const Heading& heading, const planner::Request& request,
                         const planner::ArtifactResult& result);

/// Keys of the heading, then objective, space, cost_model, considered, did_not_fit, stop, bound, left_out, plans.
nlohmann::ordered_json plans_to_json(const Heading& heading, const planner::Request& request,
                                     const planner::SearchResult& result);
nlohmann::ordered_json plans_to_json(const Heading& heading, const planner::Request& request,
                                     const planner::ArtifactResult& result);

}  // namespace sailor::reports
