#include "simulator/switches.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "plan/node_placement.hpp"

namespace sailor::simulator {

namespace {

constexpr std::size_t unknown = std::numeric_limits<std::size_t>::max();
constexpr std::size_t several = unknown - 1;

bool serves(const NodeGroup& group, std::string_view gpu, std::string_view zone) {
  return group.gpu == gpu &&
         (zone.empty() || group.zone == zone ||
          std::find(group.partitions.begin(), group.partitions.end(), zone) != group.partitions.end());
}

bool knows_leaves(const NodeGroup& group) {
  return !group.switches.empty() && std::none_of(group.switches.begin(), group.switches.end(),
                                                 [](const std::string& leaf) { return leaf.empty(); });
}

}  // namespace

SwitchMap::SwitchMap(const Cluster* cluster, const NodeSizes& sizes) : sizes_(sizes) {
  if (cluster == nullptr || !cluster->across_switches) return;
  std::vector<std::string> names;
  for (const NodeGroup& group : cluster->groups)
    if (knows_leaves(group)) names.insert(names.end(), group.switches.begin(), group.switches.end());
  std::sort(names.begin(), names.end(), natural_less);
  for (std::string& name : names) leaves_.try_emplace(std::move(name), leaves_.size());
  if (leaves_.size() > 1) cluster_ = cluster;
}

std::vector<std::size_t> SwitchMap::nodes_by_leaf(const Kind& kind) const {
  std::vector<std::size_t> counts(leaves_.size(), 0);
  for (const bool available : {true, false}) {  // unavailable ones only where there are no others, as node_sizes()
    bool any = false;
    for (const NodeGroup& group : cluster_->groups) {
      if (!serves(group, kind.first, kind.second) || (group.state != NodeState::unavailable) != available) continue;
      if (!knows_leaves(group)) return {};
      any = true;
      for (const std::string& leaf : group.switches) ++counts[leaves_.at(leaf)];
    }
    if (any) return counts;
  }
  return {};
}

Result<void> SwitchMap::place(const Plan& plan) {
  const auto nodes = nodes_of_stages(plan, sizes_);
  if (!nodes) return fail(nodes.error());
  // Groups by kind of device, in the plan's order
  std::vector<std::pair<Kind, std::vector<LeafChoice::Group>>> kinds;
  std::size_t next = 0;
  std::size_t copies = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (int copy = 0; copy < pipeline.count; ++copy, ++copies)
      for (std::size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
        const Kind kind(pipeline.stages[stage].gpu, pipeline.stages[stage].zone);
        auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& other) { return other.first == kind; });
        if (found == kinds.end()) found = kinds.insert(found, {kind, {}});
        found->second.push_back({.unit = plan.keep_together == KeepTogether::pipelines ? copies : stage,
                                 .slot = static_cast<std::size_t>((*nodes)[next++])});
      }
  const int last = nodes->empty() ? -1 : *std::max_element(nodes->begin(), nodes->end());
  const std::vector<int> sizes(static_cast<std::size_t>(last + 1), 1);  // nodes of a kind are taken as alike
  std::vector<std::size_t> leaf_of_node(sizes.size(), unknown);
  LeafChoice choice(leaves_.size());
  for (const auto& [kind, groups] : kinds) {
    std::vector<std::size_t> counts = nodes_by_leaf(kind);
    if (counts.empty()) continue;
    for (const LeafChoice::Taken& taken : choice.choose(groups, sizes, {{1, LeafRoom(std::move(counts))}}))
      leaf_of_node[taken.slot] = taken.leaf;
  }
  note(plan, *nodes, leaf_of_node);
  return {};
}

void SwitchMap::note(const Plan& plan, const std::vector<int>& nodes, const std::vector<std::size_t>& leaf_of_node) {
  crosses_next_.clear();
  leaf_.clear();
  std::size_t next = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    const std::size_t first = leaf_.size();
    const std::size_t stages = pipeline.stages.size();
    crosses_next_.resize(first + stages, false);
    for (int copy = 0; copy < pipeline.count; ++copy, next += stages) {
      const auto leaf = [&](std::size_t stage) {
        return leaf_of_node[static_cast<std::size_t>(nodes[next + stage % stages])];
      };
      for (std::size_t stage = 0; stage < stages; ++stage) {
        if (copy == 0) leaf_.push_back(leaf(stage));
        if (leaf(stage) != leaf_[first + stage]) leaf_[first + stage] = several;
        const bool known = leaf(stage) != unknown && leaf(stage + 1) != unknown;
        if (known && leaf(stage) != leaf(stage + 1)) crosses_next_[first + stage] = true;
      }
    }
  }
}

bool SwitchMap::spread(std::span<const std::size_t> stages) const {
  std::size_t leaf = unknown;
  for (const std::size_t stage : stages) {
    if (leaf_[stage] == unknown) continue;
    if (leaf_[stage] == several || (leaf != unknown && leaf_[stage] != leaf)) return true;
    leaf = leaf_[stage];
  }
  return false;
}

}  // namespace sailor::simulator
