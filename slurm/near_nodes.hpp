// What a job asks for so that its nodes are near each other: leaf switches of a tree, segments of blocks.
#pragma once

#include <optional>
#include <string>

#include "cluster/cluster.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

struct NearNodes {
  std::string switches;  ///< "1@05:00" of sbatch --switches: the most, and how long to wait for them; empty: no matter
  int segment = 0;       ///< nodes that --segment keeps in one block; 0: no matter
};

/// The nodes of one kind that a job gets.
struct NodesOfJob {
  std::string partition;     ///< or several, "a,b"; empty: any
  std::string device;        ///< in the catalogue
  int devices_per_node = 0;  ///< the least
  int nodes = 0;
  int pipelines = 1;  ///< of the plan
};

/// Fewest switches, where fewer can hold the job than its partition has: the job waits for them a tenth of its time,
/// and five minutes at most. Of blocks that are too small for the job the whole pipelines that each can hold (Slurm
/// 24.05 has --segment). Nothing where the cluster's topology is not known.
NearNodes near_nodes(const Cluster& cluster, const ControllerFacts& facts, const NodesOfJob& job,
                     std::optional<Seconds> time_limit);

}  // namespace sailor::slurm
