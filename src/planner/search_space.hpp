// The search space: pools with their devices, and the values of every choice, with limits and pins applied.
//
// Two spaces (Space):
// - paper: what the planner of Sailor (SOSP'25, section 4) searches. All pipelines have the same number of stages, with
//   the layers divided evenly by number (the last stages take one more), the same micro-batch size, and micro-batch
//   counts that differ by at most one. A stage's replicas may be on different GPU types and in different zones; those
//   of one type have one tensor-parallel degree. 1F1B, no recomputation, no sharding of the optimizer.
// - full: pipelines may differ in everything; schedule and sharding are chosen for the plan, recomputation for each
//   stage.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/request.hpp"
#include "planner/stage_choice.hpp"
#include "simulator/simulator.hpp"

namespace sailor::planner {

/// Nodes of one size.
struct NodeSize {
  int devices = 0;  ///< per node
  int nodes = 0;
};

/// The devices of one GPU type in one zone.
struct DevicePool {
  std::string gpu;
  std::string zone;
  std::vector<std::string> merged_zones{};  ///< in whose place `zone` stands (bound/merged_zones.hpp); empty: itself
  std::vector<NodeSize> nodes;              ///< largest first
  UsdPerHour price{};                       ///< of one device
  Bytes memory{};                           ///< of one device, usable by a plan; infinite when not known
  Bytes base{};                             ///< part of `memory` that a process takes before its first tensor
  std::vector<int> tensor_parallel;
  std::size_t type = 0;  ///< index into SearchSpace::types

  [[nodiscard]] int devices() const;
  /// Number of tensor-parallel groups of this size that its nodes hold.
  [[nodiscard]] int groups(int tensor_parallel) const;
  [[nodiscard]] int largest_node() const { return nodes.empty() ? 0 : nodes.front().devices; }
};

struct SearchSpace {
  std::vector<NodeGroup> nodes;  ///< the nodes whose devices are in the pools
  std::vector<DevicePool> pools;
  /// Where the model may be divided: layer i of the search consists of the model's layers [cuts[i], cuts[i + 1]). That
  /// is one layer each, except in the full space of models with very many blocks: there, several blocks are one layer
  /// of the search.
  std::vector<int> cuts;
  std::vector<std::string> types;    ///< GPU types of the pools
  std::vector<int> micro_batches;    ///< ascending
  std::vector<StageChoice> choices;  ///< of a stage, quickest first
  std::vector<OptimizerSharding> sharding;
  std::vector<Schedule> schedules;
  std::optional<int> max_nodes;  ///< of the partitions and the request
  std::optional<int> max_gpus;
  /// Degrees of every plan of the space. With context_parallel > 1 the space counts in larger units: a "device" (in
  /// pools and max_gpus, rounded down) is a group of context_parallel devices that holds one tensor-parallel slice of a
  /// stage, and a "node" (in pools and max_nodes, rounded down) is joined_nodes nodes.
  int context_parallel = 1;
  int expert_parallel = 1;
  int joined_nodes = 1;
  int sharding_degree = 0;  ///< Plan::sharding_degree of every plan
  [[nodiscard]] bool is_divided() const { return context_parallel > 1 || expert_parallel > 1; }
  /// Whether replicas of a layer exchange in other ways than over all of them at once.
  [[nodiscard]] bool is_grouped() const { return is_divided() || sharding_degree > 0; }
  std::vector<std::string> left_out;  ///< GPU types that cannot be planned for, and why

  /// Max layers of the search: in models with more, several blocks are one layer of the search.
  static constexpr int max_layers = 256;
  [[nodiscard]] int layers() const { return static_cast<int>(cuts.size()) - 1; }
  [[nodiscard]] int devices() const;
  /// The zones of the pools, in the order of the pools, each once.
  [[nodiscard]] std::vector<std::string> zones() const;
  /// Whether a micro-batch size was measured (or may be estimated) on a GPU type.
  [[nodiscard]] bool allows(std::size_t type, int tensor_parallel, int micro_batch) const;
  std::vector<std::vector<std::pair<int, std::vector<int>>>> micro_batches_of;  ///< by type: {tensor_parallel, sizes}
};

/// `env.costs` must be given. Errors: not_found (partition, no measurement for any GPU), unavailable (partition down),
/// infeasible (no node is up, pins or limits leave nothing), usage (pins that contradict job, framework or cluster).
Result<SearchSpace> make_search_space(const Request& request, const simulator::Environment& env);

/// Number of nodes of a plan when its groups go, in the order of the plan, to the first node of their type and zone
/// that has room (plan/placement.hpp); std::nullopt if they do not fit.
std::optional<int> nodes_needed(const Plan& plan, const SearchSpace& space);

}  // namespace sailor::planner
