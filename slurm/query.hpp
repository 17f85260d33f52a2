// The call into libslurm. Only the child process of read_cluster() makes it: it may hang, and it may exit().
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

struct ControllerAnswer {
  std::string cluster_name;
  std::vector<Partition> partitions;
  std::vector<NodeRecord> nodes;
};

/// True if this build has libslurm.
bool has_libslurm();

/// Asks slurmctld. `configuration` is a path, or empty for libslurm's own places. Errors: unavailable when
/// it does not answer, failure when it refuses.
Result<ControllerAnswer> query_controller(const std::filesystem::path& configuration);

}  // namespace sailor::slurm
