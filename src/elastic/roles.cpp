#include "elastic/roles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/text.hpp"
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

/// Indices of members by rank, as place_on_nodes() finds them. Errors: unavailable.
Result<std::vector<std::size_t>> placed(const Plan& plan, std::span<const MemberFacts> members) {
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
  for (const RankPlace& place : *places)
    order.push_back(hosts[static_cast<std::size_t>(place.node)].members[static_cast<std::size_t>(place.device)]);
  return order;
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

/// The devices of a stage of a pipeline, or of one of its tensor-parallel groups: what stays where it is, or moves, as
/// one.
struct UnitKey {
  int pipeline = 0;
  int stage = 0;
  int context = 0;
  auto operator<=>(const UnitKey&) const = default;
};

struct Unit {
  const Stage* stage = nullptr;
  std::pair<int, int> experts{};  // expert-parallel index of the first rank, and degree
  std::vector<int> ranks{};       // ascending
};

/// `whole`: stages, whose groups exchange parts of sequences and belong on one host; else groups.
std::map<UnitKey, Unit> units_of(const Plan& plan, bool whole) {
  std::map<UnitKey, Unit> units;
  for (const RankRole& role : rank_roles(plan)) {
    Unit& unit = units[{role.pipeline, role.stage, whole ? 0 : role.context_parallel_index}];
    if (unit.ranks.empty()) unit.experts = {role.expert_parallel_index, plan.expert_parallel};
    unit.stage = &stage_of(plan, role);
    unit.ranks.push_back(role.rank);
  }
  return units;
}

/// Whether all stages of the plan find room on the largest host.
bool are_stages_whole(const Plan& plan, std::span<const MemberFacts> members) {
  std::size_t largest = 0;
  for (const HostDevices& host : hosts_of(members)) largest = std::max(largest, host.members.size());
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (static_cast<std::size_t>(plan.ranks_of(stage)) > largest) return false;
  return true;
}

/// Whether ranks of these units hold the same state.
bool have_same_state(const Unit& a, const Unit& b) {
  Stage stage = *a.stage;
  stage.recompute = b.stage->recompute;
  return stage == *b.stage && a.experts == b.experts;
}

/// Finds members for units that stay where they were. Ranks that have none are members.size().
class Staying {
 public:
  Staying(const Plan& plan, std::span<const MemberFacts> members, const EpochBefore& before, bool whole)
      : members_(members),
        order_(static_cast<std::size_t>(plan.ranks()), members.size()),
        used_(members.size(), false),
        now_(units_of(plan, whole)),
        before_(units_of(before.plan, whole)),
        member_of_rank_(static_cast<std::size_t>(before.plan.ranks()), members.size()) {
    for (std::size_t i = 0; i < members.size(); ++i)
      if (const int rank = before.ranks[i]; rank >= 0 && rank < before.plan.ranks())
        member_of_rank_[static_cast<std::size_t>(rank)] = i;
      else
        idle_.push_back(i);
  }

  std::vector<std::size_t> find() {
    for (const bool complete : {true, false}) {
      for (const auto& [key, unit] : now_)
        if (const auto same = before_.find(key); same != before_.end()) (void)keep(unit, same, complete);
      for (const auto& [key, unit] : now_)
        for (auto other = before_.begin(); other != before_.end() && is_open(unit);) {
          const auto next = std::next(other);
          if (other->first.context == key.context) (void)keep(unit, other, complete);
          other = next;
        }
    }
    return order_;
  }

 private:
  using Units = std::map<UnitKey, Unit>;

  [[nodiscard]] bool is_open(const Unit& unit) const {
    return order_[static_cast<std::size_t>(unit.ranks.front())] == members_.size();
  }

  /// Gives the unit the members of `old`, which is used up then.
  bool keep(const Unit& unit, Units::iterator old, bool complete) {
    if (!is_open(unit) || !have_same_state(old->second, unit)) return false;
    constexpr auto are_alike = [](const MemberFacts& a, const MemberFacts& b) {
      return a.host == b.host && a.gpu == b.gpu && a.zone == b.zone;
    };
    std::vector<std::size_t> chosen;
    const MemberFacts* first = nullptr;
    for (const int rank : old->second.ranks) {
      const std::size_t member = member_of_rank_[static_cast<std::size_t>(rank)];
      const bool is_there = member < members_.size() && !used_[member];
      chosen.push_back(is_there ? member : members_.size());
      if (!is_there) continue;
      if (first == nullptr) first = &members_[member];
      if (!are_alike(members_[member], *first)) return false;
    }
    auto missing = std::count(chosen.begin(), chosen.end(), members_.size());
    if (first == nullptr || (complete && missing > 0)) return false;
    // By members that hold nothing: ranks of other units may stay themselves, or move with all that they have.
    for (const std::size_t member : idle_) {
      if (missing == 0) break;
      if (used_[member] || !are_alike(members_[member], *first)) continue;
      if (std::find(chosen.begin(), chosen.end(), member) != chosen.end()) continue;
      *std::find(chosen.begin(), chosen.end(), members_.size()) = member;
      --missing;
    }
    if (missing > 0) return false;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      order_[static_cast<std::size_t>(unit.ranks[i])] = chosen[i];
      used_[chosen[i]] = true;
    }
    before_.erase(old);
    return true;
  }

  std::span<const MemberFacts> members_;
  std::vector<std::size_t> order_;
  std::vector<bool> used_;
  Units now_;
  Units before_;                             // those that no unit of the new plan has taken over
  std::vector<std::size_t> member_of_rank_;  // of the epoch before
  std::vector<std::size_t> idle_;            // members without a rank in it
};

/// Members for the units of the plan that `order` leaves without (ranks with members.size()). Errors: unavailable.
Result<void> place_rest(const Plan& plan, std::span<const MemberFacts> members, bool whole,
                        std::vector<std::size_t>& order) {
  std::vector<bool> used(members.size(), false);
  for (const std::size_t member : order)
    if (member < members.size()) used[member] = true;
  Plan rest = plan;  // a pipeline of one stage for each unit
  if (!whole) rest.context_parallel = 1;
  rest.expert_parallel = 1;
  rest.sharding_degree = 0;
  rest.pipelines.clear();
  std::vector<int> ranks;  // of the plan, by rank of the rest
  for (const auto& [key, unit] : units_of(plan, whole)) {
    if (order[static_cast<std::size_t>(unit.ranks.front())] < members.size()) continue;
    rest.pipelines.push_back({.count = 1, .micro_batches = 1, .stages = {*unit.stage}});
    ranks.insert(ranks.end(), unit.ranks.begin(), unit.ranks.end());
  }
  if (ranks.empty()) return {};
  std::vector<MemberFacts> free;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < members.size(); ++i)
    if (!used[i]) {
      free.push_back(members[i]);
      indices.push_back(i);
    }
  const auto found = placed(rest, free);
  if (!found) return fail(found.error());
  for (std::size_t i = 0; i < ranks.size(); ++i) order[static_cast<std::size_t>(ranks[i])] = indices[(*found)[i]];
  return {};
}

/// Adds the members that have no rank.
std::vector<std::size_t> with_spares(std::vector<std::size_t> order, std::size_t members) {
  std::vector<bool> taken(members, false);
  for (const std::size_t member : order) taken[member] = true;
  for (std::size_t i = 0; i < members; ++i)
    if (!taken[i]) order.push_back(i);
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
                              facts.host, join(types, ", ")),
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
                              facts.host, facts.gpu, join(zones, "', '")),
                  "start it with --zone NAME");
  }
  return {};
}

Result<std::vector<std::size_t>> assign_ranks(const Plan& plan, std::span<const MemberFacts> members,
                                              const EpochBefore* before) {
  if (std::vector<std::size_t> order = wanted_ranks(plan, members); !order.empty()) return order;
  if (before != nullptr) {
    const bool whole = plan.context_parallel == before->plan.context_parallel && are_stages_whole(plan, members);
    std::vector<std::size_t> order = Staying(plan, members, *before, whole).find();
    if (place_rest(plan, members, whole, order)) return with_spares(std::move(order), members.size());
    // Units that stay may leave no host with enough devices for the rest.
  }
  auto order = placed(plan, members);
  if (!order) return order;
  return with_spares(*std::move(order), members.size());
}

Cluster cluster_of(std::span<const MemberFacts> members, const Cluster& known) {
  Cluster cluster = known;
  cluster.groups.clear();
  cluster.partitions.clear();
  cluster.reservations.clear();
  cluster.left_out.clear();
  struct Alike {
    int hosts = 0;
    Bytes memory{};  // the least of their nodes; 0: unknown
  };
  std::map<std::pair<Kind, int>, Alike> alike;
  for (const HostDevices& host : hosts_of(members)) {
    Alike& hosts = alike[{host.kind, static_cast<int>(host.members.size())}];
    Bytes memory{};  // who came later found less of it free
    for (const std::size_t member : host.members) memory = std::max(memory, members[member].memory);
    if (memory > Bytes(0)) hosts.memory = hosts.memory > Bytes(0) ? std::min(hosts.memory, memory) : memory;
    ++hosts.hosts;
  }
  for (const auto& [key, hosts] : alike) {
    const auto& [kind, devices] = key;
    NodeGroup group{.nodes = {}, .count = hosts.hosts, .gpu = kind.first, .gpus_per_node = devices};
    group.zone = kind.second;
    group.memory_per_node = hosts.memory;
    // Other facts of such nodes are known, such as their memory; a node with fewer devices gets its share of it.
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
  return join(parts, " + ");
}

std::vector<std::vector<MemberFacts>> devices_after_losses(const std::vector<MemberFacts>& members, int min_ranks,
                                                           std::size_t most) {
  std::vector<std::vector<MemberFacts>> after;
  std::set<std::string> known;
  const auto add = [&](std::vector<MemberFacts> left) {
    if (left.empty() || static_cast<int>(left.size()) < min_ranks) return;
    if (known.insert(describe_devices(left)).second) after.push_back(std::move(left));
  };
  std::set<std::string> hosts;
  for (const MemberFacts& member : members) hosts.insert(member.host);
  for (const std::string& host : hosts) {
    std::vector<MemberFacts> left = members;
    std::erase_if(left, [&](const MemberFacts& member) { return member.host == host; });
    add(std::move(left));
  }
  for (std::size_t gone = 0; gone < members.size() && after.size() < most; ++gone) {
    std::vector<MemberFacts> left = members;
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(gone));
    add(std::move(left));
  }
  return after;
}

}  // namespace sailor::elastic
