// The cluster as sailor-plan uses it: read from Slurm or a file, with its site file, cut down to what may be planned
// for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/plan/plan_options.hpp"
#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"
#include "planner/request.hpp"
#include "slurm/node_records.hpp"
#include "slurm/site.hpp"

namespace sailor::apps {

struct ClusterInput {
  Cluster cluster;  ///< the whole cluster, or the nodes of a reservation
  slurm::Site site;
  bool live = false;  ///< read from Slurm: `facts` are valid, and it can be asked more
  slurm::ControllerFacts facts;
  std::vector<std::string> left_out;  ///< unknown facts, and nodes of the partitions that no plan can use
};

/// --profile; if it is not given, `published` when --gpus describes a cluster, else "".
std::string planned_profile(const PlanOptions& options);

/// Where the plans of a command come from: its options, and what they were made from.
PlanOrigin origin_of(const PlanOptions& options, const Cluster& cluster, const std::string& profile_hash);

/// Reads the cluster by --cluster, --partition or --gpus NxM:TYPE; std::nullopt if none is given. With --reservation
/// only its nodes. Does not check that the partitions exist and are up. GPUs of unknown type are those of --gpu-type,
/// else of `plan` (may be null).
Result<std::optional<ClusterInput>> read_cluster_input(const PlanOptions& options, const Environment& environment,
                                                       const GpuCatalogue& gpus, const Plan* plan = nullptr);

/// Refuses partitions of a live cluster that do not exist, or that are not up unless the plan is for all that exists,
/// and warns of what was left out and of partitions that are closed to this user.
Result<void> check_live_partitions(const ClusterInput& input, const PlanOptions& options);

/// The nodes that plans are searched on, as if they were free: those of the chosen partitions and availability. If none
/// are left, the whole cluster, so that the planner reports it.
Cluster searched_part(const Cluster& cluster, const planner::Request& request);

/// Keeps only the excluded nodes that are in `part`: others would not be used anyway.
void keep_excluded_nodes_of(const Cluster& part, planner::Request& request);

/// The part that plans are searched on, without the excluded nodes.
Cluster without_excluded(const Cluster& part, const planner::Request& request);

}  // namespace sailor::apps
