// Which messages and reductions of a plan cross leaf switches (or blocks), where the cluster says that those are
// slower.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "plan/leaf_choice.hpp"
#include "plan/placement.hpp"

namespace sailor::simulator {

/// Takes a plan's nodes from the leaves of the cluster as placement does (plan/leaf_choice.hpp). Stages are numbered
/// over the entries of Plan::pipelines, copies not counted.
class SwitchMap {
 public:
  /// `cluster` may be null. Both must outlive this.
  SwitchMap(const Cluster* cluster, const NodeSizes& sizes);

  /// False: nothing crosses a leaf switch, or it does not matter.
  [[nodiscard]] bool matters() const { return cluster_ != nullptr; }
  /// Errors as nodes_of_stages().
  Result<void> place(const Plan& plan);

  /// Of the plan placed last: a copy of the stage is at another leaf than the next stage of its pipeline; of the last
  /// stage: than the first.
  [[nodiscard]] bool leaves_switch(std::size_t stage) const { return crosses_next_[stage]; }
  /// Copies of these stages are at several leaves.
  [[nodiscard]] bool spread(std::span<const std::size_t> stages) const;

 private:
  using Kind = std::pair<std::string_view, std::string_view>;  // GPU type and zone
  /// Nodes of a kind by leaf; empty where the leaf of some is not known.
  [[nodiscard]] std::vector<std::size_t> nodes_by_leaf(const Kind& kind) const;
  void note(const Plan& plan, const std::vector<int>& nodes, const std::vector<std::size_t>& leaf_of_node);

  const Cluster* cluster_ = nullptr;
  const NodeSizes& sizes_;
  std::map<std::string, std::size_t> leaves_;  // numbered in natural order
  std::vector<bool> crosses_next_;             // by stage
  std::vector<std::size_t> leaf_;              // by stage: of all its copies, `several`, or `unknown`
};

}  // namespace sailor::simulator
