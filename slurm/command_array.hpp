// Batch script of a job array whose tasks run one program with different arguments, each on one node: planner sweeps.
// Scripts that run a plan are written by sbatch.hpp.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::slurm {

struct CommandArray {
  std::string job_name{};
  std::string comment{};    ///< first line of the script, for people
  std::string partition{};  ///< empty: Slurm's default
  std::string account{};    ///< likewise
  std::string qos{};
  std::string reservation{};
  std::optional<Seconds> time_limit{};  ///< of a task; none: the partition's default
  int tasks = 1;
  int array_limit = 0;  ///< max tasks that run at once; 0: all
  int cpus_per_task = 1;
  std::optional<Bytes> memory_per_task{};   ///< none: the partition's default
  std::filesystem::path working_directory;  ///< absolute
  std::filesystem::path log_path;           ///< absolute, Slurm's patterns such as %A allowed
  std::vector<std::string> command{};       ///< program and arguments
  /// Last argument, expanded by bash in the task: "--part=$SLURM_ARRAY_TASK_ID/8". Not escaped: it comes from Sailor.
  std::string task_argument{};
};

/// Errors: invalid_input (a name, path or number that is impossible).
Result<std::string> command_array_script(const CommandArray& request);

}  // namespace sailor::slurm
