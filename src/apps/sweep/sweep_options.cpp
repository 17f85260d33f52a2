#include "apps/sweep/sweep_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "apps/programs.hpp"
#include "core/affinity.hpp"
#include "slurm/words.hpp"

namespace sailor::apps::sweep {

namespace {

namespace fs = std::filesystem;

/// Options that only --slurm reads.
Result<Part> read_part(const std::string& text) {
  Part part;
  const char* end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, part.number);
  const bool slash = number.ec == std::errc() && number.ptr != end && *number.ptr == '/';
  const auto of = slash ? std::from_chars(number.ptr + 1, end, part.of) : number;
  if (!slash || of.ec != std::errc() || of.ptr != end || part.of == 0 || part.number >= part.of)
    return fail(ErrorCode::usage, fmt::format("--part '{}' is no part of the points", text),
                "write K/N, K from 0 to N - 1: 0/4 is the first of four");
  return part;
}

/// The program of this name in the folder of this program.
fs::path beside(const std::string& name) {
  std::error_code code;
  const fs::path here = fs::read_symlink("/proc/self/exe", code).parent_path() / name;
  return !code && fs::exists(here, code) ? here : fs::path(name);
}

}  // namespace

CommandLine sweep_command_line(SweepOptions& options) {
  Option partition = shared::partition();
  partition.group = "Job array";
  Option account = shared::account();
  account.group = "Job array";
  Option time = shared::time_limit();
  time.group = "Job array";
  time.help = "time limit of a task as Slurm writes it: minutes, H:MM:SS, D-HH or D-HH:MM:SS";
  Option format = shared::format();
  format.choices = {"table", "json", "csv"};
  Option output = shared::output();
  output.value_name = "FOLDER";
  output.help =
      "folder of the sweep: a file for each finished point, NAME.h5 and NAME.csv [default: the experiment's name]";
  return {
      .program = "sailor-sweep",
      .purpose = purpose_of("sailor-sweep"),
      .positionals = {positional(options.experiment,
                                 {.name = "EXPERIMENT", .help = "what to run (experiments/*.toml)"})},
      .options = {option(options.output, output),
                  option(options.jobs, {.name = "jobs",
                                        .letter = 'j',
                                        .value_name = "N",
                                        .help = "points at the same time, each a process of sailor-plan [default: one "
                                                "for each core that this process may use]",
                                        .minimum = 1,
                                        .maximum = 4096}),
                  option(options.again, {.name = "again", .help = "do finished points again, too"}),
                  option(
                      options.dry_run,
                      {.name = "dry-run",
                       .help = "list the points, and which of them are finished; with --slurm print the job script"}),
                  option(options.part, {.name = "part",
                                        .value_name = "K/N",
                                        .help = "only every N-th point, from point K on (counted from 0); writes no "
                                                "tables, a call without it does"}),
                  option(options.sailor_plan,
                         {.name = "sailor-plan",
                          .value_name = "PROGRAM",
                          .help = "the planner to run [default: sailor-plan beside this program]"}),
                  option(options.gpus, shared::gpus_file()), option(options.format, format),
                  option(options.slurm, {.name = "slurm",
                                         .help = "submit the points as a job array, and print the job's id; the same "
                                                 "command without --slurm then writes the tables",
                                         .group = "Job array"}),
                  option(options.partition, partition), option(options.account, account),
                  option(options.qos, {.name = "qos",
                                       .value_name = "NAME",
                                       .help = "quality of service [default: Slurm's]",
                                       .group = "Job array"}),
                  option(options.time, time),
                  option(options.array_tasks,
                         {.name = "array-tasks",
                          .value_name = "N",
                          .help = "tasks among which the points are divided [default: one for each point, at most 64]",
                          .minimum = 1,
                          .maximum = 100000,
                          .group = "Job array"}),
                  option(options.array_limit, {.name = "array-limit",
                                               .value_name = "N",
                                               .help = "tasks that run at the same time, at most [default: all]",
                                               .minimum = 1,
                                               .maximum = 100000,
                                               .group = "Job array"}),
                  option(options.cpus_per_task, {.name = "cpus-per-task",
                                                 .value_name = "N",
                                                 .help = "cores of a task",
                                                 .default_value = "2",
                                                 .minimum = 1,
                                                 .maximum = 4096,
                                                 .group = "Job array"}),
                  option(options.wait, {.name = "wait",
                                        .help = "wait for the end of the job array, then write the tables",
                                        .group = "Job array"})},
      .examples = {{"sailor-sweep experiments/fig7.toml",
                    "all points of figure 7, into fig7/fig7.h5 and fig7/fig7.csv"},
                   {"sailor-sweep experiments/fig7.toml --dry-run", "which points there are, and which are finished"},
                   {"sailor-sweep experiments/scale.toml --slurm -p normal --array-limit 8",
                    "the same as a job array, eight tasks at a time"}},
      .exit_statuses = {{0, "every point has an answer"},
                        {1, "failure, also of a point"},
                        {2, "wrong usage"},
                        {3, "no point has a plan"}},
      .notes =
          "A sweep that was interrupted goes on where it was when it is called again; points that failed are tried "
          "again."};
}

Result<SweepChoices> read_choices(const SweepOptions& options) {
  SweepChoices choices{.experiment = *options.experiment,
                       .folder = *options.output,
                       .again = *options.again,
                       .dry_run = *options.dry_run,
                       .format = *options.format};
  std::error_code code;
  choices.program = options.sailor_plan.has() ? fs::path(*options.sailor_plan) : beside("sailor-plan");
  if (choices.program.has_parent_path()) choices.program = fs::absolute(choices.program, code);
  if (fs::is_directory(choices.program, code))
    return fail(ErrorCode::usage, fmt::format("--sailor-plan '{}' is a folder", choices.program.string()),
                "name the program in it");
  choices.jobs =
      options.jobs.has() ? *options.jobs : static_cast<int>(std::max<std::size_t>(allowed_cores().size(), 1));
  if (options.part.has()) {
    const auto part = read_part(*options.part);
    if (!part) return fail(part.error());
    choices.part = *part;
  }
  if (!*options.slurm) {
    for (const auto* option :
         OptionList{&options.partition, &options.account, &options.qos, &options.time, &options.array_tasks,
                    &options.array_limit, &options.cpus_per_task, &options.wait})
      if (option->typed())
        return fail(ErrorCode::usage, fmt::format("--{} is about a job array", option->name()), "add --slurm");
    return choices;
  }
  for (const auto* option : OptionList{&options.jobs, &options.part})
    if (option->given())
      return fail(ErrorCode::usage, fmt::format("--{} is about points that run here", option->name()),
                  "leave out --slurm");
  SlurmChoice slurm{.partition = *options.partition,
                    .account = *options.account,
                    .qos = *options.qos,
                    .tasks = *options.array_tasks,
                    .array_limit = *options.array_limit,
                    .cpus_per_task = *options.cpus_per_task,
                    .wait = *options.wait};
  if (options.time.has()) {
    const auto time = slurm::parse_time_limit(*options.time);
    if (!time) return fail(ErrorCode::usage, "--time: " + time.error().what, time.error().hint);
    slurm.time_limit = *time;
  }
  choices.slurm = std::move(slurm);
  return choices;
}

}  // namespace sailor::apps::sweep
