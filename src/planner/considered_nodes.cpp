#include "planner/considered_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "core/text.hpp"

namespace sailor::planner {

namespace {

constexpr int most_nodes = 1 << 20;  // no plan has more ranks

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

ConsideredNodes considered_nodes(const Request& request, const Cluster& cluster, const GpuCatalogue& gpus) {
  const Pins& pins = request.pins;
  std::vector<std::string> pinned;
  for (const std::string& gpu : pins.gpus)
    if (const auto type = gpus.find(gpu)) pinned.push_back(type->name);
  const auto has_gpus = [&](const NodeGroup& group) {
    const auto type = gpus.find(group.gpu);
    return !type || type->kind == DeviceKind::gpu;
  };
  std::vector<NodeGroup> usable = cluster.usable(request.partitions, request.availability);
  std::set<std::string> with_gpus;  // partitions
  for (const NodeGroup& group : usable)
    if (has_gpus(group)) with_gpus.insert(group.partitions.begin(), group.partitions.end());
  // A partition that has no GPUs was not named for its GPUs.
  const auto is_wanted = [&](const NodeGroup& group) {
    return has_gpus(group) || !pins.gpus.empty() ||
           std::any_of(request.partitions.begin(), request.partitions.end(), [&](const std::string& partition) {
             return contains(group.partitions, partition) && !with_gpus.contains(partition);
           });
  };
  ConsideredNodes considered;
  for (NodeGroup& group : usable) {
    if (!pins.gpus.empty() && !contains(pinned, group.gpu)) continue;
    if (!pins.zones.empty() && !contains(pins.zones, group.zone)) continue;
    group.count -= static_cast<int>(std::count_if(group.nodes.begin(), group.nodes.end(), [&](const std::string& node) {
      return contains(pins.excluded_nodes, node);
    }));
    if (group.count <= 0 || group.gpus_per_node <= 0) continue;
    (is_wanted(group) ? considered.groups : considered.without_gpus).push_back(std::move(group));
  }
  if (considered.groups.empty()) std::swap(considered.groups, considered.without_gpus);
  return considered;
}

Result<std::vector<const Partition*>> partitions_of(const Request& request, const Cluster& cluster) {
  std::vector<const Partition*> partitions;
  for (const std::string& name : request.partitions) {
    const Partition* partition = cluster.find_partition(name);
    if (partition == nullptr) {
      std::vector<std::string> names;
      for (const Partition& known : cluster.partitions) names.push_back(known.name);
      const auto guess = closest(name, names);
      return fail(ErrorCode::not_found, fmt::format("partition '{}' not found (known: {})", name, join(names, ", ")),
                  guess ? fmt::format("did you mean --partition {}?", *guess) : "use --partition NAME");
    }
    if (partition->state() != "up" && request.availability != Availability::all)
      return fail(
          ErrorCode::unavailable,
          fmt::format("partition '{}' is {}", name, partition->state() == "drain" ? "draining" : partition->state()),
          "choose another partition, or ask its administrators");
    partitions.push_back(partition);
  }
  return partitions;
}

std::optional<int> max_nodes_of(const std::vector<const Partition*>& partitions) {
  if (partitions.empty()) return std::nullopt;
  std::int64_t sum = 0;
  for (const Partition* partition : partitions) {
    if (!partition->most_nodes) return std::nullopt;
    sum += *partition->most_nodes;
  }
  return static_cast<int>(std::min<std::int64_t>(sum, most_nodes));
}

Result<void> check_places(const Request& request, const Cluster& cluster) {
  std::set<std::string> zones;
  for (const NodeGroup& group : cluster.groups) zones.insert(group.zone);
  for (const std::string& zone : request.pins.zones)
    if (!zones.contains(zone))
      return fail(ErrorCode::usage,
                  fmt::format("zone '{}' has no nodes in this cluster (zones: {})", zone, join(zones, ", ")),
                  "correct --pin zone");
  std::set<std::string> unknown(request.pins.excluded_nodes.begin(), request.pins.excluded_nodes.end());
  for (const NodeGroup& group : cluster.groups)
    for (const std::string& node : group.nodes) unknown.erase(node);
  if (!unknown.empty())
    return fail(ErrorCode::invalid_input, fmt::format("no node is named {}", join(unknown, ", ")), "correct --exclude");
  return {};
}

tl::unexpected<Error> no_nodes(const Request& request, const Cluster& cluster) {
  std::set<std::string> reasons;
  for (const NodeGroup& group : cluster.usable(request.partitions, Availability::all))
    if (group.state != NodeState::idle)
      reasons.insert(group.state_reason.empty() ? std::string(to_string(group.state))
                                                : fmt::format("{}: {}", to_string(group.state), group.state_reason));
  std::string remedy;
  for (const LeftOutNodes& nodes : cluster.left_out_of(request.partitions)) {
    const std::string message = nodes.message();
    reasons.insert(message.substr(0, message.size() - (nodes.remedy.empty() ? 0 : nodes.remedy.size() + 2)));
    if (remedy.empty()) remedy = nodes.remedy;
  }
  const bool free_now = request.availability == Availability::idle;
  const char* const wanted = free_now ? "is idle" : request.availability == Availability::up ? "is up" : "exists";
  return fail(ErrorCode::infeasible,
              fmt::format("no node of {} {}{}", where_of(request), wanted,
                          reasons.empty() ? "" : fmt::format(" ({})", join(reasons, "; "))),
              !remedy.empty()                                    ? remedy
              : !cluster.left_out_of(request.partitions).empty() ? "choose another partition"
              : free_now ? "use --availability up to plan for nodes that are busy now"
              : request.availability == Availability::up
                  ? "choose another partition, or plan for what may come back with --availability all"
                  : "choose another partition");
}

}  // namespace sailor::planner
