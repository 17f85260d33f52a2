// Which node and device every rank of a plan would get.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "plan/node_placement.hpp"
#include "plan/plan.hpp"

namespace sailor::reports {

/// A row per node that has ranks: its devices in use, its switch if known, its ranks and what they hold.
/// `places`: by rank, from place_on_nodes().
std::string placement_report(const Plan& plan, std::span<const PlacementNode> nodes, std::span<const RankPlace> places);
/// An object per rank: rank, node, device, pipeline, stage, tensor_parallel_index, and switch if known.
nlohmann::ordered_json placement_to_json(const Plan& plan, std::span<const PlacementNode> nodes,
                                         std::span<const RankPlace> places);

}  // namespace sailor::reports
