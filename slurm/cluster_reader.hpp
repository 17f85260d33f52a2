// The live cluster: nodes and partitions from slurmctld through libslurm.
//
// libslurm runs in a child process under a deadline: it ends its process when it dislikes its configuration, and
// retries for a minute when it finds none. The caller gets an error instead, and nothing of Slurm in its process.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "slurm/gpu_rules.hpp"
#include "slurm/node_records.hpp"
#include "slurm/query.hpp"

namespace sailor::slurm {

/// How to reach Slurm; from the environment, captured in main.
struct SlurmEnvironment {
  std::filesystem::path configuration;  ///< value of SLURM_CONF; empty: libslurm's own places
  Seconds deadline{15};                 ///< for the whole query
  std::string reservation{};            ///< whose nodes are not taken by it, for jobs in it; empty: none
  /// What GPUs its nodes have, by what is known beside Slurm of the cluster of this name; null: nothing. Called in the
  /// child.
  std::function<Result<std::vector<GpuRule>>(const std::string& cluster_name)> gpu_rules{};
};

/// Whether Slurm's programs and library would find the file that SLURM_CONF names (empty: it names none): they look for
/// it for a minute. Errors: unavailable.
Result<void> check_configuration(const std::filesystem::path& configuration);

/// Errors: unavailable (built without Slurm, no configuration, slurmctld silent), not_found (no usable node).
Result<ClusterReading> read_cluster(const GpuCatalogue& catalogue, const SlurmEnvironment& environment);

/// When a job would start, from slurmctld; nothing is submitted. Errors: unavailable as above; failure, with Slurm's
/// words, when it would refuse the job. Slurm does not look past reservations here: a job that would wait for the end
/// of one is refused.
Result<ExpectedStart> expected_start(const StartQuestion& question, const SlurmEnvironment& environment);

/// The partition that a user named, if jobs can be submitted to it and started in it. Errors: not_found, with the
/// known names; unavailable, when it is down, drained or inactive.
Result<Partition> require_partition(const Cluster& cluster, std::string_view name);
/// The same but for its state.
Result<Partition> known_partition(const Cluster& cluster, std::string_view name);
/// That a partition takes only jobs in a reservation (ReqResv).
std::string reservation_needed(std::string_view partition);
/// What is to be said of a partition that is not up; empty when it is.
std::string partition_problem(const Partition& partition);

/// What slurm.conf says about where slurmctld is, for messages; empty fields when it does not say.
struct ControllerAddress {
  std::string cluster;
  std::string host;
  int port = 6817;
  /// " of cluster alps at ctl1:6817"; empty when nothing is known.
  [[nodiscard]] std::string describe() const;
};
ControllerAddress parse_controller_address(std::string_view slurm_conf);

}  // namespace sailor::slurm
