#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

/// Readers of the files that a plan's origin names, where they are still there.
namespace sailor {

/// The model of a plan: its origin's model_file, else (or where that is gone) the one of its name in `folder`. Errors:
/// as load_model() and find_model() of a name; invalid_input, if the file describes a model of another name now.
Result<Model> find_model(const Plan& plan, const std::filesystem::path& folder);
/// The cluster file that a plan was made for; std::nullopt if its origin names none or it cannot be read. With `speaks`
/// (true on one rank only) logs that the file is used, whether it has changed since, or why it cannot be read.
std::optional<Cluster> cluster_of_origin(const Plan& plan, const GpuCatalogue& gpus, bool speaks = true);
/// The cluster of `file`, or cluster_of_origin() if that is empty. Errors: those of load_cluster().
Result<std::optional<Cluster>> cluster_for(const Plan& plan, const std::string& file, const GpuCatalogue& gpus,
                                           bool speaks = true);

}  // namespace sailor
