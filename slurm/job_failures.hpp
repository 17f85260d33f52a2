// The parts of a job script about what may go wrong: the check of the nodes before they train, and what happens after a
// start that ended before the training did.
#pragma once

#include <string>

#include "slurm/job_layout.hpp"
#include "slurm/sbatch_request.hpp"
#include "slurm/script_text.hpp"

namespace sailor::slurm {

/// Counts this start, and hands in the job that goes on after it (Continuation::resubmit). To be called where the job's
/// working directory is the run's.
void write_beginning(Script& script, const SbatchRequest& request);

/// The function check_nodes(), which calls start_check() and leaves nodes that are not fit out of the array `launch`.
void write_check(Script& script, const SbatchRequest& request);

/// What becomes of the job, by `status`.
void write_ending(Script& script, const SbatchRequest& request);

}  // namespace sailor::slurm
