#include "plan/node_placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "core/assert.hpp"
#include "plan/leaf_choice.hpp"
#include "plan/placement.hpp"

namespace sailor {

namespace {

using Kind = std::pair<std::string, std::string>;  // GPU type and zone

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Takes the digits at the front, and drops leading zeros.
std::string_view take_number(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

bool serves(const PlacementNode& node, const Kind& kind) {
  return node.gpu == kind.first &&
         (kind.second.empty() || std::find(node.zones.begin(), node.zones.end(), kind.second) != node.zones.end());
}

/// A part of a stage that is placed on one node (StageParts): without context and expert parallelism the
/// tensor-parallel group of one copy.
struct Group {
  int size = 0;
  int pipeline = 0;      // index, counting copies that are placed together once
  int stage = 0;         // index in its pipeline
  std::size_t slot = 0;  // index in its pool
};

/// The nodes of a kind, larger ones first.
struct Pool {
  Kind kind;
  std::vector<int> nodes;           // indices of the caller's nodes
  std::vector<std::size_t> groups;  // in the order of the plan
  std::vector<int> real;            // by slot: the node that replaces nodes[slot], of the same size
};

/// Number of devices that the groups of a pool need, and that its nodes have.
struct Devices {
  int needed = 0;
  int there = 0;
};
Devices devices_of(const Pool& pool, const std::vector<Group>& groups, std::span<const PlacementNode> nodes) {
  Devices devices;
  for (const std::size_t group : pool.groups) devices.needed += groups[group].size;
  for (const int node : pool.nodes) devices.there += nodes[static_cast<std::size_t>(node)].devices;
  return devices;
}

tl::unexpected<Error> too_few(const Pool& pool, const std::vector<Group>& groups,
                              std::span<const PlacementNode> nodes) {
  const auto [needed, there] = devices_of(pool, groups, nodes);
  int largest = 0;
  for (const std::size_t group : pool.groups) largest = std::max(largest, groups[group].size);
  std::map<int, int, std::greater<>> sizes;
  for (const int node : pool.nodes) ++sizes[nodes[static_cast<std::size_t>(node)].devices];
  std::string list;
  for (const auto& [devices, count] : sizes)
    list += fmt::format("{}{} {} with {}", list.empty() ? "" : ", ", count, count == 1 ? "node" : "nodes", devices);
  const std::string have = sizes.empty() ? "there is none" : fmt::format("there are {} ({})", there, list);
  const bool room = there >= needed;
  return fail(ErrorCode::unavailable,
              room ? fmt::format("the plan's {} {} do not fit onto the nodes: a tensor-parallel group, of up to {}, "
                                 "stays on one, and {}",
                                 needed, name_of_kind(pool.kind), largest, have)
                   : fmt::format("the plan needs {} {}, {}", needed, name_of_kind(pool.kind), have),
              "take more nodes, or make another plan");
}

/// First fit over larger nodes first: as nodes_of_stages() does, and the simulator assumes.
bool first_fit(const Pool& pool, std::vector<Group>& groups, std::span<const PlacementNode> nodes) {
  std::vector<int> room;
  // Nodes before `first_open` have less room than any group needs.
  const int least =
      std::accumulate(pool.groups.begin(), pool.groups.end(), std::numeric_limits<int>::max(),
                      [&](int smallest, std::size_t group) { return std::min(smallest, groups[group].size); });
  std::size_t first_open = 0;
  for (const std::size_t index : pool.groups) {
    Group& group = groups[index];
    while (first_open < room.size() && room[first_open] < least) ++first_open;
    std::size_t slot = first_open;
    while (slot < room.size() && room[slot] < group.size) ++slot;
    if (slot == room.size()) {
      if (slot == pool.nodes.size()) return false;
      room.push_back(nodes[static_cast<std::size_t>(pool.nodes[slot])].devices);
      if (room.back() < group.size) return false;
    }
    room[slot] -= group.size;
    group.slot = slot;
  }
  return true;
}

/// Best fit: larger groups first, each where the least room is left over. Fills nodes that hold exactly as many ranks
/// as there are.
bool best_fit(const Pool& pool, std::vector<Group>& groups, std::span<const PlacementNode> nodes) {
  std::set<std::pair<int, std::size_t>> room;  // and slot
  for (std::size_t slot = 0; slot < pool.nodes.size(); ++slot)
    room.emplace(nodes[static_cast<std::size_t>(pool.nodes[slot])].devices, slot);
  std::vector<std::size_t> order = pool.groups;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return groups[a].size > groups[b].size; });
  for (const std::size_t index : order) {
    const auto found = room.lower_bound({groups[index].size, 0});
    if (found == room.end()) return false;
    const auto [left, slot] = *found;
    room.erase(found);
    if (left > groups[index].size) room.emplace(left - groups[index].size, slot);
    groups[index].slot = slot;
  }
  return true;
}

/// Searches all ways to put groups on nodes, larger groups first, until one works or too many were tried: for nodes
/// that hold exactly as many ranks as there are, where neither rule above finds a solution.
class FitSearch {
 public:
  FitSearch(const Pool& pool, std::vector<Group>& groups, std::span<const PlacementNode> nodes)
      : groups_(groups), order_(pool.groups), steps_left_(2'000'000 / static_cast<int>(pool.nodes.size() + 1)) {
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return groups_[a].size > groups_[b].size; });
    for (const int node : pool.nodes) room_.push_back(nodes[static_cast<std::size_t>(node)].devices);
  }
  bool run() { return place(0); }

 private:
  bool place(std::size_t next) {
    if (next == order_.size()) return true;
    Group& group = groups_[order_[next]];
    std::set<int> tried;  // nodes with the same room are equivalent
    for (std::size_t slot = 0; slot < room_.size(); ++slot) {
      if (room_[slot] < group.size || !tried.insert(room_[slot]).second) continue;
      if (--steps_left_ < 0) return false;
      room_[slot] -= group.size;
      group.slot = slot;
      if (place(next + 1)) return true;
      room_[slot] += group.size;
    }
    return false;
  }

  std::vector<Group>& groups_;
  std::vector<std::size_t> order_;
  std::vector<int> room_;
  int steps_left_;
};

/// Chooses among nodes of one size by their switches.
class SwitchChoice {
 public:
  SwitchChoice(const Plan& plan, std::span<const PlacementNode> nodes)
      : nodes_(nodes), together_(plan.keep_together), leaves_(numbered_leaves(nodes)), choice_(leaves_.size()) {}

  void choose(Pool& pool, const std::vector<Group>& groups) {
    std::vector<int> sizes;
    std::map<std::pair<int, std::size_t>, std::vector<int>> nodes_at;  // by size and leaf, in natural order
    std::map<int, std::vector<std::size_t>> left;                      // by size and leaf
    for (const int node : pool.nodes) {
      const int size = nodes_[static_cast<std::size_t>(node)].devices;
      const std::size_t leaf = leaves_.at(nodes_[static_cast<std::size_t>(node)].leaf_switch);
      sizes.push_back(size);
      nodes_at[{size, leaf}].push_back(node);
      left[size].resize(leaves_.size());
      ++left[size][leaf];
    }
    std::map<int, LeafRoom> room;
    for (auto& [size, counts] : left) room.emplace(size, LeafRoom(std::move(counts)));
    std::vector<LeafChoice::Group> units;
    for (const std::size_t group : pool.groups)
      units.push_back({.unit = static_cast<std::size_t>(together_ == KeepTogether::pipelines ? groups[group].pipeline
                                                                                             : groups[group].stage),
                       .slot = groups[group].slot});
    pool.real.assign(pool.nodes.size(), -1);
    std::map<std::pair<int, std::size_t>, std::size_t> next;
    for (const auto& [slot, leaf] : choice_.choose(units, sizes, std::move(room))) {
      const std::pair key(sizes[slot], leaf);
      pool.real[slot] = nodes_at.at(key)[next[key]++];
    }
  }

 private:
  static std::map<std::string_view, std::size_t> numbered_leaves(std::span<const PlacementNode> nodes) {
    std::vector<std::string_view> names;
    for (const PlacementNode& node : nodes) names.push_back(node.leaf_switch);
    std::sort(names.begin(), names.end(), natural_less);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    std::map<std::string_view, std::size_t> leaves;
    for (const std::string_view name : names) leaves.emplace(name, leaves.size());
    return leaves;
  }

  std::span<const PlacementNode> nodes_;
  KeepTogether together_;
  std::map<std::string_view, std::size_t> leaves_;  // numbered in natural order
  LeafChoice choice_;
};

/// The pools in the order of kinds_of(), and which of them each group comes from.
struct Pools {
  std::vector<Pool> pools;
  std::vector<Group> groups;
  std::vector<std::size_t> pool_of_group;
};

Pools gather(const Plan& plan, std::span<const PlacementNode> nodes) {
  Pools all;
  std::map<Kind, std::size_t> index;
  for (const Kind& kind : kinds_of(plan)) {
    index.emplace(kind, all.pools.size());
    all.pools.push_back({kind, {}, {}, {}});
  }
  // Nodes that can serve several kinds come last in each pool.
  std::vector<int> order(nodes.size());
  std::vector<int> kinds(nodes.size(), 0);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const Pool& pool : all.pools) kinds[i] += serves(nodes[i], pool.kind) ? 1 : 0;
  std::sort(order.begin(), order.end(), [&](int x, int y) {
    const auto a = static_cast<std::size_t>(x);
    const auto b = static_cast<std::size_t>(y);
    if (nodes[a].devices != nodes[b].devices) return nodes[a].devices > nodes[b].devices;
    if (kinds[a] != kinds[b]) return kinds[a] < kinds[b];
    if (nodes[a].leaf_switch != nodes[b].leaf_switch) return natural_less(nodes[a].leaf_switch, nodes[b].leaf_switch);
    return natural_less(nodes[a].name, nodes[b].name);
  });
  for (Pool& pool : all.pools)
    for (const int node : order)
      if (serves(nodes[static_cast<std::size_t>(node)], pool.kind)) pool.nodes.push_back(node);
  int pipeline_index = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (int copy = 0; copy < pipeline.count; copy += plan.copies_together(), ++pipeline_index) {
      int stage_index = 0;
      for (const Stage& stage : pipeline.stages) {
        const std::size_t pool = index.at(Kind(stage.gpu, stage.zone));
        const std::vector<int>& there = all.pools[pool].nodes;  // largest first
        const int largest = there.empty() ? 0 : nodes[static_cast<std::size_t>(there.front())].devices;
        const StageParts parts = parts_of(plan, stage, largest);
        for (int part = 0; part < parts.parts; ++part) {
          all.pools[pool].groups.push_back(all.groups.size());
          all.pool_of_group.push_back(pool);
          all.groups.push_back({parts.ranks, pipeline_index, stage_index, 0});
        }
        ++stage_index;
      }
    }
  return all;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  std::string_view x = a;
  std::string_view y = b;
  while (!x.empty() && !y.empty()) {
    if (is_digit(x.front()) && is_digit(y.front())) {
      const std::string_view first = take_number(x);
      const std::string_view second = take_number(y);
      if (first.size() != second.size()) return first.size() < second.size();
      if (first != second) return first < second;
    } else if (x.front() != y.front()) {
      return x.front() < y.front();
    } else {
      x.remove_prefix(1);
      y.remove_prefix(1);
    }
  }
  if (x.empty() != y.empty()) return x.empty();
  return a < b;  // "n1" and "n01"
}

std::string name_of_kind(const std::pair<std::string, std::string>& kind) {
  return kind.second.empty() ? kind.first : fmt::format("{} in '{}'", kind.first, kind.second);
}

std::vector<std::pair<std::string, std::string>> kinds_of(const Plan& plan) {
  std::vector<Kind> kinds;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      Kind kind(stage.gpu, stage.zone);
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(std::move(kind));
    }
  return kinds;
}

Result<std::vector<RankPlace>> place_on_nodes(const Plan& plan, std::span<const PlacementNode> nodes) {
  Pools all = gather(plan, nodes);
  SwitchChoice switches(plan, nodes);
  std::vector<bool> taken(nodes.size(), false);
  for (Pool& pool : all.pools) {
    std::erase_if(pool.nodes, [&](int node) { return taken[static_cast<std::size_t>(node)]; });
    const auto [needed, there] = devices_of(pool, all.groups, nodes);
    if (needed > there) return too_few(pool, all.groups, nodes);
    if (!first_fit(pool, all.groups, nodes) && !best_fit(pool, all.groups, nodes) &&
        !FitSearch(pool, all.groups, nodes).run())
      return too_few(pool, all.groups, nodes);
    switches.choose(pool, all.groups);
    for (const int node : pool.real)
      if (node >= 0) taken[static_cast<std::size_t>(node)] = true;
  }
  std::vector<int> devices_used(nodes.size(), 0);
  std::vector<RankPlace> places(static_cast<std::size_t>(plan.ranks()));
  const std::vector<std::size_t> order = ranks_by_part(plan);
  std::size_t placed = 0;
  for (std::size_t i = 0; i < all.groups.size(); ++i) {
    const int node = all.pools[all.pool_of_group[i]].real[all.groups[i].slot];
    SAILOR_ASSERT(node >= 0, "a tensor-parallel group is on no node");
    for (int rank = 0; rank < all.groups[i].size; ++rank)
      places[order[placed++]] = {node, devices_used[static_cast<std::size_t>(node)]++};
    SAILOR_ASSERT(devices_used[static_cast<std::size_t>(node)] <= nodes[static_cast<std::size_t>(node)].devices,
                  "a node has more ranks than devices");
  }
  SAILOR_ASSERT(placed == places.size(), "the ranks of the plan are not placed once each");
  return places;
}

}  // namespace sailor
