// Facts of a rank about itself, its GPUs and its node, for sailor-check. Plain structs, which are sent to rank 0 as
// JSON. What could not be found out is std::nullopt or empty, and listed in RankFacts::unknown with the reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::preflight {

/// A GPU as its driver describes it.
struct GpuFacts {
  std::string name{};    ///< "NVIDIA GH200 120GB"
  std::string uuid{};    ///< "GPU-..."
  std::string bus_id{};  ///< "0000:01:00.0"
  std::optional<Bytes> memory_total{};
  std::optional<Bytes> memory_used{};
  std::optional<double> temperature_celsius{};
  std::optional<double> clock_hz{};
  std::optional<double> highest_clock_hz{};
  std::optional<std::int64_t> throttle_reasons{};         ///< bits of nvmlClocksThrottleReasons
  std::optional<std::int64_t> uncorrected_errors{};       ///< ECC, since the driver was loaded
  std::optional<std::int64_t> uncorrected_errors_ever{};  ///< ECC, of the GPU's life
  std::optional<std::int64_t> retired_pages{};
  std::optional<std::int64_t> remapped_rows{};
  std::optional<bool> repair_pending{};        ///< pages or rows will be retired or remapped at the next reset
  std::optional<bool> repair_failed{};         ///< no spare row was left
  std::optional<std::int64_t> compute_mode{};  ///< 0 default, 1 and 3 exclusive, 2 prohibited
  std::optional<std::int64_t> processes{};     ///< number of processes that compute on it now
  std::optional<bool> mig{};                   ///< divided into instances
  std::optional<bool> mig_pending{};           ///< the same after the next reset
  std::optional<double> power_limit_watts{};   ///< current limit, whoever set it
  std::optional<double> default_power_limit_watts{};
  std::optional<std::int64_t> nvlinks_up{};
  std::optional<std::int64_t> pcie_lanes{};               ///< current lanes of its link
  std::optional<std::int64_t> highest_pcie_lanes{};       ///< maximum of GPU and node together
  std::optional<std::int64_t> highest_pcie_generation{};  ///< likewise; idle links are slower
  std::optional<std::int64_t> unreadable_peers{};         ///< other GPUs of the node whose memory it cannot read
  std::vector<int> cores{};                               ///< near it; empty: the system does not say
  std::vector<std::string> xids{};                        ///< lines of the kernel log: "Xid (PCI:0000:01:00): 79, ..."
};

/// A network card, or a port of one.
struct NetworkPort {
  std::string name{};  ///< "hsn0", "mlx5_0/1", "cxi0"
  std::string kind{};  ///< "ethernet", "infiniband", "slingshot"
  bool is_up = false;
  double bits_per_s = 0.0;  ///< 0: the system does not say
};

/// A network as libfabric can use it.
struct FabricProvider {
  std::string name{};                  ///< "cxi", "tcp;ofi_rxm"
  std::vector<std::string> domains{};  ///< its cards: "cxi0", ...
};

struct Space {
  std::string what{};  ///< "/tmp", "working directory"
  std::string path{};
  Bytes free{};
  bool can_write = false;
};

struct Variable {
  std::string name{};
  std::string wanted{};  ///< value that the site wants
  std::optional<std::string> value{};
};

/// A named value that should be the same everywhere.
struct Version {
  std::string name{};  ///< "kernel", "driver", "NCCL"
  std::string value{};
};

/// A check that could not be made, and why.
struct Unknown {
  std::string check{};
  std::string why{};
};

/// What the plan expects of the rank.
struct PlannedRank {
  std::string gpu{};  ///< name in the catalogue
  bool on_gpu = false;
  int pipeline = 0;
  int stage = 0;
  int tensor_parallel_index = 0;
  std::optional<Bytes> memory{};  ///< of its device: the plan's prediction, largest over ranks
};

/// Speed of the rank while all others worked too.
struct RankSpeed {
  double flop_per_s = 0.0;       ///< matrix products, per second of wall time
  double flop_per_cpu_s = 0.0;   ///< per second that it had a core; 0 on a GPU
  double bytes_per_s = 0.0;      ///< copies within its memory, read and written
  double bytes_per_cpu_s = 0.0;  ///< per second that it had a core
  double core_share = 1.0;       ///< share of the time that it had a core; 1 on a GPU
};

/// Write speed of the rank's node while all others wrote too.
struct WriteSpeed {
  std::string folder{};
  Bytes amount{};
  double bytes_per_s = 0.0;  ///< until it was stored (fsync); 0 after a problem
  std::string problem{};     ///< empty: none
};

struct RankFacts {
  int rank = 0;
  int local_rank = 0;  ///< index within the ranks of its node
  std::string host{};
  std::string node{};       ///< Slurm's name; else the host's
  std::string gres_type{};  ///< that slurm.conf assigns to the node: "gh200"; "-": no GPU; empty: not known

  std::string cpu{};
  int cores_online = 0;                                  ///< of the node
  std::vector<int> cores{};                              ///< cores that the rank may run on
  std::vector<int> numa_nodes{};                         ///< of these cores
  int numa_nodes_with_cores = 0;                         ///< of the node
  std::vector<int> memory_nodes{};                       ///< NUMA nodes of this machine that have memory
  std::optional<std::vector<int>> bound_memory_nodes{};  ///< nodes that the rank's memory is bound to (numactl
                                                         ///< --membind)
  std::optional<double> highest_clock_hz{};              ///< maximum of the hardware
  std::optional<double> allowed_clock_hz{};              ///< maximum that the system permits
  std::optional<std::int64_t> thermal_throttles{};       ///< of the rank's cores since the node started
  std::optional<std::int64_t> throttles_while_measuring{};
  std::optional<std::int64_t> corrected_memory_errors{};  ///< EDAC, since the node started
  std::optional<std::int64_t> uncorrected_memory_errors{};
  std::optional<double> busy_cores{};  ///< of the node, while all ranks slept
  std::optional<Bytes> memory_total{};
  std::optional<Bytes> memory_available{};

  std::optional<std::string> visible_gpus{};   ///< CUDA_VISIBLE_DEVICES
  std::optional<std::string> step_gpus{};      ///< SLURM_STEP_GPUS: GPUs of the step on this node
  std::optional<std::int64_t> gpus_of_job{};   ///< SLURM_GPUS_ON_NODE: number that the job has on this node
  std::optional<std::int64_t> gpus_of_node{};  ///< number that the driver has, whoever may use them
  bool has_driver = false;                     ///< whether NVIDIA's driver is there
  bool by_nvml = false;                        ///< whether `gpus` are those that the rank may use; else all of the node
  std::vector<GpuFacts> gpus{};                ///< in the order of their numbers

  std::vector<NetworkPort> ports{};
  std::optional<std::vector<FabricProvider>> providers{};  ///< one rank per node asks
  std::vector<Space> spaces{};
  std::vector<Version> versions{};
  std::vector<Variable> variables{};  ///< those that the site wants, and MPICH_GPU_SUPPORT_ENABLED
  std::optional<PlannedRank> planned{};
  std::string plan_problem{};  ///< why the plan has no place for it
  std::optional<RankSpeed> speed{};
  std::optional<WriteSpeed> writing{};  ///< one rank per node writes
  std::vector<Unknown> unknown{};
};

/// One object with the unit in every name that has one: "memory_total_bytes".
std::string to_json_text(const RankFacts& facts);
/// Errors: invalid_input.
Result<RankFacts> rank_facts_from_json(const std::string& text);

}  // namespace sailor::preflight
