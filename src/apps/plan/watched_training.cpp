#include "apps/plan/watched_training.hpp"

#include <set>
#include <string>
#include <utility>

#include "apps/simulate/plan_input.hpp"
#include "cluster/node_filter.hpp"

namespace sailor::apps {

Result<void> WatchedTraining::look() {
  if (!is_there()) return {};
  auto state = elastic::read_journal_state(folder_);
  if (!state) return fail(state.error());
  state_ = *std::move(state);
  nodes_ = std::set<std::string>(state_.nodes.begin(), state_.nodes.end());
  return {};
}

void WatchedTraining::free_own_nodes(Cluster& cluster) const {
  if (nodes_.empty()) return;
  Cluster ours = with_nodes(cluster, [&](const std::string& node) { return takes_part(node); });
  cluster = with_nodes(cluster, [&](const std::string& node) { return !takes_part(node); });
  for (NodeGroup& group : ours.groups) {
    if (group.nodes.empty()) continue;  // hypothetical nodes, which stay
    if (group.state == NodeState::allocated || group.state == NodeState::mixed) group.state = NodeState::idle;
    cluster.groups.push_back(std::move(group));
  }
}

Result<WatchedTraining::Left> WatchedTraining::leave_nodes(const NodeOffers& offers, const NodeOffers& up) {
  Left left;
  for (const std::string& node : nodes_)
    if (!offers.contains(node) && !left_.contains(node)) left.nodes.push_back(node);
  if (left.nodes.size() == nodes_.size()) left.nodes.clear();
  for (const std::string& node : left_)
    if (up.contains(node)) left.taken_back.push_back(node);
  if (left.nodes.empty() && left.taken_back.empty()) return left;
  SAILOR_CHECK(elastic::exclude_nodes(folder_, left.nodes, left.taken_back));
  left_.insert(left.nodes.begin(), left.nodes.end());
  for (const std::string& node : left.taken_back) left_.erase(node);
  return left;
}

bool WatchedTraining::can_run(const Plan& plan, const Cluster& cluster) const {
  const Cluster own =
      with_nodes(cluster, [&](const std::string& node) { return takes_part(node) && !left_.contains(node); });
  return !what_is_missing(plan, own, {}).has_value();
}

}  // namespace sailor::apps
