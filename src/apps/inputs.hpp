// Reads what the planning programs start from: catalogue, model, profile store and cluster, as their shared options
// name it.
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
Option cluster_file();      ///< --cluster FILE
Option required_profile();  ///< --profile STORE, with what happens when it is missing
Option measured_only();     ///< --measured-only
Option reservation();       ///< --reservation NAME
Option licenses();          ///< --licenses
Option gpu_type();          ///< --gpu-type [NODES=]NAME, see gpu_type_rules()
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

/// What is asked of a live cluster, besides its nodes.
struct LiveQuestion {
  std::string reservation{};            ///< that the job would use; empty: none
  std::string site{};                   ///< --site; empty: the file that names the cluster
  std::vector<slurm::GpuRule> rules{};  ///< what GPUs are that nothing else tells
  bool any_features = false;            ///< the job has a constraint of its own: the site's does not count
};

/// The live cluster, with the prices, zones and links of its site file. Warnings go to the log, but not which nodes
/// were left out: that depends on the partitions that are asked for (warn_of_left_out()). What slurmctld says of itself
/// goes to `facts`, unless that is null.
Result<Cluster> ask_slurm(const Environment& environment, const GpuCatalogue& gpus, const LiveQuestion& question = {},
                          slurm::ControllerFacts* facts = nullptr);
/// The same without the site file's prices and zones, and with what slurmctld says of itself; nothing is logged.
Result<slurm::ClusterReading> ask_slurm_alone(const Environment& environment, const GpuCatalogue& gpus,
                                              const LiveQuestion& question = {});

/// Nodes of these partitions (none: of all) that no plan can use.
void warn_of_left_out(const Cluster& cluster, const std::vector<std::string>& partitions);

/// --gpu-type: of all nodes, or of those named, where nothing else tells it. Errors: usage (no GPU of the catalogue, a
/// list of nodes that cannot be read).
Result<std::vector<slurm::GpuRule>> gpu_type_rules(const Options& options, const GpuCatalogue& gpus);

/// That GPUs which nothing else tells are those of the plan, where it has GPUs of one type only.
std::vector<slurm::GpuRule> rules_of_plan(const Plan& plan, const GpuCatalogue& gpus);

/// Leaves only the nodes of the reservation that --reservation names. Errors: those of slurm::require_reservation().
Result<void> use_reservation(const Options& options, Cluster& cluster);

/// The cluster named by --cluster FILE, else read live from Slurm when --partition is given; nothing when neither is.
/// The partitions must be there, and those of a live cluster up.
Result<std::optional<Cluster>> read_cluster(const Options& options, const Environment& environment,
                                            const GpuCatalogue& gpus, const LiveQuestion& question = {});

/// --precision; nothing when it is not given.
Result<std::optional<Precision>> read_precision(const Options& options);
/// The store that --profile names (see find_store()), else `usual`; without either the option is missing.
Result<Profile> read_profile(const Options& options, const Environment& environment, const std::string& usual = {});

}  // namespace sailor::apps
