// Reads what the planning programs start from: catalogue, model, profile store and cluster, as their shared options
// name it.
#pragma once

#include <optional>
#include <string>

#include "apps/options.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "profile/profile.hpp"

namespace sailor::apps {

namespace shared {
Option cluster_file();      ///< --cluster FILE
Option required_profile();  ///< --profile STORE, with what happens when it is missing
Option measured_only();     ///< --measured-only
}  // namespace shared

/// The value of an option that must be given; an error of code `usage` that names it otherwise.
Result<std::string> required(const Options& options, std::string_view name);

/// The live cluster. Warnings (nodes that were left out) go to the log.
Result<Cluster> ask_slurm(const Environment& environment, const GpuCatalogue& gpus);

/// The cluster named by --cluster FILE, else read live from Slurm when --partition is given; nothing when neither is.
Result<std::optional<Cluster>> read_cluster(const Options& options, const Environment& environment,
                                            const GpuCatalogue& gpus);

/// --precision, else what the profile has of the model: tf32 before fp32; fp32 when it has nothing.
Result<Precision> read_precision(const Options& options, const Profile& profile, const std::string& model);
/// The store that --profile names (see find_store()), else `usual`; without either the option is missing.
Result<Profile> read_profile(const Options& options, const Environment& environment, const std::string& usual = {});

}  // namespace sailor::apps
