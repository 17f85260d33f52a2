// In srun, sbatch and salloc: finds the plan that a job follows, and checks it before anything is queued. Runs as the
// user who typed the command; an error ends the command.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "slurm/task_role.hpp"

namespace sailor::spank {

/// The value of --sailor-plan that cancels a plan of the enclosing job or of SAILOR_PLAN.
inline constexpr const char* no_plan = "none";
/// Variable in a job's environment: the absolute path of its plan.
inline constexpr const char* plan_variable = "SAILOR_PLAN";
/// The same variable as Slurm itself passes it on, also with --export=NONE.
inline constexpr const char* carried_variable = "SLURM_SPANK_SAILOR_PLAN";

class SubmitSide {
 public:
  /// Takes --sailor-plan=FILE. Inside a job, Slurm also passes the job's own option to srun through a variable: once
  /// for each component of a heterogeneous step, and unchanged, so that its path may be relative to another folder. The
  /// same text on srun's command line means the same plan; any other takes precedence. Errors: those of
  /// read_plan_file() for options on the command line.
  Result<void> take_option(const std::string& argument, const slurm::Lookup& environment);

  [[nodiscard]] bool has_option() const { return origin_ != Origin::nobody; }
  /// Whether there is an option that is not the enclosing job's.
  [[nodiscard]] bool has_own_option() const { return origin_ == Origin::command_line; }

  /// The plan that the job follows, absolute: the option on the command line, else SAILOR_PLAN (empty: no plan), else
  /// the enclosing job's. std::nullopt: no plan is requested, or the enclosing job said none. Errors: those of
  /// read_plan_file().
  Result<std::optional<std::filesystem::path>> settle(const slurm::Lookup& environment) const;

 private:
  enum class Origin { nobody, enclosing_job, command_line };
  Origin origin_ = Origin::nobody;
  std::string argument_{};           // as typed
  std::filesystem::path checked_{};  // absolute; of an option on the command line
};

}  // namespace sailor::spank
