#include "simulator/node_sizes.hpp"

namespace sailor::simulator {

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

}  // namespace sailor::simulator
