// The scripts of an elastic training: its own job, in which a controller decides who takes part, and companion jobs of
// one node each, which join it when they start and end with it.
//
// They communicate through RUN_DIRECTORY/elastic, on a file system that all nodes see:
//   controller.json, journal.jsonl, events.jsonl   the controller's (src/elastic)
//   run-file       name of the run file of this start
//   over           the training has ended, with this status: companions end, and new ones do not begin
//   exclude        nodes that the training must not use; companions do not get them either, and one is queued for each
//   left-out/NODE  nodes that companions do not get, with the reason
#pragma once

#include <string>
#include <string_view>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "slurm/job_layout.hpp"
#include "slurm/sbatch_request.hpp"
#include "slurm/script_text.hpp"

namespace sailor::slurm {

/// File name in the run directory.
inline constexpr std::string_view companion_script_name = "companion.sbatch";

/// Errors: invalid_input (nodes of several kinds, an impossible number of nodes, an array, no requeueing).
Result<void> check_elastic(const JobLayout& layout, const SbatchRequest& request);

/// The commands of the training's own job, from the controller's start to the end of the script.
void write_elastic_training(Script& script, const SbatchRequest& request, const JobComponent& nodes);

/// The whole script of a companion job. Errors: those of sbatch_script().
Result<std::string> companion_script(const Plan& plan, const SbatchRequest& request);

}  // namespace sailor::slurm
