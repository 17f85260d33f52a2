// What Slurm gives a component of a job, and counts against limits: CPUs, host memory, GPUs. As slurmctld 22.05
// to 26.05 does it, for jobs as sailor-submit writes them (slurm/sbatch.hpp). No Slurm needed here.
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

/// What the nodes have that a component gets.
struct NodeSize {
  int cpus = 0;
  int gpus = 0;          ///< 0 on CPU nodes
  std::string gpu_type;  ///< Slurm's; empty: none
  Bytes memory{};        ///< 0: not known
};

/// The smallest of each that nodes with a device have in a partition, or in several, "a,b" (empty: on the cluster).
NodeSize node_size(const Cluster& cluster, const std::string& partition, const GpuType& device);

/// Slurm's name of the GPUs of a partition, or of several, "a,b", if a job has to say which it wants: there are nodes
/// of other kinds, too.
std::string gres_type_to_ask_for(const Cluster& cluster, const std::string& partition, const std::string& device);

/// What a component gets of a node.
struct NodeGrant {
  int cpus = 0;
  Bytes memory{};  ///< 0: not known
};

/// What Slurm gives on each (full) node. `partition` may be null: not known. Errors: invalid_input, where Slurm refuses
/// the job for its memory.
Result<NodeGrant> grant_of(const NodeRequest& request, const JobComponent& component, bool whole_nodes,
                           const NodeSize& node, const Partition* partition);

/// What counts against limits, of the whole component. `billing_takes_largest`: PriorityFlags=MAX_TRES.
Tres amounts_of(const NodeRequest& request, const JobComponent& component, bool whole_nodes, const NodeSize& node,
                const NodeGrant& grant, const Partition* partition, bool billing_takes_largest);

/// Slurm's billing of an amount: `weights` as TRESBillingWeights has them, "CPU=1.0,Mem=0.25G,GRES/gpu=2"; without any
/// its CPUs.
std::int64_t billing_of(const Tres& amounts, std::string_view weights, bool takes_largest);

/// Decides how much host memory a component's nodes are asked for, where the user has not: what the site says, else
/// what the plan is predicted to need, else all where the job has whole nodes, else the partition's default.
/// `site_memory`: none where the site says nothing. `peak`: predicted of the rank that takes most; none: not known.
void choose_memory(NodeRequest& request, std::optional<Bytes> site_memory, std::optional<Bytes> peak,
                   int ranks_per_node, bool whole_nodes, const NodeSize& node, const Partition* partition);

/// Host memory that a rank is reckoned to need: on GPUs a copy of what the device holds, which a checkpoint goes
/// through, and what libraries take.
Bytes host_memory_of_rank(DeviceKind kind, Bytes peak);

}  // namespace sailor::slurm
