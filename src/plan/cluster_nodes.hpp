// The nodes of a cluster, as placement asks for them.
#pragma once

#include <span>
#include <vector>

#include "cluster/cluster.hpp"
#include "plan/node_placement.hpp"
#include "plan/placement.hpp"

namespace sailor {

/// Under the names that a stage may use for where its nodes are: their zone, their partitions, none. Nodes that are
/// unavailable count only where a type has no others.
NodeSizes node_sizes(std::span<const NodeGroup> groups);

/// The nodes of these groups, for place_on_nodes(), which says whether they suffice for a plan. Those of hypothetical
/// groups get names.
std::vector<PlacementNode> placement_nodes(std::span<const NodeGroup> groups);

}  // namespace sailor
