// Finds what would go wrong with a job for a plan before it waits in the queue: a list of checks, each a pure function
// of the plan, the cluster and the answers of the system (system.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/node_placement.hpp"
#include "plan/plan.hpp"
#include "preflight/outcome.hpp"
#include "preflight/program.hpp"
#include "slurm/accounting.hpp"
#include "slurm/node_records.hpp"
#include "slurm/query.hpp"
#include "slurm/site.hpp"

namespace sailor::preflight {

struct Check {
  std::string name;  ///< "partition", "nodes", ...; several checks may have the same
  Outcome outcome = Outcome::ok;
  std::string what;    ///< the reason, with the numbers
  std::string remedy;  ///< what to do about it; empty when nothing is to be done
};

/// The job that would be submitted.
struct Job {
  std::vector<std::string> partitions;  ///< at least one
  std::string account;                  ///< empty: the user's default
  std::string qos;                      ///< empty: Slurm's default
  std::optional<Seconds> time;          ///< std::nullopt: the partition's default
  std::optional<double> iterations;     ///< of the whole training
  std::string data;                     ///< path prefix; empty: not said
  std::string checkpoints;              ///< folder; empty: not said
  std::string mpi;                      ///< srun --mpi
  double memory_margin = 0.0;           ///< share of each device's memory to leave free
  std::string reservation{};            ///< reservation that the job would run in; empty: none
  TrainingProgram program{};            ///< program that it would start; without a path: not given
  std::string licenses{};               ///< as sbatch takes them; empty: none
};

/// Who submits it.
struct Identity {
  std::string user;
  bool is_root = false;
  std::vector<std::string> groups;  ///< Unix groups
};

/// What a profile store knows of a GPU type under the plan's model.
struct ProfileFacts {
  std::string gpu;
  bool measured = false;           ///< its layers were measured on such a device
  bool published = false;          ///< its layers were published
  std::optional<double> age_days;  ///< of the newest session with them
};

struct PathFacts {
  std::string path;              ///< the file, or the existing folder: the path itself or the nearest above it
  std::string problem;           ///< "does not exist", "cannot be read: ..."; empty: none
  std::optional<Bytes> size{};   ///< of data
  std::optional<Bytes> space{};  ///< free space for this user
};

/// Nodes that are needed of one kind of device.
struct Need {
  std::string gpu;   ///< name in the catalogue
  std::string zone;  ///< as the plan names it; may be empty
  int nodes = 0;
  int most_ranks = 0;                   ///< maximum on one of them
  int devices_per_node = 0;             ///< maximum over the nodes
  int cpus_per_device = 1;              ///< minimum over the nodes
  std::string gres_type;                ///< empty: not known, or no GPU
  std::vector<std::string> partitions;  ///< partitions of the job that have such nodes
};

/// Nodes of each kind that the plan takes, if all that the availability allows are free. Errors: unavailable, naming
/// what is missing.
Result<std::vector<Need>> needs_of(const Plan& plan, const Cluster& cluster, const std::vector<std::string>& partitions,
                                   Availability availability);

/// The question to slurmctld when the component of a job for a need would start.
slurm::StartQuestion start_question(const Need& need, const Job& job, const slurm::Site& site,
                                    const GpuCatalogue& gpus);
struct StartAnswer {
  Need need;
  Result<slurm::ExpectedStart> start;
};

/// Whether the framework of a plan, other than Sailor's own, can run it.
struct FrameworkAnswer {
  std::string framework{};  ///< as it is called: "Megatron-Core"
  std::string trainer{};    ///< sailor-submit --trainer; empty: Sailor starts no such jobs
  Result<void> can_run{};
};

/// Answers of the system. std::nullopt: it was not asked.
struct Answers {
  std::int64_t now_unix_s = 0;
  Identity identity;
  std::optional<Result<slurm::Accounting>> accounting;  ///< only where Slurm has accounting
  std::vector<StartAnswer> starts;
  std::optional<Result<std::vector<std::string>>> mpi_types;
  std::optional<PathFacts> data;
  std::optional<PathFacts> checkpoints;
  std::optional<Result<std::vector<ProfileFacts>>> profile;
  std::optional<double> memory_headroom;  ///< share of the tightest device's memory that stays free, by the simulator
  std::optional<Error> not_simulated{};   ///< why the simulator did not say
  std::optional<Result<ProgramAbilities>> program{};  ///< what it says that it can run; std::nullopt for the program of
                                                      ///< somebody else
  std::optional<FrameworkAnswer> framework{};  ///< of a plan that is not for sailor-train, which then is not asked
};

/// The input of all checks.
struct Subject {
  const Job& job;
  const Cluster& cluster;
  const GpuCatalogue& gpus;
  const slurm::Site& site;
  const slurm::ControllerFacts& facts;
  const std::vector<std::string>& left_out;  ///< warnings of the reader of the cluster
  const Answers& answers;
  const Plan* plan = nullptr;      ///< null: there is none, see `no_plan`
  const Model* model = nullptr;    ///< of the plan
  std::optional<Error> no_plan{};  ///< why there is none
};

/// All checks, in the order in which a job would meet them.
std::vector<Check> run_checks(const Subject& subject);

// The checks one by one.
std::vector<Check> check_partitions(const Subject& subject);
std::vector<Check> check_access(const Subject& subject);
std::vector<Check> check_limits(const Subject& subject);
std::vector<Check> check_nodes(const Subject& subject);
std::vector<Check> check_gres(const Subject& subject);
std::vector<Check> check_licenses(const Subject& subject);
std::vector<Check> check_components(const Subject& subject);
std::vector<Check> check_program(const Subject& subject);
std::vector<Check> check_profile(const Subject& subject);
std::vector<Check> check_memory(const Subject& subject);
std::vector<Check> check_time(const Subject& subject);
std::vector<Check> check_reservations(const Subject& subject);
std::vector<Check> check_start(const Subject& subject);
std::vector<Check> check_paths(const Subject& subject);
std::vector<Check> check_communicators(const Subject& subject);
std::vector<Check> check_mpi(const Subject& subject);

/// Why the partition takes no jobs of this user; empty if it does, as far as is known.
std::string access_problem(const Partition& partition, const Identity& identity, const std::string& account,
                           const std::string& qos);

/// The worst outcome; checks that were not made are ignored.
Outcome worst(const std::vector<Check>& checks);

/// A line per check, remedies below theirs, and a line that counts them.
std::string report(const std::vector<Check>& checks);

}  // namespace sailor::preflight
