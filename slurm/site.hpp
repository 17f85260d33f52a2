// Site files: facts about a cluster that Slurm does not know, such as prices, zones and links, how programs are started
// there, environment variables for its network, and thresholds of healthy nodes (slurm/sites/*.toml). Read
// strictly. No Slurm needed here.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "slurm/gpu_rules.hpp"

namespace sailor::slurm {

/// Variables in the order of the file.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// A way to bring the software to the nodes, with what it needs: "uenv", "extended-image".
struct SoftwareEnvironment {
  std::string name;
  std::string title;                      ///< one line for people; may be empty
  std::string image_option;               ///< srun option (never sbatch) for the image: "--uenv"; empty: none
  std::string view_option{};              ///< srun option for the views of the image: "--view"; empty: none
  std::string view{};                     ///< default views; empty: none
  std::string mpi;                        ///< srun --mpi; empty: the site's
  std::vector<std::string> srun_options;  ///< "--network=disable_rdzv_get"
  Variables variables;                    ///< exported after the site's, which they replace
  Variables pipeline_variables{};         ///< further ones, if stages send to each other
};

/// Cores first to last, both included.
struct CoreRange {
  int first = 0;
  int last = 0;
  bool operator==(const CoreRange&) const = default;
};

/// Cores and memory of each GPU on a kind of node.
struct NodeLayout {
  std::string gpu;                ///< name in the catalogue
  std::vector<CoreRange> cores;   ///< of each GPU, by its number on the node
  std::vector<int> numa_nodes;    ///< NUMA nodes of these cores, by the same number
  std::vector<int> memory_nodes;  ///< NUMA nodes of host memory (numactl --membind); on GH200 the GPUs have others
};

/// How jobs are started.
struct Launch {
  std::string mpi = "pmix";                 ///< srun --mpi
  bool exclusive_nodes = false;             ///< a job gets whole nodes anyway: ask for them
  std::string constraint;                   ///< sbatch --constraint; empty: none
  bool one_gpu_per_task = false;            ///< srun --gpus-per-task=1: Slurm confines each rank to its GPU
  std::optional<Bytes> memory_per_node{};   ///< sbatch --mem of jobs on GPUs; none: what the plan needs
  bool near_nodes = true;                   ///< sbatch --switches or --segment, where they help
  std::vector<std::string> sbatch_options;  ///< "--hint=nomultithread"
  std::vector<std::string> srun_options;
  Variables variables;         ///< exported in every job
  bool no_core_files = false;  ///< a thousand ranks that crash would fill the file system
  std::string environment;     ///< name of the usual SoftwareEnvironment; empty: none
};

/// A price that Slurm does not know.
struct NodePrice {
  std::string gpu;     ///< name in the catalogue
  UsdPerHour price{};  ///< of a whole node
  int gpus_per_node = 1;
};

/// A zone, and which nodes belong to it.
struct SiteZone {
  Zone zone;
  std::vector<std::string> nodes;  ///< patterns, in which * stands for anything
};

/// Limits above which the preflight warns; std::nullopt: not known.
struct SiteLimits {
  std::optional<int> communicators_per_rank;
  std::optional<int> communicators_per_job;
};

/// Thresholds of healthy nodes, for sailor-check. std::nullopt: not compared.
struct CheckThresholds {
  // Min bus bandwidths (as nccl-tests count them)
  std::optional<BytesPerSecond> all_reduce_between_nodes;
  std::optional<BytesPerSecond> all_reduce_within_node;
  std::optional<BytesPerSecond> all_reduce_all;  ///< over all ranks of the job
  // Min bandwidths of one stream
  std::optional<BytesPerSecond> send_between_nodes;
  std::optional<BytesPerSecond> send_within_node;
  // Max
  std::optional<double> idle_temperature_celsius;
  std::optional<double> used_memory_share;       ///< of a GPU that should be idle, 0 to 1
  std::optional<double> slower_than_median;      ///< share by which a node or link may lag behind the others, 0 to 1
  std::optional<BytesPerSecond> write_per_node;  ///< min rate of each node when all write, with fsync
  std::string fabric_provider;                   ///< libfabric must find it on every node; empty: not compared
};

struct Site {
  std::string name;                        ///< "alps-clariden"
  std::string title;                       ///< one line for people
  std::string origin;                      ///< the file
  std::vector<std::string> cluster_names;  ///< ClusterName of slurm.conf, in which * stands for anything
  std::vector<NodePrice> prices;
  std::vector<SiteZone> zones;
  std::vector<ZoneLink> links;
  std::optional<SwitchLink> across_switches;
  SiteLimits limits;
  Launch launch;
  std::vector<SoftwareEnvironment> environments;
  std::vector<NodeLayout> layouts;
  std::vector<GpuRule> gpu_types;
  CheckThresholds check;
  std::set<std::string> unknown_gpus{};  ///< named in the file, but not in the catalogue
  std::string unreadable{};  ///< set by find_site(): why another file, which may name the cluster, could not be read

  /// Null if there is none of this name.
  [[nodiscard]] const SoftwareEnvironment* find_environment(std::string_view environment) const;
  /// Null if nothing is known about the nodes with this GPU (a name of the catalogue).
  [[nodiscard]] const NodeLayout* find_layout(std::string_view gpu) const;
};

/// Reads a site file. GPU names and aliases are looked up in the catalogue; entries for unknown GPUs are kept. Errors:
/// not_found, io, invalid_input with file, line, column and reason.
Result<Site> load_site(const std::filesystem::path& path, const GpuCatalogue& catalogue);
Result<Site> parse_site(std::string_view text, std::string_view source_name, const GpuCatalogue& catalogue);

/// The site file in `folder` that names the cluster (ClusterName, case-insensitive); of several, the one whose pattern
/// matches most characters literally; generic.toml, which names none, if no file does or the name is empty. Only that
/// file is read as a whole. Errors: those of load_site(); invalid_input, if two files match equally well; not_found, if
/// there is not even generic.toml.
Result<Site> find_site(std::string_view cluster_name, const std::filesystem::path& folder,
                       const GpuCatalogue& catalogue);

/// The site of this name (the file's name without .toml), or the file of this path; `option` is the one that gave the
/// name. Errors: not_found with the known names; those of load_site().
Result<Site> named_site(const std::string& name, const std::filesystem::path& folder, const GpuCatalogue& catalogue,
                        std::string_view option = "--site");

/// The site that was asked for by name or path; find_site() of the cluster where `name` is empty.
Result<Site> choose_site(const std::string& name, std::string_view cluster_name, const std::filesystem::path& folder,
                         const GpuCatalogue& catalogue);

/// The environment that was asked for, by name; the site's usual one when `name` is empty, null when it has none.
/// Errors: not_found, with the known names.
Result<const SoftwareEnvironment*> choose_environment(const Site& site, std::string_view name);

/// The site's variables, overridden and followed by those of the environment (may be null) and, with `pipelines`, by
/// those for stages that send to each other.
Variables variables_of(const Site& site, const SoftwareEnvironment* environment, bool pipelines = false);
/// Whether a plan has stages that send to each other.
bool has_pipelines(const Plan& plan);

/// Adds the site's prices, zones and links to a cluster that Slurm described. What the cluster has already stays.
void add_site(const Site& site, Cluster& cluster);

/// Leaves out the nodes that jobs with this constraint would not get, where the features of nodes are known. `whose`:
/// origin of the constraint, for the message.
void keep_nodes_that_satisfy(const std::string& constraint, const std::string& whose, Cluster& cluster);

}  // namespace sailor::slurm
