// What plans may be made of: pools with their devices, and the values of every choice, limits and pins applied.
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
  std::vector<NodeSize> nodes;  ///< largest first
  UsdPerHour price{};           ///< of one device
  Bytes memory{};               ///< of one device that a plan may fill; infinite when not known
  Bytes base{};                 ///< of that, what a process takes before its first tensor
  std::vector<int> tensor_parallel;
  std::size_t type = 0;  ///< index into SearchSpace::types

  [[nodiscard]] int devices() const;
  /// Tensor-parallel groups of this size that its nodes hold.
  [[nodiscard]] int groups(int tensor_parallel) const;
  [[nodiscard]] int largest_node() const { return nodes.empty() ? 0 : nodes.front().devices; }
};

struct SearchSpace {
  std::vector<NodeGroup> nodes;  ///< whose devices the pools have
  std::vector<DevicePool> pools;
  /// Where the model may be divided: layer i of the search is made of the model's layers [cuts[i], cuts[i + 1]). All of
  /// them, but in the full space of models with very many blocks, which are taken several at a time.
  std::vector<int> cuts;
  std::vector<std::string> types;    ///< GPU types of the pools
  std::vector<int> micro_batches;    ///< ascending
  std::vector<Recompute> recompute;  ///< choices for a stage, quickest first
  std::vector<OptimizerSharding> sharding;
  std::vector<Schedule> schedules;
  std::optional<int> max_nodes;  ///< of the partitions and the request
  std::optional<int> max_gpus;
  std::vector<std::string> left_out;  ///< GPU types that cannot be planned for, and why

  /// Of more layers, a model's blocks are taken several at a time.
  static constexpr int max_layers = 256;
  [[nodiscard]] int layers() const { return static_cast<int>(cuts.size()) - 1; }
  [[nodiscard]] int devices() const;
  /// Micro-batch sizes that were measured (or may be estimated) on a GPU type.
  [[nodiscard]] bool allows(std::size_t type, int tensor_parallel, int micro_batch) const;
  std::vector<std::vector<std::pair<int, std::vector<int>>>> micro_batches_of;  ///< by type: {tensor_parallel, sizes}
};

/// Nodes that plans may take.
struct ConsideredNodes {
  std::vector<NodeGroup> groups;        ///< their `count` is what excluded nodes leave
  std::vector<NodeGroup> without_gpus;  ///< left out, as `groups` have some
};
/// Those of the partitions that are available and that pins and exclusions leave. Nodes without GPUs beside nodes that
/// have some are left out, unless pins name them, or the request a partition that has no others.
ConsideredNodes considered_nodes(const Request& request, const Cluster& cluster, const GpuCatalogue& gpus);

/// `env.costs` must be given. Errors: not_found (partition, no measurement for any GPU), unavailable (partition down),
/// infeasible (no node is up, pins or limits leave nothing), usage (pins that contradict job, framework or cluster).
Result<SearchSpace> make_search_space(const Request& request, const simulator::Environment& env);

/// The request's partitions. Errors: not_found; unavailable (one is down, unless the request is for all that exists).
Result<std::vector<const Partition*>> partitions_of(const Request& request, const Cluster& cluster);

/// How many nodes jobs may have in all of these partitions, a component of the job in each; nothing when one of them
/// has no limit, or there are none.
std::optional<int> max_nodes_of(const std::vector<const Partition*>& partitions);

/// Errors: usage (a pinned zone without nodes), invalid_input (an excluded node that is not there).
Result<void> check_places(const Request& request, const Cluster& cluster);

/// How many nodes a plan takes when its groups go, in the order of the plan, to the first node of their place that has
/// room (plan/placement.hpp); nothing when they do not fit into what there is.
std::optional<int> nodes_needed(const Plan& plan, const SearchSpace& space);

}  // namespace sailor::planner
