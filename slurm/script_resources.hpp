// The #SBATCH lines of a job script: what Slurm is asked for.
#pragma once

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "slurm/job_layout.hpp"
#include "slurm/sbatch_request.hpp"
#include "slurm/script_text.hpp"

namespace sailor::slurm {

/// Which script it is.
enum class JobPart {
  job,        ///< of the training
  companion,  ///< of a job of one node more for an elastic training
};

/// Slurm confines a task to its GPU where it has control groups for devices: NCCL then finds no NVLink to the others.
bool slurm_gives_gpus(const SbatchRequest& request, const NodeRequest& nodes);

/// Tasks that the job may start: of spare nodes as many as of the others.
int tasks_with_spares(const SbatchRequest& request, const JobComponent& component);

/// Errors: invalid_input (a value that cannot stand on such a line).
Result<void> write_resources(Script& script, const Plan& plan, const SbatchRequest& request, const JobLayout& layout,
                             JobPart part = JobPart::job);

}  // namespace sailor::slurm
