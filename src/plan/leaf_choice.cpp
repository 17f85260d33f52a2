#include "plan/leaf_choice.hpp"

#include <algorithm>
#include <set>

namespace sailor {

std::vector<LeafRoom::Part> LeafRoom::take(std::size_t count, std::optional<std::size_t>& near) {
  std::vector<Part> parts;
  while (count > 0) {
    const std::optional<std::size_t> leaf = choose(count, near);
    if (!leaf) break;
    const std::size_t nodes = std::min(count, left_[*leaf]);
    left_[*leaf] -= nodes;
    count -= nodes;
    near = leaf;
    parts.push_back({*leaf, nodes});
  }
  return parts;
}

std::optional<std::size_t> LeafRoom::choose(std::size_t count, std::optional<std::size_t> near) const {
  if (near && at(*near) >= count) return near;
  std::optional<std::size_t> chosen;
  for (std::size_t leaf = 0; leaf < left_.size(); ++leaf) {
    if (left_[leaf] == 0) continue;
    if (!chosen || (left_[*chosen] < count && left_[leaf] > left_[*chosen])) chosen = leaf;
  }
  return chosen;
}

std::vector<LeafChoice::Taken> LeafChoice::choose(std::span<const Group> groups, const std::vector<int>& sizes,
                                                  std::map<int, LeafRoom> room) {
  find_home(groups, sizes, room);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < groups.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return groups[a].unit < groups[b].unit; });
  std::vector<bool> used(sizes.size(), false);
  std::vector<Taken> all;
  for (std::size_t i = 0; i < order.size();) {
    const std::size_t unit = groups[order[i]].unit;
    if (near_.size() <= unit) near_.resize(unit + 1);
    if (!near_[unit]) near_[unit] = home_;
    std::map<int, std::vector<std::size_t>> fresh;  // slots by size
    for (; i < order.size() && groups[order[i]].unit == unit; ++i) {
      const std::size_t slot = groups[order[i]].slot;
      if (used[slot]) continue;
      used[slot] = true;
      fresh[sizes[slot]].push_back(slot);
    }
    for (const auto& [size, slots] : fresh) {
      auto slot = slots.begin();
      for (const LeafRoom::Part& part : room[size].take(slots.size(), near_[unit]))
        for (std::size_t k = 0; k < part.nodes; ++k) all.push_back({*slot++, part.leaf});
    }
  }
  return all;
}

/// The leaf that has room for all groups: that of the previous kinds, or the one with the fewest nodes.
void LeafChoice::find_home(std::span<const Group> groups, const std::vector<int>& sizes,
                           const std::map<int, LeafRoom>& room) {
  std::set<std::size_t> slots;
  for (const Group& group : groups) slots.insert(group.slot);
  std::map<int, std::size_t> needed;
  for (const std::size_t slot : slots) ++needed[sizes[slot]];
  std::optional<std::size_t> home;
  std::size_t fewest = 0;
  for (std::size_t leaf = 0; leaf < leaves_; ++leaf) {
    const bool has_room = std::all_of(needed.begin(), needed.end(), [&, leaf](const auto& size_and_count) {
      const auto found = room.find(size_and_count.first);
      return found != room.end() && found->second.at(leaf) >= size_and_count.second;
    });
    if (!has_room) continue;
    if (leaf == home_) return;
    std::size_t there = 0;
    for (const auto& [size, nodes] : room) there += nodes.at(leaf);
    if (home && there >= fewest) continue;
    home = leaf;
    fewest = there;
  }
  home_ = home;
}

}  // namespace sailor
