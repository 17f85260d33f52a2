#include "plan/cluster_nodes.hpp"

#include <fmt/format.h>

namespace sailor {

NodeSizes node_sizes(std::span<const NodeGroup> groups) {
  NodeSizes sizes;
  const auto add = [&](const NodeGroup& group, const std::string& zone, const NodeSizes& others) {
    if (!others.has(group.gpu, zone)) sizes.add(group.gpu, zone, group.gpus_per_node, group.count);
  };
  const auto add_all = [&](bool available, const NodeSizes& others) {
    for (const NodeGroup& group : groups) {
      if ((group.state != NodeState::unavailable) != available) continue;
      add(group, "", others);
      if (!group.zone.empty()) add(group, group.zone, others);
      for (const std::string& partition : group.partitions)
        if (partition != group.zone) add(group, partition, others);
    }
  };
  add_all(true, {});
  const NodeSizes available = sizes;
  add_all(false, available);
  return sizes;
}

std::vector<PlacementNode> placement_nodes(std::span<const NodeGroup> groups) {
  std::vector<PlacementNode> nodes;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const NodeGroup& group = groups[g];
    std::vector<std::string> zones = group.partitions;
    if (!group.zone.empty()) zones.push_back(group.zone);
    for (int i = 0; i < group.count; ++i) {
      const auto index = static_cast<std::size_t>(i);
      nodes.push_back({.name = group.nodes.empty() ? fmt::format("{}.{}", g, i) : group.nodes[index],
                       .gpu = group.gpu,
                       .zones = zones,
                       .devices = group.gpus_per_node,
                       .leaf_switch = group.switches.empty() ? "" : group.switches[index]});
    }
  }
  return nodes;
}

Result<std::vector<std::string>> nodes_of_ranks(const Plan& plan, std::span<const NodeGroup> groups) {
  const std::vector<PlacementNode> nodes = placement_nodes(groups);
  const auto places = place_on_nodes(plan, nodes);
  if (!places) return fail(places.error());
  std::vector<std::string> names;
  for (const RankPlace& place : *places) names.push_back(nodes[static_cast<std::size_t>(place.node)].name);
  return names;
}

}  // namespace sailor
