// Job options that keep the nodes of a job near each other: leaf switches of a tree, segments of blocks.
#pragma once

#include <optional>
#include <string>

#include "cluster/cluster.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

struct NearNodes {
  std::string switches;  ///< "1@05:00" for sbatch --switches: max number and max wait; empty: any
  int segment = 0;       ///< nodes that --segment keeps in one block; 0: not set
};

/// The nodes of one kind that a job gets.
struct NodesOfJob {
  std::string partition;     ///< or several, "a,b"; empty: any
  std::string device;        ///< name in the catalogue
  int devices_per_node = 0;  ///< min
  int nodes = 0;
  int pipelines = 1;  ///< number of pipelines of the plan
};

/// In a tree: the min number of leaf switches that can hold the job, if that is fewer than its partition has; the job
/// waits for them a tenth of its time limit, at most five minutes. With blocks (Slurm 24.05 has --segment): the largest
/// number of nodes that fits into every block, divides the job's nodes and holds whole pipelines. Empty if the topology
/// is not known, or has only one switch or block.
NearNodes near_nodes(const Cluster& cluster, const ControllerFacts& facts, const NodesOfJob& job,
                     std::optional<Seconds> time_limit);

}  // namespace sailor::slurm
