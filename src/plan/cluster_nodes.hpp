// The nodes of a cluster, in the form that placement takes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "plan/node_placement.hpp"
#include "plan/placement.hpp"

namespace sailor {

/// Node sizes under every name that a stage may use for their location: zone, partitions, none. Unavailable nodes count
/// only if a type has no others.
NodeSizes node_sizes(std::span<const NodeGroup> groups);

/// The nodes of these groups, for place_on_nodes(), which says whether they suffice for a plan. Nodes of hypothetical
/// groups get names.
std::vector<PlacementNode> placement_nodes(std::span<const NodeGroup> groups);

/// The name of the node of each rank, placed on these nodes. Errors: those of place_on_nodes().
Result<std::vector<std::string>> nodes_of_ranks(const Plan& plan, std::span<const NodeGroup> groups);

}  // namespace sailor
