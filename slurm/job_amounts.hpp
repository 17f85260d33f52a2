// CPUs, host memory and GPUs that Slurm allocates to a component of a job, and counts against limits: as slurmctld
// 22.05 to 26.05 does it, for jobs that sailor-submit writes (slurm/sbatch.hpp). No Slurm needed here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "slurm/job_layout.hpp"
#include "slurm/limits.hpp"
#include "slurm/sbatch_request.hpp"

namespace sailor::slurm {

/// Resources of the nodes that a component gets.
struct NodeSize {
  int cpus = 0;
  int gpus = 0;          ///< 0 on CPU nodes
  std::string gpu_type;  ///< Slurm's; empty: none
  Bytes memory{};        ///< 0: not known
};

/// Min of each resource over the nodes with a device in a partition, or in several, "a,b" (empty: in the cluster).
NodeSize node_size(const Cluster& cluster, const std::string& partition, const GpuType& device);

/// GRES type of a device in a partition, or in several, "a,b", if a job has to request it, because there are nodes of
/// other kinds, too; else empty.
std::string gres_type_to_ask_for(const Cluster& cluster, const std::string& partition, const std::string& device);

/// Resources of a node that a component gets.
struct NodeGrant {
  int cpus = 0;
  Bytes memory{};  ///< 0: not known
};

/// Resources that Slurm allocates on each (full) node. `partition` may be null: not known. Errors: invalid_input, if
/// Slurm refuses the job for its memory.
Result<NodeGrant> grant_of(const NodeRequest& request, const JobComponent& component, bool whole_nodes,
                           const NodeSize& node, const Partition* partition);

/// Amounts of the whole component that count against limits. `billing_takes_largest`: PriorityFlags=MAX_TRES.
Tres amounts_of(const NodeRequest& request, const JobComponent& component, bool whole_nodes, const NodeSize& node,
                const NodeGrant& grant, const Partition* partition, bool billing_takes_largest);

/// Slurm's billing of an amount: `weights` as TRESBillingWeights has them, "CPU=1.0,Mem=0.25G,GRES/gpu=2"; without
/// weights, the number of CPUs.
std::int64_t billing_of(const Tres& amounts, std::string_view weights, bool takes_largest);

/// Sets the host memory that a component requests of its nodes, unless the user has set it: the site's value, else the
/// predicted need of the plan, else all memory if the job has whole nodes, else the partition's default. `site_memory`:
/// std::nullopt if the site sets none. `peak`: predicted for the rank that needs most; std::nullopt: not known.
void choose_memory(NodeRequest& request, std::optional<Bytes> site_memory, std::optional<Bytes> peak,
                   int ranks_per_node, bool whole_nodes, const NodeSize& node, const Partition* partition);

/// Estimated host memory of a rank; `peak` is the predicted peak memory of its device. On GPUs: `peak`, since
/// checkpoints go through a copy in host memory, plus a constant for the process and its libraries. On CPUs: `peak`
/// times a safety factor, plus a constant.
Bytes host_memory_of_rank(DeviceKind kind, Bytes peak);

}  // namespace sailor::slurm
