// The plan that sailor-simulate reads, in our format or in that of the original Sailor, and whether a cluster can hold
// it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/inputs.hpp"
#include "apps/options.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "planner/baselines/plan_list_json.hpp"
#include "profile/profile.hpp"

namespace sailor::apps {

/// The options that read_plan_input() and read_plan_list_input() need: shared::model(), shared::models_folder(),
/// --precision.
struct PlanInputOptions : ClusterOptions {
  OptionValue<std::string> model, models, precision;
};

struct PlanInput {
  Plan plan;
  Model model;
  /// Measurements that the file contains; only the original's JSON may have them.
  std::optional<Seconds> measured_time;
  std::optional<Bytes> measured_memory;
};

/// A list of pipelines in the original's JSON, which may not be expressible as a Plan.
struct ListInput {
  planner::baselines::PlanListFile file;
  TrainingJob job;
  Model model;
};
/// Whether the file is in the original's JSON, so that read_plan_list_input() can read it.
Result<bool> is_original_plan(const std::string& path);
/// Reads such a file. Options and errors are those of read_plan_input() for such files.
Result<ListInput> read_plan_list_input(const std::string& path, const PlanInputOptions& options,
                                       const Environment& environment, const GpuCatalogue& gpus,
                                       const Profile& profile);

/// Reads a plan.toml, or the original's JSON (a name that ends in .json, or text that begins with a brace), which needs
/// --model and takes --precision. Errors: usage (--model is missing, or --model or --precision contradicts a
/// plan.toml), and those of the file.
Result<PlanInput> read_plan_input(const std::string& path, const PlanInputOptions& options,
                                  const Environment& environment, const GpuCatalogue& gpus, const Profile& profile);

/// The profile store that a plan.toml was made with; "" if it does not say; `published` for plans of the original.
std::string usual_profile(const std::string& path);

/// Why the nodes of the cluster (or of its partitions, if any are named) do not suffice: "the plan needs 8 GH200-96,
/// there are 4 (1 node with 4) in partition 'gpu'". std::nullopt if they do.
std::optional<std::string> what_is_missing(const Plan& plan, const Cluster& cluster,
                                           const std::vector<std::string>& partitions);

/// As read_cluster(). If no option names a cluster, it is that of the plan's origin: a file that still exists, or the
/// nodes of `sailor-plan --gpus 16x4:GH200-96`; the choice is logged.
Result<std::optional<Cluster>> read_cluster_for(const Plan& plan, const ClusterOptions& options,
                                                const Environment& environment, const GpuCatalogue& gpus);

/// Replaces other names of GPU types in a plan by those of the catalogue; unknown ones stay, and simulate() refuses
/// them.
void use_catalogue_names(Plan& plan, const GpuCatalogue& gpus);

}  // namespace sailor::apps
