// The option table of sailor-sweep, and its values, parsed once.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "apps/options.hpp"
#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::apps::sweep {

/// Part `number` of `of` parts of the points: those with index % of == number.
struct Part {
  std::size_t number = 0;
  std::size_t of = 1;
};

/// Runs the points as a job array instead of processes on this machine.
struct SlurmChoice {
  std::string partition{};
  std::string account{};
  std::string qos{};
  std::optional<Seconds> time_limit{};
  int tasks = 0;  ///< 0: one task per point, max 64
  int array_limit = 0;
  int cpus_per_task = 1;
  bool wait = false;
};

struct SweepChoices {
  std::filesystem::path experiment{};
  std::filesystem::path folder{};   ///< empty: the experiment's name, in the working directory
  std::filesystem::path program{};  ///< sailor-plan
  int jobs = 1;
  Part part{};
  bool again = false;
  bool dry_run = false;
  std::string format{};
  std::optional<SlurmChoice> slurm{};
};

struct SweepOptions : CommonOptions {
  OptionValue<std::string> experiment, output, part, sailor_plan, format, gpus;
  OptionValue<int> jobs;
  OptionValue<bool> again, dry_run;
  // Job array
  OptionValue<bool> slurm, wait;
  OptionValue<std::string> partition, account, qos, time;
  OptionValue<int> array_tasks, array_limit, cpus_per_task;
};

CommandLine sweep_command_line(SweepOptions& options);
/// Errors: usage.
Result<SweepChoices> read_choices(const SweepOptions& options);

}  // namespace sailor::apps::sweep
