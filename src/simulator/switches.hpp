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

/// Assigns a plan's nodes to leaf switches as placement does (plan/leaf_choice.hpp). Stages are numbered over the
/// entries of Plan::pipelines, not counting copies.
class SwitchMap {
 public:
  /// `cluster` may be null. Both must outlive this.
  SwitchMap(const Cluster* cluster, const NodeSizes& sizes);

  /// False if nothing crosses a leaf switch, or it does not matter.
  [[nodiscard]] bool matters() const { return cluster_ != nullptr; }
  /// Errors as nodes_of_stages().
  Result<void> place(const Plan& plan);

  /// Whether, in the plan placed last, a copy of the stage is at another leaf than the next stage of its pipeline (for
  /// the last stage: than the first).
  [[nodiscard]] bool leaves_switch(std::size_t stage) const { return crosses_next_[stage]; }
  /// Whether copies of these stages are at several leaves.
  [[nodiscard]] bool spread(std::span<const std::size_t> stages) const;

 private:
  using Kind = std::pair<std::string_view, std::string_view>;  // GPU type and zone
  /// Number of nodes of a kind by leaf; empty if the leaf of some is not known.
  [[nodiscard]] std::vector<std::size_t> nodes_by_leaf(const Kind& kind) const;
  void note(const Plan& plan, const std::vector<int>& nodes, const std::vector<std::size_t>& leaf_of_node);

  const Cluster* cluster_ = nullptr;
  const NodeSizes& sizes_;
  std::map<std::string, std::size_t> leaves_;  // numbered in natural order
  std::vector<bool> crosses_next_;             // by stage
  std::vector<std::size_t> leaf_;              // by stage: the leaf of all its copies, `several`, or `unknown`
};

}  // namespace sailor::simulator
