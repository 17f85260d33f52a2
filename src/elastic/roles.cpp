#include "elastic/roles.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plan/node_placement.hpp"

namespace sailor::elastic {

namespace {

/// The members of one kind on one host.
struct HostDevices {
  std::string host;
  Kind kind;
  std::vector<std::size_t> members;
};

std::vector<HostDevices> hosts_of(std::span<const MemberFacts> members) {
  std::map<std::pair<std::string, Kind>, std::vector<std::size_t>> found;
  for (std::size_t i = 0; i < members.size(); ++i)
    found[{members[i].host, {members[i].gpu, members[i].zone}}].push_back(i);
  std::vector<HostDevices> hosts;
  for (auto& [key, indices] : found) hosts.push_back({key.first, key.second, std::move(indices)});
  return hosts;
}

/// The ranks by what the members want; empty if that does not determine all ranks.
std::vector<std::size_t> wanted_ranks(const Plan& plan, std::span<const MemberFacts> members) {
  std::vector<std::size_t> order(static_cast<std::size_t>(plan.ranks()), members.size());
  const std::vector<RankRole> roles = rank_roles(plan);
  std::vector<std::size_t> spares;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int wanted = members[i].wanted_rank;
    if (wanted < 0 || wanted >= plan.ranks()) {
      spares.push_back(i);
      continue;
    }
    const Stage& stage = stage_of(plan, roles[static_cast<std::size_t>(wanted)]);
    if (stage.gpu != members[i].gpu || (!stage.zone.empty() && stage.zone != members[i].zone)) return {};
    if (order[static_cast<std::size_t>(wanted)] != members.size()) return {};
    order[static_cast<std::size_t>(wanted)] = i;
  }
  if (std::find(order.begin(), order.end(), members.size()) != order.end()) return {};
  order.insert(order.end(), spares.begin(), spares.end());
  return order;
}

}  // namespace

Result<void> complete_facts(MemberFacts& facts, const Plan& plan) {
  const bool has_rank = facts.wanted_rank >= 0 && facts.wanted_rank < plan.ranks();
  const auto own_stage = [&]() -> const Stage& {
    return stage_of(plan, rank_roles(plan)[static_cast<std::size_t>(facts.wanted_rank)]);
  };
  if (facts.gpu.empty()) {
    std::set<std::string> types;
    for (const auto& [gpu, zone] : kinds_of(plan)) types.insert(gpu);
    if (has_rank)
      facts.gpu = own_stage().gpu;
    else if (types.size() == 1)
      facts.gpu = *types.begin();
    else
      return fail(ErrorCode::invalid_input,
                  fmt::format("a process on {} does not say which type of device it has, and the plan has {}",
                              facts.host, fmt::join(types, ", ")),
                  "start it with --gpu-type NAME");
  }
  if (facts.zone.empty()) {
    std::set<std::string> zones;
    for (const auto& [gpu, zone] : kinds_of(plan))
      if (gpu == facts.gpu) zones.insert(zone);
    if (has_rank)
      facts.zone = own_stage().zone;
    else if (zones.size() == 1)
      facts.zone = *zones.begin();
    else if (zones.size() > 1)
      return fail(ErrorCode::invalid_input,
                  fmt::format("a process on {} does not say in which zone it is, and the plan has {} in '{}'",
                              facts.host, facts.gpu, fmt::join(zones, "', '")),
                  "start it with --zone NAME");
  }
  return {};
}

Result<std::vector<std::size_t>> assign_ranks(const Plan& plan, std::span<const MemberFacts> members) {
  if (std::vector<std::size_t> order = wanted_ranks(plan, members); !order.empty()) return order;
  const std::vector<HostDevices> hosts = hosts_of(members);
  std::vector<PlacementNode> nodes;
  for (const HostDevices& host : hosts)
    nodes.push_back({.name = fmt::format("{} {} {}", host.host, host.kind.first, host.kind.second),
                     .gpu = host.kind.first,
                     .zones = {host.kind.second},
                     .devices = static_cast<int>(host.members.size())});
  const auto places = place_on_nodes(plan, nodes);
  if (!places) return fail(places.error());
  std::vector<std::size_t> order;
  std::vector<bool> taken(members.size(), false);
  for (const RankPlace& place : *places) {
    order.push_back(hosts[static_cast<std::size_t>(place.node)].members[static_cast<std::size_t>(place.device)]);
    taken[order.back()] = true;
  }
  for (std::size_t i = 0; i < members.size(); ++i)
    if (!taken[i]) order.push_back(i);
  return order;
}

Cluster cluster_of(std::span<const MemberFacts> members, const Cluster& known) {
  Cluster cluster = known;
  cluster.groups.clear();
  cluster.partitions.clear();
  cluster.reservations.clear();
  cluster.left_out.clear();
  std::map<std::pair<Kind, int>, std::vector<std::string>> alike;
  for (const HostDevices& host : hosts_of(members))
    alike[{host.kind, static_cast<int>(host.members.size())}].push_back(host.host);
  for (const auto& [key, hosts] : alike) {
    const auto& [kind, devices] = key;
    NodeGroup group{.nodes = {}, .count = static_cast<int>(hosts.size()), .gpu = kind.first, .gpus_per_node = devices};
    group.zone = kind.second;
    // Other known facts of such nodes, such as their memory; a node with fewer devices gets its share of it.
    for (const NodeGroup& other : known.groups) {
      if (other.gpu != group.gpu ||
          (!group.zone.empty() && other.zone != group.zone &&
           std::find(other.partitions.begin(), other.partitions.end(), group.zone) == other.partitions.end()))
        continue;
      group.cpus_per_node = other.cpus_per_node;
      group.cores_per_node = other.cores_per_node;
      group.memory_per_node = Bytes(other.memory_per_node.value() * devices / std::max(1, other.gpus_per_node));
      group.zone = other.zone;
      group.partitions = other.partitions;
      for (const std::string& partition : other.partitions)
        if (const Partition* const found = known.find_partition(partition);
            found != nullptr && cluster.find_partition(partition) == nullptr)
          cluster.partitions.push_back(*found);
      break;
    }
    cluster.groups.push_back(std::move(group));
  }
  return cluster;
}

std::string describe_devices(std::span<const MemberFacts> members) {
  std::map<std::pair<Kind, std::size_t>, int> counts;
  for (const HostDevices& host : hosts_of(members)) ++counts[{host.kind, host.members.size()}];
  std::vector<std::string> parts;
  for (const auto& [key, count] : counts) {
    const auto& [kind, devices] = key;
    parts.push_back(fmt::format("{} x ({} {}{})", count, devices, kind.first,
                                kind.second.empty() ? "" : fmt::format(" in '{}'", kind.second)));
  }
  return fmt::format("{}", fmt::join(parts, " + "));
}

}  // namespace sailor::elastic
