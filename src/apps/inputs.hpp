// Reads what the planning programs start from: catalogue, model, profile store and cluster, as their shared options
// name it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "profile/profile.hpp"
#include "slurm/node_records.hpp"
#include "slurm/site.hpp"

namespace sailor::apps {

namespace shared {
Option cluster_file();      ///< --cluster FILE
Option required_profile();  ///< --profile STORE, with what happens when it is missing
Option measured_only();     ///< --measured-only
Option reservation();       ///< --reservation NAME
}  // namespace shared

/// The value of an option that must be given; an error of code `usage` that names it otherwise.
Result<std::string> required(const Options& options, std::string_view name);

/// The partitions of --partition, which may name several with commas: each once.
std::vector<std::string> partitions_of(const Options& options);

/// --site, else the site file that names the cluster, else the generic one. The program must have the option.
Result<slurm::Site> read_site(const Options& options, const Environment& environment, const GpuCatalogue& gpus,
                              const std::string& cluster_name);

/// What SLURM_CONF names; empty: nothing.
std::filesystem::path slurm_configuration(const Environment& environment);

/// The live cluster, with the prices, zones and links of its site file. Warnings (nodes that were left out) go to the
/// log. `reservation`: that the job would use; empty: none.
Result<Cluster> ask_slurm(const Environment& environment, const GpuCatalogue& gpus,
                          const std::string& reservation = {});
/// The same without the site file, and with what slurmctld says of itself and what was left out; nothing is logged.
Result<slurm::ClusterReading> ask_slurm_alone(const Environment& environment, const GpuCatalogue& gpus,
                                              const std::string& reservation = {});

/// Leaves only the nodes of the reservation that --reservation names. Errors: those of slurm::require_reservation().
Result<void> use_reservation(const Options& options, Cluster& cluster);

/// The cluster named by --cluster FILE, else read live from Slurm when --partition is given; nothing when neither is.
/// The partitions must be there, and those of a live cluster up.
Result<std::optional<Cluster>> read_cluster(const Options& options, const Environment& environment,
                                            const GpuCatalogue& gpus);

/// --precision, else what the profile has of the model: tf32 before fp32; fp32 when it has nothing.
Result<Precision> read_precision(const Options& options, const Profile& profile, const std::string& model);
/// The store that --profile names (see find_store()), else `usual`; without either the option is missing.
Result<Profile> read_profile(const Options& options, const Environment& environment, const std::string& usual = {});

}  // namespace sailor::apps
