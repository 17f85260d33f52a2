// sailor-plan --placement: which node and device every rank of a plan would get.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "plan/node_placement.hpp"
#include "plan/plan.hpp"

namespace sailor::apps {

/// The nodes that a plan may use, as place_on_nodes() takes them; those of a hypothetical cluster get names.
std::vector<PlacementNode> placement_nodes(const Cluster& cluster, std::span<const std::string> partitions,
                                           Availability availability);

/// A row per node that has ranks: its devices in use, its switch where that is known, its ranks and what they hold.
/// `places`: by rank, from place_on_nodes().
std::string placement_report(const Plan& plan, std::span<const PlacementNode> nodes, std::span<const RankPlace> places);
/// An object per rank: rank, node, device, pipeline, stage, tensor_parallel_index, and switch where it is known.
nlohmann::ordered_json placement_to_json(const Plan& plan, std::span<const PlacementNode> nodes,
                                         std::span<const RankPlace> places);

}  // namespace sailor::apps
