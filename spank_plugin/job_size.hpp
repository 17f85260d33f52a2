// Size of the job that sbatch or salloc requests, from its command line and script: SPANK does not tell a plugin before
// the job runs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"

namespace sailor::spank {

/// Requested numbers; std::nullopt for those that are not given, or not understood here.
struct JobSize {
  std::optional<int> nodes{};  ///< max
  std::optional<int> tasks{};
  std::optional<int> tasks_per_node{};
  std::optional<int> gpus_per_node{};
  bool heterogeneous = false;  ///< several components, which are not told apart
};

/// `arguments`: without the command itself. `read` returns the text of sbatch's script, or std::nullopt if it cannot be
/// read. The command line takes precedence over the script's #SBATCH lines.
JobSize size_of_job(const std::vector<std::string>& arguments,
                    const std::function<std::optional<std::string>(const std::string& path)>& read);

/// Errors (invalid_input): this number of tasks, or GPUs, cannot hold the plan's ranks.
Result<void> check_size(const Plan& plan, const JobSize& size);

}  // namespace sailor::spank
