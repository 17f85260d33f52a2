// Assigns the ranks of a plan to the nodes that exist.
//
// Tensor-parallel groups stay on one node; several may share one. Where switches are known, all nodes are taken from
// one switch if it has room for them; else those of a pipeline, or of the replicas of a stage (Plan::keep_together).
// The result does not depend on the order of the nodes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"

namespace sailor {

/// A node that ranks can go to.
struct PlacementNode {
  std::string name;                  ///< unique
  std::string gpu;                   ///< name in the GPU catalogue
  std::vector<std::string> zones{};  ///< zones and partitions it belongs to: the names that Stage::zone may use
  int devices = 0;                   ///< number available to ranks
  std::string leaf_switch{};         ///< empty: not known
};

/// The place of a rank.
struct RankPlace {
  int node = 0;    ///< index into the nodes
  int device = 0;  ///< index within the node; the ranks of a node have 0, 1, ... in the order of the plan
  bool operator==(const RankPlace&) const = default;
};

/// Places by rank. Errors: unavailable, with the number and size of the missing nodes.
Result<std::vector<RankPlace>> place_on_nodes(const Plan& plan, std::span<const PlacementNode> nodes);

/// The kinds of device in a plan, GPU type and zone, in the order in which its ranks first use them.
std::vector<std::pair<std::string, std::string>> kinds_of(const Plan& plan);

/// "A100-40 in 'east'": a kind of device in messages.
std::string name_of_kind(const std::pair<std::string, std::string>& kind);

/// Natural order of names: numbers compare by value ("node9" before "node10").
bool natural_less(std::string_view a, std::string_view b);

}  // namespace sailor
