#include "cluster/node_filter.hpp"

#include <utility>

namespace sailor {

Cluster with_nodes(const Cluster& cluster, const std::function<bool(const std::string&)>& keep) {
  Cluster part = cluster;
  for (NodeGroup& group : part.groups) {
    if (group.nodes.empty()) continue;
    std::vector<std::string> nodes;
    std::vector<std::string> switches;
    for (std::size_t i = 0; i < group.nodes.size(); ++i) {
      if (!keep(group.nodes[i])) continue;
      nodes.push_back(group.nodes[i]);
      if (!group.switches.empty()) switches.push_back(group.switches[i]);
    }
    group.nodes = std::move(nodes);
    group.switches = std::move(switches);
    group.count = static_cast<int>(group.nodes.size());
  }
  std::erase_if(part.groups, [](const NodeGroup& group) { return group.count == 0; });
  return part;
}

}  // namespace sailor
