// srun, sbatch and salloc: which plan a job is to follow, and whether it is one, before anything is queued. Runs as the
// user who typed the command; an error ends the command.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "slurm/task_role.hpp"

namespace sailor::spank {

/// The value of --sailor-plan that takes a plan back: of the enclosing job, or of SAILOR_PLAN.
inline constexpr const char* no_plan = "none";
/// In a job's environment: its plan, absolute.
inline constexpr const char* plan_variable = "SAILOR_PLAN";
/// The same as Slurm itself carries it, also through --export=NONE.
inline constexpr const char* carried_variable = "SLURM_SPANK_SAILOR_PLAN";

class SubmitSide {
 public:
  /// --sailor-plan=FILE. Inside a job srun meets the job's own option, in a variable and as it was typed, perhaps in
  /// another folder: once for each component of a heterogeneous step. The same words on its command line mean the same
  /// plan; others count more. Errors: those of read_plan_file() for options on the command line.
  Result<void> take_option(const std::string& argument, const slurm::Lookup& environment);

  [[nodiscard]] bool has_option() const { return origin_ != Origin::nobody; }
  /// And it is not that of an enclosing job.
  [[nodiscard]] bool has_own_option() const { return origin_ == Origin::command_line; }

  /// The plan that the job follows, absolute: the option on the command line, else SAILOR_PLAN (empty: no plan), else
  /// the enclosing job's. Nothing: nobody asked for one. Errors: those of read_plan_file().
  Result<std::optional<std::filesystem::path>> settle(const slurm::Lookup& environment) const;

 private:
  enum class Origin { nobody, enclosing_job, command_line };
  Origin origin_ = Origin::nobody;
  std::string argument_{};           // as typed
  std::filesystem::path checked_{};  // absolute; of an option on the command line
};

}  // namespace sailor::spank
