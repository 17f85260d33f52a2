// The cluster a plan is made for: partitions, nodes with their devices, zones and what joins them.
//
// It comes from cluster.toml (planning away from the cluster, tests) or live from Slurm (slurm/), which
// give the same information.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor {

enum class NodeState {
  idle,         ///< free now
  mixed,        ///< partly taken
  allocated,    ///< taken
  unavailable,  ///< down, drained, not responding, reserved for maintenance
};
std::string_view to_string(NodeState state);

/// Nodes that are alike in everything a plan needs to know.
struct NodeGroup {
  std::vector<std::string> nodes;  ///< names; empty in a hypothetical cluster
  int count = 0;                   ///< number of nodes; nodes.size() unless hypothetical
  std::string gpu;                 ///< name in the catalogue
  int gpus_per_node = 0;           ///< devices; for a CPU type the cores, one rank each
  int cpus_per_node = 0;
  Bytes memory_per_node{};  ///< host memory
  NodeState state = NodeState::idle;
  std::string state_reason;  ///< why it is unavailable, as Slurm says it
  std::string zone;          ///< name of a zone; empty = the only one
  std::vector<std::string> partitions;
};

struct Partition {
  std::string name;
  bool up = true;
  bool is_default = false;
  std::optional<Seconds> time_limit;  ///< none: unlimited
  std::optional<int> most_nodes;      ///< per job; none: unlimited
};

/// A group of nodes near each other, with prices of their own.
struct Zone {
  std::string name;
  std::string region;
  /// USD per device-hour by GPU type, where it differs from the catalogue.
  std::vector<std::pair<std::string, UsdPerHour>> prices;
};

/// What joins two zones, both directions.
struct ZoneLink {
  std::string from;
  std::string to;
  /// Of one stream between two nodes. None: the link says what bytes cost; how long they take is in the profile.
  std::optional<BytesPerSecond> bandwidth;
  Seconds latency{};  ///< only with a bandwidth
  double egress_usd_per_byte = 0.0;
};

struct Cluster {
  std::string name;
  std::string origin;  ///< the file, or "slurm"
  std::vector<NodeGroup> groups;
  std::vector<Partition> partitions;
  std::vector<Zone> zones;
  std::vector<ZoneLink> links;

  [[nodiscard]] const Partition* find_partition(std::string_view partition) const;
  /// Groups of one partition, or all if `partition` is empty, that are in one of the states a plan may use.
  [[nodiscard]] std::vector<NodeGroup> usable(std::string_view partition, bool only_idle) const;
};

/// Memory of one device of a node: the GPU's own, or the share of the host's memory of one of its cores.
Bytes device_memory(const GpuType& type, const NodeGroup& group);
/// Price of one device-hour in a zone (cluster.toml), else the catalogue's.
UsdPerHour device_price(const Cluster& cluster, const GpuType& type, std::string_view zone);

/// cluster.toml. GPU names and aliases are looked up in the catalogue. Errors: not_found, io, invalid_input with
/// file, line, column and reason.
Result<Cluster> load_cluster(const std::filesystem::path& path, const GpuCatalogue& catalogue);
Result<Cluster> parse_cluster(std::string_view text, std::string_view source_name, const GpuCatalogue& catalogue);
/// The text of a cluster.toml that says the same; for planning elsewhere from what Slurm said here.
std::string cluster_to_toml(const Cluster& cluster);

}  // namespace sailor
