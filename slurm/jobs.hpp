// Jobs through Slurm's own commands: sbatch, scontrol, sacct, scancel. Their output in these forms has been stable
// for many releases, and they know the site's plugins and wrappers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::slurm {

struct JobHandle {
  std::uint32_t id = 0;
  std::string cluster;  ///< only if sbatch gave it, in a federation
  int array_task = -1;  ///< task of a job array; -1: the whole job

  /// "12", or "12_3"
  [[nodiscard]] std::string name() const;
};

/// Submits a script with sbatch, from `working_directory`. `shows_script`: the command that shows it. Errors:
/// invalid_input (sbatch refused it, in its words; there is no job), unavailable (no sbatch in PATH, or its answer was
/// lost: there may be a job), failure (no slurmctld was reached, or sbatch gave no id).
Result<JobHandle> submit(const std::filesystem::path& script, const std::filesystem::path& working_directory,
                         std::string_view shows_script = "sailor-submit --dry-run");

/// `sbatch --test-only`: when and where the script would start, in Slurm's words; nothing is submitted.
Result<std::string> test_submission(const std::string& script_text);

/// Max tasks of a job array: MaxArraySize, or max_array_tasks of SchedulerParameters. std::nullopt if not known.
std::optional<std::size_t> most_array_tasks();
/// The same from `scontrol show config`.
std::optional<std::size_t> parse_most_array_tasks(std::string_view configuration);

/// Whether this Slurm has Sailor's SPANK plugin: sbatch then knows --sailor-plan.
bool has_plugin();

enum class JobPhase { pending, running, succeeded, failed };

struct JobStatus {
  JobPhase phase = JobPhase::pending;
  std::string state;          ///< "PENDING", "COMPLETED", "TIMEOUT", ... as Slurm writes it
  std::string reason;         ///< why it is pending or ended; empty: Slurm gives none
  int exit_code = 0;          ///< of the batch script
  int exit_signal = 0;        ///< signal that ended the batch script
  std::string nodes;          ///< "gh[1-2]"; empty while it is pending
  std::filesystem::path log;  ///< stdout of the job; empty when unknown

  [[nodiscard]] bool ended() const { return phase == JobPhase::succeeded || phase == JobPhase::failed; }
  /// "PENDING (Resources)", "RUNNING on gh[1-2]", "FAILED, exit code 1 (NonZeroExitCode)"
  [[nodiscard]] std::string describe() const;
};

/// Status from slurmctld, or from accounting once slurmctld has forgotten the job. Errors: not_found, unavailable.
Result<JobStatus> job_status(const JobHandle& job);

struct WaitOptions {
  Seconds first_pause{0.5};                           ///< between two queries; grows by half each time,
  Seconds longest_pause{15};                          ///< up to this: slurmctld serves all users
  Seconds patience{300};                              ///< how long slurmctld may fail to answer
  std::function<void(const JobStatus&)> on_answer{};  ///< called with every status; may be empty
  std::function<bool()> is_cancelled{};               ///< polled ten times a second; empty: never
};
/// Polls until the job has ended. `on_change` is called with every status that differs from the one before. Errors:
/// those of job_status(); failure, with the commands that follow and end the job, if `is_cancelled` says so.
Result<JobStatus> wait_for(const JobHandle& job, const std::function<void(const JobStatus&)>& on_change,
                           const WaitOptions& options = {});

Result<void> cancel(const JobHandle& job);

/// A line of `scontrol -o show job`.
Result<JobStatus> parse_scontrol_job(std::string_view line);
/// A line of `sacct -n -P -X -o State,ExitCode,NodeList`.
Result<JobStatus> parse_sacct_job(std::string_view line);

/// The last lines of a log, for messages; empty when there is none to read.
std::vector<std::string> last_lines(const std::filesystem::path& log, std::size_t most);

}  // namespace sailor::slurm
