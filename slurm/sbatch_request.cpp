#include "slurm/sbatch_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "slurm/node_records.hpp"
#include "slurm/reservations.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

Result<void> check_absolute(std::string_view what, const std::filesystem::path& path) {
  if (path.is_absolute()) return {};
  return fail(ErrorCode::invalid_input, fmt::format("{} '{}' is not absolute", what, path.string()),
              "the job starts in another directory");
}

/// The run directory is also in the name of the log, on an #SBATCH line.
Result<void> check_run_directory(const std::filesystem::path& path) {
  SAILOR_CHECK(check_absolute("run directory", path));
  const std::string text = path.string();
  if (std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) return {};
  return fail(
      ErrorCode::invalid_input,
      fmt::format("run directory '{}' holds a newline, a tab or another control character, which cannot stand in the "
                  "name of the job's log",
                  printable(text)),
      "choose another one with --run-directory DIR");
}

/// Options that the plan or sailor-submit decides: an extra option may not override them.
constexpr std::array<std::string_view, 21> decided_by_plan{"--nodes",
                                                           "--ntasks",
                                                           "--ntasks-per-node",
                                                           "--tasks-per-node",
                                                           "--gpus",
                                                           "--gpus-per-node",
                                                           "--gpus-per-task",
                                                           "--gres",
                                                           "--cpus-per-task",
                                                           "--output",
                                                           "--array",
                                                           "--distribution",
                                                           "--sailor-plan",
                                                           "--ntasks-per-gpu",
                                                           "--ntasks-per-core",
                                                           "--ntasks-per-socket",
                                                           "--gpus-per-socket",
                                                           "--signal",
                                                           "--wrap",
                                                           "--test-only",
                                                           "--open-mode"};

/// Variables of sbatch for what every script decides or relies on.
constexpr std::array<const char*, 28> decided_variables{
    "SBATCH_PARTITION",     "SBATCH_RESERVATION",      "SBATCH_TIMELIMIT",     "SBATCH_CLUSTERS",
    "SLURM_CLUSTERS",       "SBATCH_ARRAY_INX",        "SBATCH_JOB_NAME",      "SBATCH_OUTPUT",
    "SBATCH_ERROR",         "SBATCH_OPEN_MODE",        "SBATCH_EXPORT",        "SBATCH_SIGNAL",
    "SBATCH_REQUEUE",       "SBATCH_NO_REQUEUE",       "SBATCH_DISTRIBUTION",  "SBATCH_GRES",
    "SBATCH_GPUS",          "SBATCH_GPUS_PER_NODE",    "SBATCH_GPUS_PER_TASK", "SBATCH_CPUS_PER_GPU",
    "SBATCH_TRES_PER_TASK", "SBATCH_THREADS_PER_CORE", "SBATCH_CORE_SPEC",     "SBATCH_THREAD_SPEC",
    "SBATCH_OVERCOMMIT",    "SBATCH_USE_MIN_NODES",    "SBATCH_SPREAD_JOB",    "SBATCH_WAIT"};

Result<void> check_extra_option(const std::string& option) {
  if (!option.starts_with("--") || option.size() < 3 || option[2] == '=')
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no option of sbatch", option), "write --NAME=VALUE");
  const std::string_view name = std::string_view(option).substr(0, option.find('='));
  if (name.find_first_of(" \t'\"#") != std::string_view::npos)
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no option of sbatch", option),
                "write --NAME=VALUE, one option each");
  // sbatch accepts abbreviated names of options.
  if (std::any_of(decided_by_plan.begin(), decided_by_plan.end(),
                  [&](std::string_view decided) { return decided.starts_with(name); }))
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

Result<void> check_nodes(const NodeRequest& nodes) {
  for (const std::string& partition : split(nodes.partition, ',')) SAILOR_CHECK(check_name("partition", partition));
  if (!nodes.gres_type.empty()) SAILOR_CHECK(check_name("GPU type", nodes.gres_type));
  if (nodes.devices_per_node < 1)
    return fail(ErrorCode::invalid_input, fmt::format("{} devices per node are too few", nodes.devices_per_node));
  if (nodes.cpus_per_rank < 1)
    return fail(ErrorCode::invalid_input, fmt::format("{} CPUs per rank are too few", nodes.cpus_per_rank));
  return {};
}

Result<void> check_framework(const SbatchRequest& request) {
  const FrameworkProgram& program = *request.framework;
  if (program.command.empty() || program.command.front().empty())
    return fail(ErrorCode::invalid_input, fmt::format("there is no program of {} to run", program.framework),
                "name it behind '--'");
  SAILOR_CHECK(check_absolute("directory of the program", program.directory));
  if (program.port && (*program.port < 1024 || *program.port > 65535))
    return fail(ErrorCode::invalid_input, fmt::format("{} is no TCP port of a user's program", *program.port),
                "use one from 1024 to 65535");
  if (request.placer != Placer::launcher)
    return fail(ErrorCode::invalid_input,
                fmt::format("the variables by which {} finds its ranks come from sailor-launch", program.framework),
                "let it place the ranks: --placer launcher");
  if (!request.array.empty() || request.elastic || !request.checkpoints.empty())
    return fail(ErrorCode::invalid_input,
                fmt::format("job arrays, elastic trainings and checkpoints are for sailor-train, not for {}",
                            program.framework));
  return {};
}

}  // namespace

std::vector<std::string> overriding_variables(const SbatchRequest& request,
                                              const std::map<std::string, std::string>& environment) {
  std::vector<std::string> found;
  const auto look_for = [&](const char* variable) {
    if (environment.contains(variable)) found.emplace_back(variable);
  };
  for (const char* variable : decided_variables) look_for(variable);
  const auto any_node = [&](auto&& is) { return std::any_of(request.nodes.begin(), request.nodes.end(), is); };
  const bool memory = any_node(
      [](const NodeRequest& nodes) { return nodes.memory_per_cpu || nodes.memory_per_rank || nodes.memory_per_node; });
  const bool hint = any_node([](const NodeRequest& nodes) { return nodes.device_kind == DeviceKind::cpu; });
  const auto said = [&](std::string_view option) {
    return std::any_of(request.extra_options.begin(), request.extra_options.end(), [&](const std::string& extra) {
      return std::string_view(extra).substr(0, extra.find('=')) == option;
    });
  };
  struct Open {
    const char* variable;
    bool given;
  };
  for (const auto& [variable, given] :
       {Open{"SBATCH_ACCOUNT", !request.account.empty() || said("--account")},
        Open{"SBATCH_QOS", !request.qos.empty() || said("--qos")},
        Open{"SBATCH_CONSTRAINT", !request.constraint.empty() || said("--constraint")},
        Open{"SBATCH_EXCLUSIVE", request.exclusive || said("--exclusive")},
        Open{"SBATCH_MEM_PER_CPU", memory || said("--mem-per-cpu")},
        Open{"SBATCH_MEM_PER_GPU", memory || said("--mem-per-gpu")},
        Open{"SBATCH_MEM_PER_NODE", memory || said("--mem")}, Open{"SBATCH_HINT", hint || said("--hint")},
        Open{"SLURM_HINT", hint || said("--hint")}, Open{"SBATCH_NETWORK", said("--network")},
        Open{"SBATCH_WCKEY", said("--wckey")}})
    if (given) look_for(variable);
  return found;
}

Seconds stop_lead_of(const SbatchRequest& request) {
  if (request.stop_lead) return *request.stop_lead;
  // Most of a short job should be training.
  const Seconds usual(request.checkpoints.empty() ? 60.0 : 180.0);
  return request.time_limit ? std::clamp(*request.time_limit / 4.0, Seconds(1.0), usual) : usual;
}

Result<void> check_request(const Plan& plan, const SbatchRequest& request) {
  SAILOR_CHECK(check_name("job name", request.job_name));
  if (const std::size_t kinds = kinds_of(plan).size(); kinds != request.nodes.size())
    return fail(ErrorCode::invalid_input, fmt::format("the plan has {} of device but {} of nodes are described",
                                                      plural(kinds, "kind"), plural(request.nodes.size(), "kind")));
  for (const NodeRequest& nodes : request.nodes) SAILOR_CHECK(check_nodes(nodes));
  if (!request.account.empty()) SAILOR_CHECK(check_name("account", request.account));
  if (!request.reservation.empty()) SAILOR_CHECK(check_reservation_name(request.reservation));
  if (!request.qos.empty()) SAILOR_CHECK(check_name("QOS", request.qos));
  if (!request.licenses.empty()) SAILOR_CHECK(parse_licenses(request.licenses));
  SAILOR_CHECK(check_name("MPI type", request.mpi));
  if (request.continuation != Continuation::none && request.checkpoints.empty())
    return fail(ErrorCode::invalid_input, "a job without checkpoints cannot go on after it was stopped",
                "keep checkpoints with --checkpoints FOLDER");
  constexpr Seconds longest_lead(65535.0);  // sbatch --signal
  if (request.stop_lead && (*request.stop_lead < Seconds(1) || *request.stop_lead > longest_lead))
    return fail(ErrorCode::invalid_input,
                fmt::format("a signal {:g} s before the time limit is impossible", request.stop_lead->value()),
                "Slurm takes 1 to 65535 s");
  if (request.stop_lead && request.time_limit && *request.stop_lead >= *request.time_limit)
    return fail(ErrorCode::invalid_input,
                fmt::format("the signal would come {:g} s before the end of a job of {:g} s: it would never train",
                            request.stop_lead->value(), request.time_limit->value()),
                "use a larger --time, or a smaller --stop-lead");
  if (request.spare_nodes > 0 && !request.check_nodes)
    return fail(ErrorCode::invalid_input, "spare nodes are for those that a check finds unfit",
                "check them with --check");
  SAILOR_CHECK(check_run_directory(request.run_directory));
  if (request.array.empty()) SAILOR_CHECK(check_absolute("plan", request.plan_path));
  for (const ArrayTask& task : request.array) SAILOR_CHECK(check_absolute("run directory", task.directory));
  if (!request.array.empty() && (request.placer == Placer::plugin || request.checkpoints.is_absolute() ||
                                 request.checkpoints.lexically_normal().string().starts_with("..")))
    return fail(ErrorCode::invalid_input,
                request.placer == Placer::plugin
                    ? "the plugin takes one plan for a job, and an array has several"
                    : fmt::format("the tasks of an array would all write into '{}'", request.checkpoints.string()),
                request.placer == Placer::plugin ? "let sailor-launch place the ranks"
                                                 : "name a folder relative to the run directories");
  if (!request.log_path.empty()) SAILOR_CHECK(check_absolute("log", request.log_path));
  if (const auto& log = request.log_path.empty() ? request.run_directory : request.log_path;
      log.string().find('\\') != std::string::npos)
    return fail(ErrorCode::invalid_input, fmt::format("path '{}' holds a backslash", log.string()),
                "Slurm gives it a meaning of its own in file names; choose another directory");
  for (const std::string& option : request.extra_options) SAILOR_CHECK(check_extra_option(option));
  for (const auto& variable : request.environment) SAILOR_CHECK(check_environment(variable));
  if (request.framework) SAILOR_CHECK(check_framework(request));
  if (!request.framework && request.iterations < 1)
    return fail(ErrorCode::invalid_input, fmt::format("{} iterations are nothing to run", request.iterations));
  if (request.learning_rate && (!std::isfinite(*request.learning_rate) || *request.learning_rate < 0))
    return fail(ErrorCode::invalid_input, fmt::format("learning rate {} is below 0", *request.learning_rate));
  if (!request.framework && request.data.empty()) return fail(ErrorCode::invalid_input, "there is no data to train on");
  std::vector<std::string> words{request.data,
                                 request.run_directory.string(),
                                 request.plan_path.string(),
                                 request.program.string(),
                                 request.launcher.string(),
                                 request.checker.string(),
                                 request.models_folder.string(),
                                 request.gpus_file.string(),
                                 request.checkpoints.string(),
                                 request.run_file.string()};
  for (const ArrayTask& task : request.array) words.push_back(task.directory.string());
  if (request.framework) {
    const FrameworkProgram& program = *request.framework;
    words.insert(words.end(), program.command.begin(), program.command.end());
    words.push_back(program.directory.string());
  }
  words.insert(words.end(), request.extra_arguments.begin(), request.extra_arguments.end());
  words.insert(words.end(), request.srun_options.begin(), request.srun_options.end());
  words.insert(words.end(), request.checker_arguments.begin(), request.checker_arguments.end());
  for (const std::string& word : words)
    if (word.find('\0') != std::string::npos)
      return fail(ErrorCode::invalid_input, "a path or argument holds a NUL byte");
  return {};
}

}  // namespace sailor::slurm
