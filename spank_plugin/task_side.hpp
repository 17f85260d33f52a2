// A task of a job that asked for a plan, between fork and exec in slurmstepd: finds its place in the plan and sets up
// its environment and cores. Runs as the user; an error ends the task, and with it the job step.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "slurm/task_role.hpp"
#include "spank_plugin/arguments.hpp"

namespace sailor::spank {

/// What slurmstepd knows of a task and does for it.
struct TaskHost {
  slurm::Lookup variable;  ///< of the task's environment
  std::function<Result<void>(const std::string& name, const std::string& value)> set_variable;
  uid_t user = 0;  ///< who owns the job
};

/// Which task reports an error that many tasks hit alike.
enum class Teller {
  each_task,
  first_task_of_node,
  first_task,
};

struct Refusal {
  Error error;
  Teller teller = Teller::each_task;
  /// Whether the task with this environment reports the error; true if the environment does not give its number.
  [[nodiscard]] bool told_by(const slurm::Lookup& environment) const;
};

/// Messages about a task that has its place in the plan.
struct Prepared {
  std::string warning{};               ///< what the user should know; empty: nothing
  std::vector<std::string> details{};  ///< for the log: "rank 5 of 8: ..."
};

/// Finds the task's place in the plan, and sets its variables and cores; everything is checked before anything is
/// changed. `option`: the value of --sailor-plan that came with the step, if any. Returns messages for user and log, or
/// why the task must not start.
tl::expected<Prepared, Refusal> prepare_task(const TaskHost& task, const Arguments& arguments,
                                             const std::optional<std::string>& option);

/// The site's variables: TOML, NAME = "value". Errors: not_found, io, invalid_input with file, line and column.
Result<std::vector<std::pair<std::string, std::string>>> read_site_environment(const std::filesystem::path& file);

}  // namespace sailor::spank
