// The nodes and tasks that a plan's ranks become in a job.
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

/// Why ranks of a job of so many components would not reach each other: on Slingshot each component had a network
/// identity (VNI) of its own before Slurm 23.02.3. Nothing where they do, or it is not known.
std::optional<Error> component_problem(std::size_t components, const ControllerFacts& facts, const Site& site);

}  // namespace sailor::slurm
