// Records of slurmctld about its nodes, as plain values, and their conversion to a Cluster. No Slurm needed here: tests
// write these values themselves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "slurm/gpu_rules.hpp"

namespace sailor::slurm {

/// GPUs of a node by type: "gpu:gh200:4(S:0-3),shard:8" is one entry {"gh200", 4}. Other resources are left out.
struct GpuCount {
  std::string type;  ///< empty: the administrator gave none ("gpu:4")
  int count = 0;
  bool operator==(const GpuCount&) const = default;
};
/// Reads a node's Gres. Errors: invalid_input (a count that is no number).
Result<std::vector<GpuCount>> parse_gpus(std::string_view gres);

struct NodeRecord {
  std::string name;
  std::string gres;             ///< as Slurm writes it; empty: none
  int cpus = 0;                 ///< CPUs that jobs may use (hardware threads where they are switched on)
  int cores = 0;                ///< physical cores among them
  std::int64_t memory_mib = 0;  ///< RealMemory
  NodeState state = NodeState::idle;
  std::string state_reason;             ///< only for unavailable nodes
  std::vector<std::string> partitions;  ///< in the order of slurm.conf
  // Allocated to jobs
  std::string gres_used{};  ///< "gpu:gh200:2(IDX:0-1)"
  int cpus_used = 0;
  std::int64_t memory_used_mib = 0;
  std::vector<std::string> features{};  ///< active ones
  std::string leaf_switch{};            ///< empty: not known
};

/// Number of devices of a node that no job has, and for each of which an equal share of the node's cores and memory is
/// free, too. `devices`: number of devices of the node.
int free_devices(const NodeRecord& node, int devices);

/// The sockets that a node's GPUs are bound to: "0-3" of "gpu:gh200:4(S:0-3)". Empty: not known.
std::string gpu_sockets(std::string_view gres);

void set_switches(std::vector<NodeRecord>& nodes, const std::map<std::string, std::string>& leaf_of_node);

/// Licenses of the cluster, which jobs may ask for.
struct License {
  std::string name;
  int total = 0;
  int taken = 0;  ///< by jobs, or reserved
};

/// "matlab:2,disk" or Slurm's newer "matlab=2": names and numbers. Errors: usage.
Result<std::vector<std::pair<std::string, int>>> parse_licenses(std::string_view text);

/// NodeGroup::state_reason of nodes that slurmctld, just started, has not heard from yet.
inline constexpr std::string_view state_not_known = "state unknown";

/// Facts about slurmctld and its configuration.
struct ControllerFacts {
  std::string version;  ///< "22.05.8"
  bool accounting = false;
  // AccountingStorageEnforce
  bool enforces_associations = false;  ///< a job needs an account that the user has
  bool enforces_limits = false;        ///< of accounts and QOS
  bool enforces_qos = false;           ///< a job needs a QOS that the user has
  bool enforces_safely = false;        ///< a job starts only if limits on minutes last until its end
  bool usage_decays = false;           ///< past usage decays with time
  bool billing_takes_largest = false;  ///< PriorityFlags=MAX_TRES
  std::string job_submit_plugins{};    ///< of the site, which may change or refuse jobs; empty: none
  std::vector<License> licenses{};
  std::string switch_type{};  ///< SwitchType: "switch/hpe_slingshot"

  /// Slurm `year`.`month`.`patch` or later; false where the version is not known.
  [[nodiscard]] bool at_least(int year, int month, int patch = 0) const;
};

/// A cluster, and what was left out of it.
struct ClusterReading {
  Cluster cluster;
  std::vector<std::string> warnings;  ///< one line each, for the log; nodes that are left out: Cluster::left_out
  ControllerFacts facts{};
};

/// Folds alike nodes into groups, in the order of their first node. Nodes without GPUs become groups of the
/// catalogue's CPU device, one device per core. The GPU type of a node comes from the rules of the site, else from its
/// GRES type and features (match_gres()), else from the other rules; the first rule that fits counts. Nodes with GPUs
/// of unknown type, or of several types, are left out. Errors: not_found, when no node is left.
Result<ClusterReading> assemble_cluster(std::string name, std::vector<Partition> partitions,
                                        const std::vector<NodeRecord>& nodes, const GpuCatalogue& catalogue,
                                        const std::vector<GpuRule>& rules = {});

/// `text` as one line of valid UTF-8: administrators write reasons in any encoding, TOML takes only this.
std::string printable(std::string_view text);

}  // namespace sailor::slurm
