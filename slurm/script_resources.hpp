// The #SBATCH lines of a job script: what Slurm is asked for.
#pragma once

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "slurm/job_layout.hpp"
#include "slurm/sbatch_request.hpp"
#include "slurm/script_text.hpp"

namespace sailor::slurm {

/// The script whose lines are written.
enum class JobPart {
  job,        ///< the training's own job
  companion,  ///< a job that adds one node to an elastic training
};

/// Whether Slurm gives each task its GPU. Where Slurm has cgroups for devices, it confines the task to that GPU: NCCL
/// then finds no NVLink to the others.
bool slurm_gives_gpus(const SbatchRequest& request, const NodeRequest& nodes);

/// Number of tasks that the job may start: spare nodes have as many as the others.
int tasks_with_spares(const SbatchRequest& request, const JobComponent& component);

/// Errors: invalid_input (a value that an #SBATCH line cannot hold).
Result<void> write_resources(Script& script, const Plan& plan, const SbatchRequest& request, const JobLayout& layout,
                             JobPart part = JobPart::job);

}  // namespace sailor::slurm
