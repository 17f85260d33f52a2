// The batch script that runs a plan: a pure function of plan and request. Every word a user chose is quoted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::slurm {

struct SbatchRequest {
  // What Slurm is asked for
  std::string job_name = "sailor";
  std::string partition;                     ///< empty: Slurm's default
  std::string account;                       ///< empty: the user's default
  std::optional<Seconds> time_limit;         ///< none: the partition's default
  DeviceKind device_kind = DeviceKind::gpu;  ///< of the plan's device type
  std::string gres_type;                     ///< "gh200", where a partition holds several GPU types; empty: any
  int devices_per_node = 0;                  ///< GPUs, or cores for a CPU plan; must be given
  int cpus_per_rank = 1;
  std::optional<Bytes> memory_per_cpu;     ///< host memory; none: the partition's default
  std::vector<std::string> extra_options;  ///< "--qos=high": further #SBATCH lines

  // What is run
  std::filesystem::path run_directory;  ///< absolute; the job runs there
  std::filesystem::path plan_path;      ///< absolute
  std::filesystem::path log_path;  ///< absolute, Slurm's patterns such as %j allowed; empty: RUN_DIRECTORY/slurm-%j.out
  std::filesystem::path program = "sailor-train";
  std::filesystem::path models_folder;  ///< empty: the program's own
  std::string data;                     ///< prefix of the data files
  std::filesystem::path run_file;       ///< measurements; empty: RUN_DIRECTORY/run-JOBID.h5, one per job
  std::int64_t iterations = 0;
  std::optional<double> learning_rate;       ///< none: the program's default
  std::optional<std::int64_t> seed;          ///< none: the program's default
  std::vector<std::string> extra_arguments;  ///< "--weight-decay=0": further arguments of the program
  std::string mpi = "pmix";                  ///< srun --mpi
  std::vector<std::pair<std::string, std::string>> environment;  ///< exported before the program starts
};

/// Errors: unavailable, for plans over several device types, zones or partitions.
Result<void> check_uniform(const Plan& plan);

/// How the ranks of a plan lie on nodes that all have the same number of devices: in the plan's order, so many on each.
struct TaskLayout {
  int nodes = 0;
  int tasks_per_node = 0;
  bool packed = false;  ///< the last node has fewer; otherwise all have tasks_per_node
};

/// The placement that nodes_of_ranks() gives, and that the simulator assumed, if srun can be told to make it. Errors:
/// unavailable, when tensor-parallel groups leave gaps that differ from node to node.
Result<TaskLayout> lay_out_tasks(const Plan& plan, int devices_per_node);

/// The script. Errors: invalid_input (a plan that is not the model's, a name, path or option that is impossible),
/// unavailable (plans over several device types or partitions).
Result<std::string> sbatch_script(const Plan& plan, const Model& model, const SbatchRequest& request);

}  // namespace sailor::slurm
