// The nodes that a job asks for: the partition for every kind of device of a plan, and whether it has enough of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/submit/submission.hpp"
#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::apps {

/// Nodes for one kind of device of a plan, as far as the cluster is known.
struct Nodes {
  std::string partition;                              ///< or several, "a,b", of which Slurm takes one
  std::vector<std::pair<std::string, int>> counts{};  ///< partitions with their usable nodes
  std::string zone;                                   ///< zone of the cluster that the nodes are in; empty: any
  int count = 0;                                      ///< max over the partitions
  int devices_per_node = 0;                           ///< min over the nodes
  int cpus_per_device = 0;                            ///< min over the nodes
  std::string gres_type;                              ///< empty: any, or not known
  bool has_gres_type = false;                         ///< Slurm has a type for these GPUs
};

/// The partitions that a job may use.
struct PartitionChoice {
  std::vector<std::string> names;  ///< empty: Slurm's default
  bool by_user = false;            ///< given by --partition, not by what the plan was made for
};

/// Finds nodes for each kind of the plan: in the partition that its zone names, else in those of the choice that have
/// such nodes in the zone. Errors: not_found (a zone that is neither a partition nor a zone of the cluster, unless the
/// user gives the partition; a partition without such nodes), unavailable (a partition that is not up), invalid_input
/// (a zone that is none of the user's partitions).
Result<std::vector<Nodes>> find_nodes(const Cluster& cluster, const PartitionChoice& choice,
                                      const Submission& submission);

/// Finds the partitions only, if the user gives what their nodes have. `cluster` may be null: not known. Errors for the
/// zone: as above.
Result<std::string> find_partition(const Cluster* cluster, const PartitionChoice& choice, const Submission& submission);

/// Refuses jobs that Slurm might accept and then never start. `nodes` are by kind. Errors: unavailable (more nodes than
/// there are, or than a job may have), invalid_input (more time).
Result<void> check_limits(const Cluster& cluster, const std::vector<Nodes>& nodes, const Submission& submission);

}  // namespace sailor::apps
