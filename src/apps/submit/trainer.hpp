// sailor-submit --trainer: a job that runs a program of another training framework under a plan.
#pragma once

#include <string>

#include "apps/submit/submission.hpp"
#include "apps/submit/submit_options.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// --trainer NAME
Option trainer_option();

/// The job runs a program of another framework, not sailor-train.
bool is_for_framework(const SubmitOptions& options);

/// Checks options that are for sailor-train, or for another framework, alone. Errors: usage.
Result<void> check_trainer_options(const SubmitOptions& options);

/// Fills in what the job runs: the command behind "--", with what the plan says of the framework's arguments. Errors:
/// usage (a plan that the framework cannot run; an argument that the plan decides; a command that would ask
/// questions), not_found (a script that is not there, unless --remote-data or --image says that the nodes have it).
Result<void> set_framework(const SubmitOptions& options, Submission& submission);

}  // namespace sailor::apps
