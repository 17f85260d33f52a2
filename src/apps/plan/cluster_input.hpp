// The cluster as sailor-plan uses it: read from Slurm or a file, with its site file, cut down to what may be planned
// for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "planner/request.hpp"
#include "slurm/node_records.hpp"
#include "slurm/site.hpp"

namespace sailor::apps {

struct ClusterInput {
  Cluster cluster;  ///< all of it, or what a reservation has of it
  slurm::Site site;
  bool live = false;  ///< read from Slurm, so that `facts` count and it can be asked more
  slurm::ControllerFacts facts;
  std::vector<std::string> left_out;  ///< what is not known, and nodes of the partitions that no plan can use
};

/// The GPU catalogue, where --gpus may also say which GPUs there are (gpu_counts.hpp).
std::string planned_catalogue(const Options& options, const Environment& environment);
/// --profile; with such a --gpus `published` unless it is given; else "".
std::string planned_profile(const Options& options);

/// By --cluster, --partition or --gpus NxM:TYPE; nothing when none is given. With --reservation only its nodes. Whether the
/// partitions are there and up is not looked at here. GPUs of no known type are those of --gpu-type, else of `plan`
/// (may be null).
Result<std::optional<ClusterInput>> read_cluster_input(const Options& options, const Environment& environment,
                                                       const GpuCatalogue& gpus, const Plan* plan = nullptr);

/// Refuses partitions of a live cluster that are not there, or not up unless the plan is for all that exists, and warns
/// of what was left out and of partitions that are closed to this user.
Result<void> check_live_partitions(const ClusterInput& input, const Options& options);

/// The nodes that plans are searched on, as if they were free: the part that partitions and availability leave. Where
/// they leave nothing, the whole cluster, for the planner to say so.
Cluster searched_part(const Cluster& cluster, const planner::Request& request);

/// Nodes that would not be used anyway need not be excluded.
void keep_excluded_nodes_of(const Cluster& part, planner::Request& request);

/// The nodes that a plan may have, of the part that plans are searched on.
Cluster without_excluded(const Cluster& part, const planner::Request& request);

}  // namespace sailor::apps
