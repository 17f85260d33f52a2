// The inputs of a batch script of sailor-submit: the plans, their devices, the nodes that Slurm has for them, and how
// jobs are started on the cluster.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "apps/submit/submit_options.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "preflight/program.hpp"
#include "slurm/sbatch.hpp"

namespace sailor::apps {

/// In the run directory of an elastic training: the nodes that its controller plans anew for.
inline constexpr const char* cluster_file_name = "cluster.toml";

/// Everything that is known before a script is written.
struct Submission {
  std::string path;  ///< path of the plan, as given
  Plan plan;
  std::string plan_text;
  Model model;
  std::vector<std::pair<std::string, std::string>> kinds;  ///< GPU types and zones of the plan
  std::vector<GpuType> devices;                            ///< GPU types by kind
  slurm::SbatchRequest request;
  std::string cluster_text{};          ///< text of that file; empty: there is none
  preflight::TrainingProgram program;  ///< program of the request, as far as it may be asked
};

/// The jobs for the plans of the command line, each with its plans: one plan, or the tasks of a job array, which the
/// request of the first describes. Several plans become one array per number of nodes that they need. Errors: those of
/// reading plans, models and the cluster; usage; unavailable, invalid_input (nodes or time that the partition does not
/// have; plans that do not go together).
Result<std::vector<std::vector<Submission>>> prepare_all(const SubmitOptions& options, const Environment& environment);

/// `path`, seen from the working directory.
std::filesystem::path from_here(const std::filesystem::path& path);

}  // namespace sailor::apps
