// The live cluster: nodes and partitions from slurmctld through libslurm.
//
// libslurm runs in a child process under a deadline: it exits on a bad configuration, and retries for a minute when it
// finds none. The caller gets an error instead, and no Slurm code runs in its process.
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
  std::filesystem::path configuration;  ///< value of SLURM_CONF; empty: libslurm's default locations
  Seconds deadline{15};                 ///< for the whole query
  std::string reservation{};            ///< its nodes do not count as reserved, for jobs in it; empty: none
  /// GPU rules for the cluster of this name, from sources other than Slurm; null: no rules. Called in the child
  /// process.
  std::function<Result<std::vector<GpuRule>>(const std::string& cluster_name)> gpu_rules{};
};

/// Checks that the file that SLURM_CONF names exists (empty: it names none): Slurm's programs and library would look
/// for it for a minute. Errors: unavailable.
Result<void> check_configuration(const std::filesystem::path& configuration);

/// Errors: unavailable (built without Slurm, no configuration, slurmctld silent), not_found (no usable node).
Result<ClusterReading> read_cluster(const GpuCatalogue& catalogue, const SlurmEnvironment& environment);

/// Expected start of a job, from slurmctld; nothing is submitted. Errors: unavailable as above; failure, with Slurm's
/// message, if it would refuse the job. Slurm does not look past reservations here: a job that would wait for the end
/// of one is refused.
Result<ExpectedStart> expected_start(const StartQuestion& question, const SlurmEnvironment& environment);

/// The partition that a user named, if jobs can be submitted to it and started in it. Errors: not_found, with the
/// known names; unavailable, when it is down, drained or inactive.
Result<Partition> require_partition(const Cluster& cluster, std::string_view name);
/// The same, but the state of the partition is not checked.
Result<Partition> known_partition(const Cluster& cluster, std::string_view name);
/// Message that a partition takes only jobs in a reservation (ReqResv).
std::string reservation_needed(std::string_view partition);
/// Message about a partition that is not up; empty if it is up.
std::string partition_problem(const Partition& partition);

/// Address of slurmctld according to slurm.conf, for messages; fields that it does not give are empty.
struct ControllerAddress {
  std::string cluster;
  std::string host;
  int port = 6817;
  /// " of cluster alps at ctl1:6817"; empty when nothing is known.
  [[nodiscard]] std::string describe() const;
};
ControllerAddress parse_controller_address(std::string_view slurm_conf);

}  // namespace sailor::slurm
