// The plan that sailor-simulate is asked about, in our form or the original's, and whether a cluster can hold it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "planner/baselines/plan_list_json.hpp"
#include "profile/profile.hpp"

namespace sailor::apps {

struct PlanInput {
  Plan plan;
  Model model;
  /// What the file says was measured; the original's JSON may.
  std::optional<Seconds> measured_time;
  std::optional<Bytes> measured_memory;
};

/// A list of pipelines in the original's JSON, which a Plan perhaps cannot say.
struct ListInput {
  planner::baselines::PlanListFile file;
  TrainingJob job;
  Model model;
};
/// Whether the file is in the original's JSON: then read_plan_list_input() can read it.
Result<bool> is_original_plan(const std::string& path);
/// Options and errors as those of read_plan_input() for such files.
Result<ListInput> read_plan_list_input(const std::string& path, const Options& options, const Environment& environment,
                                       const GpuCatalogue& gpus, const Profile& profile);

/// A plan.toml, or the original's JSON (a name that ends in .json, or text that begins with a brace), which needs
/// --model and takes --precision. Errors: usage (--model is missing, or contradicts a plan.toml as --precision may) and
/// those of the file.
Result<PlanInput> read_plan_input(const std::string& path, const Options& options, const Environment& environment,
                                  const GpuCatalogue& gpus, const Profile& profile);

/// Why the nodes of the cluster (or of its partitions, if any are named) do not suffice: "the plan needs 8 GH200-96,
/// there are 4 (1 node with 4) in partition 'gpu'". Nothing when they do.
std::optional<std::string> what_is_missing(const Plan& plan, const Cluster& cluster,
                                           const std::vector<std::string>& partitions);

/// Other names of GPU types in a plan become those of the catalogue; unknown ones stay, for simulate() to refuse.
void use_catalogue_names(Plan& plan, const GpuCatalogue& gpus);

}  // namespace sailor::apps
