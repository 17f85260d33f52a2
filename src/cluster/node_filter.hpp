// A part of a cluster: some of its nodes, by name.
#pragma once

#include <functional>
#include <string>

#include "cluster/cluster.hpp"

namespace sailor {

/// The cluster with the nodes that `keep` accepts. Groups without any are removed; hypothetical nodes, which have no
/// names, stay.
Cluster with_nodes(const Cluster& cluster, const std::function<bool(const std::string&)>& keep);

}  // namespace sailor
