// Nodes and partitions of a cluster that a request is about.
#pragma once

#include <optional>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "planner/request.hpp"

namespace sailor::planner {

/// Nodes that plans may take.
struct ConsideredNodes {
  std::vector<NodeGroup> groups;        ///< their `count` is without excluded nodes
  std::vector<NodeGroup> without_gpus;  ///< left out because `groups` have GPUs
};
/// The available nodes of the request's partitions that pins and exclusions leave. When some nodes have GPUs, those
/// without are left out, unless pins name them or the request names a partition that has no others.
ConsideredNodes considered_nodes(const Request& request, const Cluster& cluster, const GpuCatalogue& gpus);

/// The request's partitions. Errors: not_found; unavailable (one is down, unless the request is for all that exists).
Result<std::vector<const Partition*>> partitions_of(const Request& request, const Cluster& cluster);

/// Max nodes of a job with one component in each of these partitions; std::nullopt if one of them has no limit, or
/// there are no partitions.
std::optional<int> max_nodes_of(const std::vector<const Partition*>& partitions);

/// Checks pinned zones and excluded nodes. Errors: usage (a pinned zone without nodes), invalid_input (an excluded node
/// that does not exist).
Result<void> check_places(const Request& request, const Cluster& cluster);

/// The error that a request finds no node, and why. Errors: infeasible.
tl::unexpected<Error> no_nodes(const Request& request, const Cluster& cluster);

}  // namespace sailor::planner
