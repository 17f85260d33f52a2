// Parts of a job script that handle failures: the check of the nodes before they train, and what happens after a start
// that ended before the training did.
#pragma once

#include <string>

#include "slurm/job_layout.hpp"
#include "slurm/sbatch_request.hpp"
#include "slurm/script_text.hpp"

namespace sailor::slurm {

/// Commands that count this start and submit the job that continues after it (Continuation::resubmit). At that point of
/// the script the working directory must be that of the run.
void write_beginning(Script& script, const SbatchRequest& request);

/// The function check_nodes(), which calls start_check() and excludes unfit nodes in the array `launch`.
void write_check(Script& script, const SbatchRequest& request);

/// Commands for the end of the job, by `status`.
void write_ending(Script& script, const SbatchRequest& request);

}  // namespace sailor::slurm
