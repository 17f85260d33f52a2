// Which nodes a job asks for: the partition for every kind of device of a plan, and whether it has so many.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/submit/submission.hpp"
#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::apps {

/// Nodes for one kind of device of a plan, as far as the cluster says.
struct Nodes {
  std::string partition;                              ///< or several, "a,b", of which Slurm takes one
  std::vector<std::pair<std::string, int>> counts{};  ///< usable nodes of each of them
  std::string zone;                                   ///< of the cluster, that they are in; empty: any
  int count = 0;                                      ///< of the partition that has most
  int devices_per_node = 0;                           ///< the fewest
  int cpus_per_device = 0;                            ///< the fewest
  std::string gres_type;                              ///< empty: no matter, or not known
  bool has_gres_type = false;                         ///< Slurm has a type for these GPUs
};

/// The partitions that a job may use.
struct PartitionChoice {
  std::vector<std::string> names;  ///< empty: Slurm's default
  bool by_user = false;            ///< --partition, and not what the plan was made for
};

/// For each kind of the plan: in the partition that its zone names, else in those of the choice that have such nodes in
/// the zone. Errors: not_found (a zone that is neither a partition nor a zone of the cluster, unless the user says
/// the partition; a partition without such nodes), unavailable (a partition that is not up), invalid_input (a zone that
/// is none of the user's partitions).
Result<std::vector<Nodes>> find_nodes(const Cluster& cluster, const PartitionChoice& choice,
                                      const Submission& submission);

/// The partitions alone, where the user says what its nodes have. `cluster` may be null: not known. Errors: as above
/// for the zone.
Result<std::string> find_partition(const Cluster* cluster, const PartitionChoice& choice, const Submission& submission);

/// Refuses what Slurm might accept and then never start. `nodes` by kind. Errors: unavailable (more nodes than there
/// are, or than a job may have), invalid_input (more time).
Result<void> check_limits(const Cluster& cluster, const std::vector<Nodes>& nodes, const Submission& submission);

}  // namespace sailor::apps
