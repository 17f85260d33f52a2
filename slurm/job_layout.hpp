// Nodes and tasks of a job for the ranks of a plan.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "slurm/node_records.hpp"
#include "slurm/sbatch_request.hpp"
#include "slurm/site.hpp"

namespace sailor::slurm {

/// Nodes of a job that are alike: a component of a heterogeneous job, if there are several.
struct JobComponent {
  std::size_t kind = 0;  ///< index into kinds_of()
  int nodes = 0;
  int tasks_per_node = 0;
  bool packed = false;  ///< the last node has fewer tasks; otherwise all have tasks_per_node
  int tasks = 0;
  bool operator==(const JobComponent&) const = default;
};

/// Nodes and tasks for the ranks of a plan, and whether srun numbers the tasks as the plan numbers its ranks.
struct JobLayout {
  std::vector<JobComponent> components;  ///< in the order of kinds_of(), within a kind nodes with more tasks first
  bool in_plan_order = false;
};

/// Places ranks as nodes_of_ranks() does, which the simulator assumes too. `devices_per_node`: by kinds_of(). Errors:
/// invalid_input (a tensor-parallel group larger than its nodes).
Result<JobLayout> lay_out_job(const Plan& plan, const std::vector<int>& devices_per_node);
Result<JobLayout> lay_out_job(const Plan& plan, const SbatchRequest& request);

/// The reason why ranks of a job with this number of components could not communicate: on Slingshot each component had
/// its own network identity (VNI) before Slurm 23.02.3. std::nullopt if they can, or if it is not known.
std::optional<Error> component_problem(std::size_t components, const ControllerFacts& facts, const Site& site);

}  // namespace sailor::slurm
