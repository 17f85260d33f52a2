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
constexpr const char* options_of_slurm[] = {"partition",   "account",     "qos",           "time",
                                            "array-tasks", "array-limit", "cpus-per-task", "wait"};

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

CommandLine sweep_command_line() {
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
      .positionals = {{.name = "EXPERIMENT", .help = "what to run (experiments/*.toml)"}},
      .options =
          {output,
           {.name = "jobs",
            .letter = 'j',
            .type = OptionType::integer,
            .value_name = "N",
            .help = "points at the same time, each a process of sailor-plan [default: one for each core that this "
                    "process may use]",
            .minimum = 1,
            .maximum = 4096},
           {.name = "again", .type = OptionType::flag, .help = "do finished points again, too"},
           {.name = "dry-run",
            .type = OptionType::flag,
            .help = "list the points, and which of them are finished; with --slurm print the job script"},
           {.name = "part",
            .value_name = "K/N",
            .help =
                "only every N-th point, from point K on (counted from 0); writes no tables, a call without it does"},
           {.name = "sailor-plan",
            .value_name = "PROGRAM",
            .help = "the planner to run [default: sailor-plan beside this program]"},
           shared::gpus_file(),
           format,
           {.name = "slurm",
            .type = OptionType::flag,
            .help = "submit the points as a job array, and print the job's id; the same command without --slurm then "
                    "writes the tables",
            .group = "Job array"},
           partition,
           account,
           {.name = "qos", .value_name = "NAME", .help = "quality of service [default: Slurm's]", .group = "Job array"},
           time,
           {.name = "array-tasks",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "tasks among which the points are divided [default: one for each point, at most 64]",
            .minimum = 1,
            .maximum = 100000,
            .group = "Job array"},
           {.name = "array-limit",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "tasks that run at the same time, at most [default: all]",
            .minimum = 1,
            .maximum = 100000,
            .group = "Job array"},
           {.name = "cpus-per-task",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "cores of a task",
            .default_value = "2",
            .minimum = 1,
            .maximum = 4096,
            .group = "Job array"},
           {.name = "wait",
            .type = OptionType::flag,
            .help = "wait for the end of the job array, then write the tables",
            .group = "Job array"}},
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

Result<SweepChoices> read_choices(const Options& options) {
  SweepChoices choices{.experiment = options.positional("EXPERIMENT").front(),
                       .folder = options.text("output"),
                       .again = options.flag("again"),
                       .dry_run = options.flag("dry-run"),
                       .format = options.text("format")};
  std::error_code code;
  choices.program = options.has("sailor-plan") ? fs::path(options.text("sailor-plan")) : beside("sailor-plan");
  if (choices.program.has_parent_path()) choices.program = fs::absolute(choices.program, code);
  choices.jobs = options.has("jobs") ? static_cast<int>(options.integer("jobs"))
                                     : static_cast<int>(std::max<std::size_t>(allowed_cores().size(), 1));
  if (options.has("part")) {
    const auto part = read_part(options.text("part"));
    if (!part) return fail(part.error());
    choices.part = *part;
  }
  if (!options.flag("slurm")) {
    for (const char* option : options_of_slurm)
      if (options.typed(option))
        return fail(ErrorCode::usage, fmt::format("--{} is about a job array", option), "add --slurm");
    return choices;
  }
  for (const char* option : {"jobs", "part"})
    if (options.given(option))
      return fail(ErrorCode::usage, fmt::format("--{} is about points that run here", option), "leave out --slurm");
  SlurmChoice slurm{.partition = options.text("partition"),
                    .account = options.text("account"),
                    .qos = options.text("qos"),
                    .tasks = static_cast<int>(options.integer("array-tasks")),
                    .array_limit = static_cast<int>(options.integer("array-limit")),
                    .cpus_per_task = static_cast<int>(options.integer("cpus-per-task")),
                    .wait = options.flag("wait")};
  if (options.has("time")) {
    const auto time = slurm::parse_time_limit(options.text("time"));
    if (!time) return fail(ErrorCode::usage, "--time: " + time.error().what, time.error().hint);
    slurm.time_limit = *time;
  }
  choices.slurm = std::move(slurm);
  return choices;
}

}  // namespace sailor::apps::sweep
