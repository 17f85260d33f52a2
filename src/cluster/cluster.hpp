// The cluster a plan is made for: partitions, nodes with their devices, zones and the links between them.
//
// It comes from cluster.toml (planning away from the cluster, tests) or live from Slurm (slurm/), which
// give the same information.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

/// Which nodes a plan may use.
enum class Availability {
  idle,  ///< what is free now: idle nodes, and the free part of mixed ones (NodeGroup::gpus_free)
  up,    ///< what is available now or later: all but the unavailable nodes, whole
  all,   ///< what exists
};
std::string_view to_string(Availability availability);

/// Nodes that are identical in everything that a plan needs to know.
struct NodeGroup {
  std::vector<std::string> nodes;  ///< names; empty in a hypothetical cluster
  int count = 0;                   ///< number of nodes; nodes.size() unless hypothetical
  std::string gpu;                 ///< name in the catalogue
  int gpus_per_node = 0;           ///< devices; for a CPU type the cores, one rank each
  int cpus_per_node = 0;
  Bytes memory_per_node{};  ///< host memory
  NodeState state = NodeState::idle;
  std::string state_reason;  ///< why it is unavailable, in Slurm's words
  std::string zone;          ///< name of a zone; empty = the only one
  std::vector<std::string> partitions;

  // Further facts from Slurm; empty or 0 if not known.
  std::vector<std::string> switches{};  ///< the leaf switch of each node, in the order of `nodes`; "": not known
  std::vector<std::string> features{};  ///< active ones
  int cores_per_node = 0;               ///< physical cores
  std::string gres_type{};              ///< Slurm's name of the GPUs: "gh200" of "gpu:gh200:4"
  std::string gpu_sockets{};            ///< sockets that they are bound to: "0-3"
  /// Free devices of a mixed node: no job has them, and cores and memory are left for them, an equal share for each
  /// device.
  int gpus_free = 0;
};

struct Partition {
  std::string name;
  bool up = true;  ///< starts jobs
  bool is_default = false;
  std::optional<Seconds> time_limit;      ///< std::nullopt: unlimited
  std::optional<int> most_nodes;          ///< per job; std::nullopt: unlimited
  bool takes_jobs = true;                 ///< new jobs can be submitted to it
  std::optional<Seconds> default_time{};  ///< of jobs that request none; std::nullopt: the limit
  int least_nodes = 0;                    ///< per job
  std::optional<int> most_cpus_per_node{};
  bool exclusive_nodes = false;  ///< jobs get whole nodes
  bool root_only = false;
  // Host memory: what jobs get that request none (the first of these that is set), and the maximum.
  std::optional<Bytes> default_memory_per_gpu{};
  std::optional<Bytes> default_memory_per_node{};
  std::optional<Bytes> default_memory_per_cpu{};
  std::optional<Bytes> most_memory_per_node{};
  std::optional<Bytes> most_memory_per_cpu{};
  std::string billing_weights{};   ///< Slurm's TRESBillingWeights, "CPU=1.0,Mem=0.25G"; empty: none
  bool needs_reservation = false;  ///< takes only jobs that name one
  std::string qos{};               ///< QOS whose limits hold for all its jobs
  // Access: only those allowed, if any are named, and none of those denied. The allowed groups are Unix groups.
  std::vector<std::string> allowed_accounts{};
  std::vector<std::string> denied_accounts{};
  std::vector<std::string> allowed_groups{};
  std::vector<std::string> allowed_qos{};
  std::vector<std::string> denied_qos{};

  /// In Slurm's words: up, down (takes jobs, starts none), drain (starts pending jobs, takes none), inactive.
  [[nodiscard]] std::string_view state() const;
};

/// Nodes that are reserved for some jobs for a time.
struct Reservation {
  std::string name;
  std::int64_t start_unix_s = 0;
  std::int64_t end_unix_s = 0;
  std::vector<std::string> nodes{};
  std::string partition{};              ///< empty: any
  std::vector<std::string> users{};     ///< who may use it; "-anna": who may not
  std::vector<std::string> accounts{};  ///< the same
  bool maintenance = false;
};

/// A group of nodes near each other, with prices of their own.
struct Zone {
  std::string name;
  std::string region;
  /// USD per device-hour by GPU type, where it differs from the catalogue.
  std::vector<std::pair<std::string, UsdPerHour>> prices;
};

/// The link between two zones, in both directions; or, from a zone to itself, between its nodes.
struct ZoneLink {
  std::string from;
  std::string to;
  /// Bandwidth of one stream between two nodes. std::nullopt: the link only says what bytes cost; their time is in the
  /// profile.
  std::optional<BytesPerSecond> bandwidth;
  Seconds latency{};  ///< only with a bandwidth
  double egress_usd_per_byte = 0.0;
};

/// The link between nodes at different leaf switches (or blocks) of a zone: one stream between two nodes.
struct SwitchLink {
  BytesPerSecond bandwidth{};
  Seconds latency{};
};

/// Nodes that Slurm has but no plan can use.
struct LeftOutNodes {
  std::vector<std::string> nodes;
  std::vector<std::string> partitions{};
  std::string reason;
  std::string remedy{};  ///< what to do about it; may be empty

  /// "left out nodes n1, n2: REASON; REMEDY"
  [[nodiscard]] std::string message() const;
};

/// Stated, not measured, bandwidths of one stream: links that neither a profile nor a ZoneLink knows are estimated from
/// them. std::nullopt: not stated.
struct StatedNetwork {
  enum class Source { file, option, assumption };
  std::optional<BytesPerSecond> between_nodes{};
  Source source = Source::file;  ///< of between_nodes: an assumption gives way to a site file
  std::optional<BytesPerSecond> within_node{};
};

struct Cluster {
  std::string name;
  std::string origin;  ///< the file, or "slurm"
  std::vector<NodeGroup> groups;
  std::vector<Partition> partitions;
  std::vector<Zone> zones;
  std::vector<ZoneLink> links;
  StatedNetwork network{};
  std::vector<Reservation> reservations;
  /// USD per device-hour by GPU type, where it differs from the catalogue.
  std::vector<std::pair<std::string, UsdPerHour>> prices;
  std::vector<LeftOutNodes> left_out{};
  std::string topology{};  ///< what NodeGroup::switches are: "tree" (leaf switches), "block"; empty: not known
  std::optional<SwitchLink> across_switches{};  ///< std::nullopt: as fast as within one, or not known

  /// Nodes left out of any of these partitions, or of all if none are given.
  [[nodiscard]] std::vector<LeftOutNodes> left_out_of(std::span<const std::string> wanted) const;
  [[nodiscard]] const Partition* find_partition(std::string_view partition) const;
  /// Groups of any of the partitions, or all if none are given, as far as a plan may use them. Under
  /// Availability::idle, mixed nodes have only what is free (devices, and their share of cores and memory), unless all
  /// of these partitions give whole nodes only.
  [[nodiscard]] std::vector<NodeGroup> usable(std::span<const std::string> wanted, Availability availability) const;
  /// The same for one partition, or all nodes if it is empty: idle nodes, or all that are up.
  [[nodiscard]] std::vector<NodeGroup> usable(std::string_view partition, bool only_idle) const;
};

/// Memory of one device of a node: the GPU's own, or the share of the host's memory of one of its cores.
Bytes device_memory(const GpuType& type, const NodeGroup& group);
/// Price of one device-hour in a zone, else in the cluster (cluster.toml or a site file), else the catalogue's.
UsdPerHour device_price(const Cluster& cluster, const GpuType& type, std::string_view zone);
/// The same without the catalogue, whose prices are only assumptions about this cluster.
std::optional<UsdPerHour> stated_price(const Cluster& cluster, const std::string& gpu, std::string_view zone);

/// cluster.toml. GPU names and aliases are looked up in the catalogue. Errors: not_found, io, invalid_input with
/// file, line, column and reason.
Result<Cluster> load_cluster(const std::filesystem::path& path, const GpuCatalogue& catalogue);
Result<Cluster> parse_cluster(std::string_view text, std::string_view source_name, const GpuCatalogue& catalogue);
/// The text of an equivalent cluster.toml, for planning elsewhere with what Slurm said here.
std::string cluster_to_toml(const Cluster& cluster);

}  // namespace sailor
