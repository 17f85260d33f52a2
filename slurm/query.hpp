// The calls into libslurm. Only the child processes of cluster_reader.cpp make them: they may hang, and may exit().
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

struct ControllerAnswer {
  std::string cluster_name;
  std::vector<Partition> partitions;
  std::vector<NodeRecord> nodes;
  /// Nodes that partitions have and slurmctld does not show, with their partitions.
  std::map<std::string, std::vector<std::string>> hidden_nodes{};
  std::vector<Reservation> reservations;
  ControllerFacts facts;
  bool switches_known = true;         ///< false: ask `scontrol show topology` for them
  std::string topology{};             ///< kind of the switches: "tree"; empty: none
  std::vector<std::string> warnings;  ///< about what it did not report
};

/// A job that might be submitted: when would it start?
struct StartQuestion {
  std::string partition;  ///< also several, with commas; empty: the default
  std::string account;    ///< empty: the user's default
  std::string qos;
  std::string constraint;
  std::string reservation;
  int nodes = 1;
  int tasks_per_node = 1;
  int cpus_per_task = 1;
  int gpus_per_node = 0;
  std::string gres_type;              ///< empty: any
  std::optional<Seconds> time_limit;  ///< none: the partition's default
  bool exclusive_nodes = false;
};

/// What slurmctld answers to a StartQuestion.
struct ExpectedStart {
  std::int64_t start_unix_s = 0;
  std::string nodes;  ///< "gh[1-2]"
};

/// True if this build has libslurm.
bool has_libslurm();

/// Asks slurmctld. `configuration` is a path, or empty for libslurm's default locations; nodes of `reservation` have
/// the state that a job in it finds. Errors: unavailable when slurmctld does not answer, failure when it refuses.
Result<ControllerAnswer> query_controller(const std::filesystem::path& configuration, const std::string& reservation);

/// Asks slurmctld when a job would start; nothing is submitted. Errors: as above; `failure` with Slurm's message when
/// it would refuse the job.
Result<ExpectedStart> query_start(const std::filesystem::path& configuration, const StartQuestion& question);

}  // namespace sailor::slurm
