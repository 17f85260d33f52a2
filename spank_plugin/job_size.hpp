// What an sbatch or salloc asks for, by its command line and script: SPANK does not tell a plugin before the job runs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"

namespace sailor::spank {

/// As far as it is said; what is said in a way that is not understood here counts as not said.
struct JobSize {
  std::optional<int> nodes{};  ///< at most
  std::optional<int> tasks{};
  std::optional<int> tasks_per_node{};
  std::optional<int> gpus_per_node{};
  bool heterogeneous = false;  ///< of several components, which are not told apart
};

/// `arguments` without the command itself. `read` gives the text of a file, or nothing: of sbatch's script, whose
/// #SBATCH lines count less than the command line.
JobSize size_of_job(const std::vector<std::string>& arguments,
                    const std::function<std::optional<std::string>(const std::string& path)>& read);

/// Errors (invalid_input): so many tasks, or GPUs, cannot hold the plan's ranks.
Result<void> check_size(const Plan& plan, const JobSize& size);

}  // namespace sailor::spank
