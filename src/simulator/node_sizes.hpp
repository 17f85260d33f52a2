// The node sizes of a cluster, as placement asks for them.
#pragma once

#include <span>

#include "cluster/cluster.hpp"
#include "plan/placement.hpp"

namespace sailor::simulator {

/// Under the names that a stage may use for where its nodes are: their zone, their partitions, none. Nodes that are
/// unavailable count only where a type has no others.
NodeSizes node_sizes(std::span<const NodeGroup> groups);

}  // namespace sailor::simulator
