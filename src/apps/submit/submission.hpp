// What sailor-submit knows before it writes a script: the plans, their devices, the nodes that Slurm has for them, and
// how jobs are started on the cluster.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "apps/options.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "preflight/program.hpp"
#include "slurm/sbatch.hpp"

namespace sailor::apps {

/// Everything that is known before a script is written.
struct Submission {
  std::string path;  ///< of the plan, as it was named
  Plan plan;
  std::string plan_text;
  Model model;
  std::vector<std::pair<std::string, std::string>> kinds;  ///< of the plan: GPU types and zones
  std::vector<GpuType> devices;                            ///< by kind
  slurm::SbatchRequest request;
  preflight::TrainingProgram program;  ///< of the request, as far as it may be asked
};

/// The jobs for the plans of the command line, each with its plans: one, or the tasks of a job array, which the first
/// one's request describes. Several plans become an array for each number of nodes that they need. Errors: those of
/// reading plans, models and the cluster; usage; unavailable, invalid_input (nodes or time that the partition does not
/// have; plans that do not go together).
Result<std::vector<std::vector<Submission>>> prepare_all(const Options& options, const Environment& environment);

/// Asks the job's program whether it can run the plans; warns where it cannot be asked from here. Errors: unavailable,
/// with what it lacks.
Result<void> check_program(const Options& options, const Environment& environment,
                           const std::vector<std::vector<Submission>>& jobs);

/// Warns where the variables of a uenv that this shell is in would reach the jobs.
void warn_of_session(const Environment& environment);

/// Whether the container of the jobs sees their run directories, data and checkpoints, by its EDF. Errors:
/// invalid_input, with the paths; those of reading the EDF.
Result<void> check_mounts(const Environment& environment, const std::vector<std::vector<Submission>>& jobs);

/// `path`, seen from the working directory.
std::filesystem::path from_here(const std::filesystem::path& path);

}  // namespace sailor::apps
