// The batch script that runs a plan: a pure function of plan and request. Every word a user chose is quoted.
#pragma once

#include <string>

#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "slurm/job_layout.hpp"
#include "slurm/sbatch_request.hpp"

namespace sailor::slurm {

/// The script: one srun, over all components. Errors: invalid_input (a plan that is not the model's, a name, path or
/// option that is impossible), unavailable (Placer::slurm, and a plan that needs a placer).
Result<std::string> sbatch_script(const Plan& plan, const Model& model, const SbatchRequest& request);

}  // namespace sailor::slurm
