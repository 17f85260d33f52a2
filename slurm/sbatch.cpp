#include "slurm/sbatch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "plan/placement.hpp"
#include "slurm/node_records.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

Result<void> check_absolute(std::string_view what, const std::filesystem::path& path) {
  if (path.is_absolute()) return {};
  return fail(ErrorCode::invalid_input, fmt::format("{} '{}' is not absolute", what, path.string()),
              "the job starts in another directory");
}

/// What the plan decides: an extra option may not undo it.
constexpr std::array<std::string_view, 12> decided_by_plan{
    "--nodes",         "--ntasks", "--ntasks-per-node", "--tasks-per-node", "--gpus",  "--gpus-per-node",
    "--gpus-per-task", "--gres",   "--cpus-per-task",   "--output",         "--array", "--distribution"};

Result<void> check_extra_option(const std::string& option) {
  if (!option.starts_with("--") || option.size() < 3 || option[2] == '=')
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no option of sbatch", option), "write --NAME=VALUE");
  const std::string_view name = std::string_view(option).substr(0, option.find('='));
  if (name.find_first_of(" \t'\"#") != std::string_view::npos)
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no option of sbatch", option),
                "write --NAME=VALUE, one option each");
  if (std::find(decided_by_plan.begin(), decided_by_plan.end(), name) != decided_by_plan.end())
    return fail(ErrorCode::invalid_input, fmt::format("{} is decided by the plan", name),
                "leave it out, or make another plan");
  return {};
}

Result<void> check_environment(const std::pair<std::string, std::string>& variable) {
  const auto& [name, value] = variable;
  const bool good =
      !name.empty() && (name[0] < '0' || name[0] > '9') &&
      name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  if (!good) return fail(ErrorCode::invalid_input, fmt::format("'{}' is no name of an environment variable", name));
  if (value.find('\0') != std::string::npos)
    return fail(ErrorCode::invalid_input, fmt::format("the value of {} holds a NUL byte", name));
  return {};
}

Result<void> check_request(const SbatchRequest& request) {
  SAILOR_CHECK(check_name("job name", request.job_name));
  if (!request.partition.empty()) SAILOR_CHECK(check_name("partition", request.partition));
  if (!request.account.empty()) SAILOR_CHECK(check_name("account", request.account));
  if (!request.gres_type.empty()) SAILOR_CHECK(check_name("GPU type", request.gres_type));
  SAILOR_CHECK(check_name("MPI type", request.mpi));
  SAILOR_CHECK(check_absolute("run directory", request.run_directory));
  SAILOR_CHECK(check_absolute("plan", request.plan_path));
  if (!request.log_path.empty()) SAILOR_CHECK(check_absolute("log", request.log_path));
  if (const auto& log = request.log_path.empty() ? request.run_directory : request.log_path;
      log.string().find('\\') != std::string::npos)
    return fail(ErrorCode::invalid_input, fmt::format("path '{}' holds a backslash", log.string()),
                "Slurm gives it a meaning of its own in file names; choose another directory");
  for (const std::string& option : request.extra_options) SAILOR_CHECK(check_extra_option(option));
  for (const auto& variable : request.environment) SAILOR_CHECK(check_environment(variable));
  if (request.iterations < 1)
    return fail(ErrorCode::invalid_input, fmt::format("{} iterations are nothing to run", request.iterations));
  if (request.learning_rate && (!std::isfinite(*request.learning_rate) || *request.learning_rate < 0))
    return fail(ErrorCode::invalid_input, fmt::format("learning rate {} is below 0", *request.learning_rate));
  if (request.data.empty()) return fail(ErrorCode::invalid_input, "there is no data to train on");
  std::vector<std::string> words{request.data,
                                 request.run_directory.string(),
                                 request.plan_path.string(),
                                 request.program.string(),
                                 request.models_folder.string(),
                                 request.run_file.string()};
  words.insert(words.end(), request.extra_arguments.begin(), request.extra_arguments.end());
  for (const std::string& word : words)
    if (word.find('\0') != std::string::npos)
      return fail(ErrorCode::invalid_input, "a path or argument holds a NUL byte");
  if (request.cpus_per_rank < 1)
    return fail(ErrorCode::invalid_input, fmt::format("{} CPUs per rank are too few", request.cpus_per_rank));
  return {};
}

/// In a file name sbatch replaces %j and the like; %% is a percent sign.
std::string escape_percent(const std::string& path) {
  std::string escaped;
  for (const char c : path) {
    if (c == '%') escaped += '%';
    escaped += c;
  }
  return escaped;
}

class Script {
 public:
  void comment(std::string_view text) { text_ += fmt::format("# {}\n", text); }
  void line(std::string_view text) { text_ += fmt::format("{}\n", text); }
  void blank() { text_ += '\n'; }
  /// #SBATCH --name=value
  Result<void> option(std::string_view name, std::string_view value) {
    auto quoted = sbatch_quote(name, value);
    if (!quoted) return fail(quoted.error());
    line(fmt::format("#SBATCH --{}={}", name, *quoted));
    return {};
  }
  Result<void> extra_option(const std::string& option) {
    const std::size_t equals = option.find('=');
    if (equals != std::string::npos)
      return this->option(std::string_view(option).substr(2, equals - 2), std::string_view(option).substr(equals + 1));
    auto checked = sbatch_quote("an sbatch option", option);
    if (!checked) return fail(checked.error());
    line(fmt::format("#SBATCH {}", option));
    return {};
  }
  /// A word of an array in the script, with the reason beside it.
  void word(std::string_view text, std::string_view reason = {}) {
    if (reason.empty())
      line(fmt::format("  {}", text));
    else
      line(fmt::format("  {:<36} # {}", text, reason));
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string count(int number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

Result<void> write_resources(Script& script, const Plan& plan, const SbatchRequest& request, const TaskLayout& layout) {
  script.comment("What Slurm is asked for");
  SAILOR_CHECK(script.option("job-name", request.job_name));
  if (!request.partition.empty()) SAILOR_CHECK(script.option("partition", request.partition));
  if (!request.account.empty()) SAILOR_CHECK(script.option("account", request.account));
  if (request.time_limit) SAILOR_CHECK(script.option("time", format_time_limit(*request.time_limit)));
  script.blank();
  script.comment(layout.packed ? fmt::format("{} in the plan's order: {} on each node, the rest on the last",
                                             count(plan.ranks(), "rank"), layout.tasks_per_node)
                               : fmt::format("{} in the plan's order, {} on each node", count(plan.ranks(), "rank"),
                                             layout.tasks_per_node));
  SAILOR_CHECK(script.option("nodes", std::to_string(layout.nodes)));
  SAILOR_CHECK(script.option("ntasks", std::to_string(plan.ranks())));
  SAILOR_CHECK(script.option("ntasks-per-node", std::to_string(layout.tasks_per_node)));
  SAILOR_CHECK(script.option("cpus-per-task", std::to_string(request.cpus_per_rank)));
  if (request.device_kind == DeviceKind::gpu) {
    script.comment("One GPU for each rank of a node");
    SAILOR_CHECK(script.option(
        "gpus-per-node",
        fmt::format("{}{}{}", request.gres_type, request.gres_type.empty() ? "" : ":", layout.tasks_per_node)));
  } else {
    script.comment("A rank computes on a core of its own: two hardware threads of one would halve it");
    SAILOR_CHECK(script.option("hint", "nomultithread"));
  }
  if (request.memory_per_cpu) {
    const auto mebibytes = static_cast<std::int64_t>(std::ceil(request.memory_per_cpu->value() / 0x1p20));
    script.comment("Enough for the predicted peak of a rank; the partition's default may be less");
    SAILOR_CHECK(script.option("mem-per-cpu", fmt::format("{}M", std::max<std::int64_t>(mebibytes, 1))));
  }
  script.blank();
  script.comment(
      "A minute before the time limit the ranks get SIGUSR2: sailor-train then writes its run file and ends");
  SAILOR_CHECK(script.option("signal", "USR2@60"));
  script.comment("A job that is requeued adds to its log instead of starting it anew");
  SAILOR_CHECK(script.option("open-mode", "append"));
  SAILOR_CHECK(script.option("output", request.log_path.empty()
                                           ? escape_percent((request.run_directory / "slurm-").string()) + "%j.out"
                                           : request.log_path.string()));
  if (request.extra_options.empty()) return {};
  script.blank();
  script.comment("As given on the command line of sailor-submit");
  for (const std::string& option : request.extra_options) SAILOR_CHECK(script.extra_option(option));
  return {};
}

void write_environment(Script& script, const SbatchRequest& request) {
  if (request.device_kind == DeviceKind::cpu) {
    script.comment(fmt::format("Each rank has {}: more threads than that would take turns on them",
                               count(request.cpus_per_rank, "core")));
    script.line(fmt::format("export OMP_NUM_THREADS={0} OPENBLAS_NUM_THREADS={0}", request.cpus_per_rank));
  }
  for (const auto& [name, value] : request.environment)
    script.line(fmt::format("export {}={}", name, shell_quote(value)));
  if (request.device_kind == DeviceKind::cpu || !request.environment.empty()) script.blank();
}

void write_launch(Script& script, const Plan& plan, const SbatchRequest& request, const TaskLayout& layout) {
  if (layout.packed) {
    script.comment("srun would spread the ranks evenly, and warn about this variable");
    script.line("unset SLURM_NTASKS_PER_NODE");
    script.blank();
  }
  script.line("launch=(");
  script.word("srun");
  script.word(fmt::format("--nodes={}", layout.nodes));
  script.word(fmt::format("--ntasks={}", plan.ranks()));
  if (layout.packed) {
    script.word("'--distribution=block,pack'", "neighbours in the plan share a node; fill one after the other");
  } else {
    script.word(fmt::format("--ntasks-per-node={}", layout.tasks_per_node));
    script.word("--distribution=block", "neighbours in the plan share a node");
  }
  script.word(fmt::format("--cpus-per-task={}", request.cpus_per_rank),
              "srun of Slurm 22.05 and 23.02 does not take it from the job");
  if (request.device_kind == DeviceKind::gpu) script.word("--gpus-per-task=1", "each rank sees its own GPU");
  script.word("--kill-on-bad-exit=1", "a rank that dies ends the job: the others would wait for it");
  script.word(fmt::format("--mpi={}", shell_quote(request.mpi)), "how the ranks find each other");
  script.line(")");
  script.line("train=(");
  script.word(shell_quote(request.program.string()));
  script.word(shell_quote(request.plan_path.string()));
  script.word(fmt::format("--data {}", shell_quote(request.data)));
  script.word(fmt::format("--iterations {}", request.iterations));
  if (request.run_file.empty())
    script.word("--run-file \"run-$SLURM_JOB_ID.h5\"", "times, losses and memory, for sailor-simulate --against");
  else
    script.word(fmt::format("--run-file {}", shell_quote(request.run_file.string())));
  if (!request.models_folder.empty())
    script.word(fmt::format("--models {}", shell_quote(request.models_folder.string())));
  if (request.learning_rate) script.word(fmt::format("--learning-rate {}", *request.learning_rate));
  if (request.seed) script.word(fmt::format("--seed {}", *request.seed));
  for (const std::string& argument : request.extra_arguments) script.word(shell_quote(argument));
  script.line(")");
  script.blank();
  script.line("\"${launch[@]}\" \"${train[@]}\"");
}

}  // namespace

Result<void> check_uniform(const Plan& plan) {
  std::set<std::string> gpus;
  std::set<std::string> zones;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      gpus.insert(stage.gpu);
      zones.insert(stage.zone);
    }
  const std::string hint = "choose a plan on one device type in one partition";
  if (gpus.size() > 1)
    return fail(ErrorCode::unavailable,
                fmt::format("the plan uses {} device types ({}): jobs over several are not there yet", gpus.size(),
                            fmt::join(gpus, ", ")),
                hint);
  if (zones.size() > 1)
    return fail(ErrorCode::unavailable,
                fmt::format("the plan uses {} zones or partitions ('{}'): jobs over several are not there yet",
                            zones.size(), fmt::join(zones, "', '")),
                hint);
  return {};
}

Result<TaskLayout> lay_out_tasks(const Plan& plan, int devices_per_node) {
  if (devices_per_node < 1)
    return fail(ErrorCode::invalid_input, fmt::format("{} devices per node are too few", devices_per_node));
  NodeSizes sizes;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (!sizes.has(stage.gpu, "")) sizes.add(stage.gpu, "", devices_per_node, 0);
  auto nodes = nodes_of_ranks(plan, sizes);
  if (!nodes) return fail(nodes.error());
  if (!std::is_sorted(nodes->begin(), nodes->end()))
    return fail(ErrorCode::unavailable,
                fmt::format("tensor-parallel groups of different sizes would fill nodes of {} with ranks that do not "
                            "follow each other: srun cannot place such plans yet",
                            count(devices_per_node, "device")),
                "choose a plan with one tensor parallelism, or use fewer devices with --devices-per-node N");
  std::vector<int> ranks_on;  // by node
  for (const int node : *nodes) {
    ranks_on.resize(std::max(ranks_on.size(), static_cast<std::size_t>(node) + 1), 0);
    ++ranks_on[static_cast<std::size_t>(node)];
  }
  const int most = ranks_on.front();
  const bool full = std::all_of(ranks_on.begin(), ranks_on.end() - 1, [&](int ranks) { return ranks == most; });
  if (!full || ranks_on.back() > most)
    return fail(
        ErrorCode::unavailable,
        fmt::format("nodes of {} would hold {} ranks, since a tensor-parallel group stays on one node: srun cannot "
                    "place such plans yet",
                    count(devices_per_node, "device"), fmt::join(ranks_on, ", ")),
        "choose a plan whose tensor parallelism divides the devices of a node, or use fewer of them with "
        "--devices-per-node N");
  return TaskLayout{static_cast<int>(ranks_on.size()), most, ranks_on.back() != most};
}

Result<std::string> sbatch_script(const Plan& plan, const Model& model, const SbatchRequest& request) {
  SAILOR_CHECK(check_plan(plan, model));
  SAILOR_CHECK(check_uniform(plan));
  SAILOR_CHECK(check_request(request));
  auto layout = lay_out_tasks(plan, request.devices_per_node);
  if (!layout) return fail(layout.error());

  Script script;
  script.line("#!/bin/bash");
  script.comment("Written by sailor-submit. To run it again: sbatch THIS_FILE");
  script.comment("The plan: " + printable(describe(plan)));
  script.blank();
  SAILOR_CHECK(write_resources(script, plan, request, *layout));
  script.blank();
  script.comment("Any error ends the job, with its own exit status");
  script.line("set -euo pipefail");
  script.comment("If a node does not see the run directory, fail here: Slurm itself would go on in /tmp");
  script.line(fmt::format("cd -- {}", shell_quote(request.run_directory.string())));
  script.blank();
  write_environment(script, request);
  write_launch(script, plan, request, *layout);
  return script.take();
}

}  // namespace sailor::slurm
