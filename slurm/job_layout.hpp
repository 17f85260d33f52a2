// The nodes and tasks that a plan's ranks become in a job.
#pragma once

#include <cstddef>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "slurm/sbatch_request.hpp"

namespace sailor::slurm {

/// Alike nodes of a job: a component of a heterogeneous one, if there are several.
struct JobComponent {
  std::size_t kind = 0;  ///< of kinds_of()
  int nodes = 0;
  int tasks_per_node = 0;
  bool packed = false;  ///< the last node has fewer; otherwise all have tasks_per_node
  int tasks = 0;
  bool operator==(const JobComponent&) const = default;
};

/// What a plan's ranks need of nodes with so many devices, and whether srun numbers them as the plan does.
struct JobLayout {
  std::vector<JobComponent> components;  ///< in the order of kinds_of(), of each kind the fuller nodes first
  bool in_plan_order = false;
};

/// As nodes_of_stages() places them, which the simulator assumes too. `devices_per_node` by kinds_of(). Errors:
/// invalid_input (a tensor-parallel group larger than its nodes).
Result<JobLayout> lay_out_job(const Plan& plan, const std::vector<int>& devices_per_node);
Result<JobLayout> lay_out_job(const Plan& plan, const SbatchRequest& request);

}  // namespace sailor::slurm
