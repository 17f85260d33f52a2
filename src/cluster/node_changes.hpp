// Changes between two states of a cluster: nodes that plans can use now but could not before, and the reverse.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"

namespace sailor {

/// What a node offers to plans.
struct NodeOffer {
  std::string gpu;
  int devices = 0;
  std::string zone{};
  bool operator==(const NodeOffer&) const = default;
};
/// Offers by node name; nodes of a hypothetical cluster are named "GH200-96 node 3".
using NodeOffers = std::map<std::string, NodeOffer>;

/// Nodes of any of the partitions (all if none are given), as Cluster::usable() returns them.
NodeOffers node_offers(const Cluster& cluster, std::span<const std::string> partitions, Availability availability);

struct NodeChange {
  std::string node;
  std::optional<NodeOffer> before;  ///< std::nullopt: the node came
  std::optional<NodeOffer> now;     ///< std::nullopt: the node went
  std::string reason{};  ///< why it went: "drained: leaking pump", "allocated", "not in the cluster any more"
};

/// In the order of the names. `cluster` is the current state, which says why nodes went.
std::vector<NodeChange> node_changes(const NodeOffers& before, const NodeOffers& now, const Cluster& cluster);

/// "gh3 went (drained: leaking pump), gh1, gh2 came (4 GH200-96 each)"
std::string describe(const std::vector<NodeChange>& changes);

/// "24 GH200-96 on 6 nodes, 8 A100-40 on 2 nodes"; "no nodes" if there are none.
std::string describe(const NodeOffers& offers);

}  // namespace sailor
