// Reads the inputs of the planning programs: catalogue, model, profile store and cluster, as their shared options name
// them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"
#include "slurm/node_records.hpp"
#include "slurm/site.hpp"

namespace sailor::apps {

namespace shared {
Option cluster_file();         ///< --cluster FILE
Option required_profile();     ///< --profile STORE, with what happens when it is missing
Option catalogue_or_counts();  ///< --gpus FILE|NxM:TYPE
Option measured_only();        ///< --measured-only
Option reservation();          ///< --reservation NAME
Option licenses();             ///< --licenses
Option gpu_type();             ///< --gpu-type [NODES=]NAME, see gpu_type_rules()
}  // namespace shared

/// The options that name the cluster: shared::cluster_file(), shared::partition(), and shared::gpus_file(), which may
/// also say the GPUs that there are (cluster/gpu_counts.hpp).
struct ClusterOptions {
  OptionValue<std::string> cluster, partition, gpus;
};

/// Path of the GPU catalogue: that of --gpus, unless this says which GPUs there are.
std::string catalogue_file(const ClusterOptions& options, const Environment& environment);

/// The value of a required option, as the user wrote it. Errors: usage, naming the option, if it is not given.
Result<std::string> required(const AnyOptionValue& option);

/// The partitions of --partition, which may be a list; without duplicates.
std::vector<std::string> partitions_of(const OptionValue<std::string>& partition);

/// --site, else the site file that names the cluster, else the generic one. Warns of its GPUs that the catalogue does
/// not have, unless that is the user's own (--gpus).
Result<slurm::Site> read_site(const OptionValue<std::string>& site, const OptionValue<std::string>& own_catalogue,
                              const Environment& environment, const GpuCatalogue& gpus,
                              const std::string& cluster_name);

/// The path in SLURM_CONF; empty if it is not set.
std::filesystem::path slurm_configuration(const Environment& environment);

/// What is asked of a live cluster, besides its nodes.
struct LiveQuestion {
  std::string reservation{};            ///< reservation that the job would use; empty: none
  std::string site{};                   ///< --site; empty: the file that names the cluster
  std::vector<slurm::GpuRule> rules{};  ///< types for GPUs of otherwise unknown type
  bool any_features = false;            ///< the job has its own constraint, which replaces the site's
};

/// The live cluster, with the prices, zones and links of its site file. Logs warnings, except about nodes that were
/// left out, which depend on the partitions (warn_of_left_out()). Facts that slurmctld reports about itself go to
/// `facts`, unless that is null.
Result<Cluster> ask_slurm(const Environment& environment, const GpuCatalogue& gpus, const LiveQuestion& question = {},
                          slurm::ControllerFacts* facts = nullptr);
/// The same without the site file's prices and zones; the result contains the facts of slurmctld and the warnings, and
/// nothing is logged.
Result<slurm::ClusterReading> ask_slurm_alone(const Environment& environment, const GpuCatalogue& gpus,
                                              const LiveQuestion& question = {});

/// Warns of the nodes of these partitions (none: of all) that no plan can use.
void warn_of_left_out(const Cluster& cluster, const std::vector<std::string>& partitions);

/// The rules of --gpu-type: the type of GPUs that is otherwise unknown, on all nodes or on those named. Errors: usage
/// (not a GPU of the catalogue, or a list of nodes that cannot be read).
Result<std::vector<slurm::GpuRule>> gpu_type_rules(const std::vector<std::string>& gpu_type, const GpuCatalogue& gpus);

/// The rule that GPUs of otherwise unknown type are those of the plan, if the plan has GPUs of one type only; else
/// none.
std::vector<slurm::GpuRule> rules_of_plan(const Plan& plan, const GpuCatalogue& gpus);

/// Keeps only the nodes of the reservation, and of these partitions (none: of all). Errors: those of
/// slurm::require_reservation().
Result<void> use_reservation(const std::string& reservation, const std::vector<std::string>& partitions,
                             Cluster& cluster);

/// The cluster that --gpus describes or that --cluster FILE names; std::nullopt without either. Errors: usage (both, or
/// --gpus beside --partition), those of reading the file.
Result<std::optional<Cluster>> described_cluster(const ClusterOptions& options, const GpuCatalogue& gpus);

/// The cluster that --gpus describes, or named by --cluster FILE, else read live from Slurm when --partition is given;
/// std::nullopt without either. The partitions must exist, and those of a live cluster must be up.
Result<std::optional<Cluster>> read_cluster(const ClusterOptions& options, const Environment& environment,
                                            const GpuCatalogue& gpus, const LiveQuestion& question = {});

/// The value of --precision; std::nullopt if it is not given.
Result<std::optional<Precision>> read_precision(const OptionValue<std::string>& precision);
/// The store that --profile names (see find_store()), else `usual`; without either the option is missing.
Result<Profile> read_profile(const OptionValue<std::string>& profile, const Environment& environment,
                             const std::string& usual = {});

}  // namespace sailor::apps
