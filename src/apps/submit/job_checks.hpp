// Checks of sailor-submit after the scripts are known: the program that the jobs run, and what their container sees.
#pragma once

#include <vector>

#include "apps/submit/submission.hpp"
#include "apps/submit/submit_options.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// Asks the job's program whether it can run the plans; warns if it cannot be asked from here. Errors: unavailable,
/// with what it lacks.
Result<void> check_program(const SubmitOptions& options, const Environment& environment,
                           const std::vector<std::vector<Submission>>& jobs);

/// Warns if the variables of a uenv that this shell is in would reach the jobs.
void warn_of_session(const Environment& environment);

/// Checks by the EDF that the container of the jobs sees their run directories, data and checkpoints. Errors:
/// invalid_input, with the paths; those of reading the EDF.
Result<void> check_mounts(const Environment& environment, const std::vector<std::vector<Submission>>& jobs);

}  // namespace sailor::apps
