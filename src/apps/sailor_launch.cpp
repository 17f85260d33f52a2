// sailor-launch: stands between srun and a program, once per task. It finds the task's place in a plan, as the SPANK
// plugin does for those who have it, sets the environment, keeps the task to its cores and becomes the program. When
// the allocation is not what the plan needs, every task ends before the program starts: exit 1.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "apps/options.hpp"
#include "core/log.hpp"
#include "slurm/task_role.hpp"

namespace sailor::apps {

namespace {

CommandLine command_line() {
  return {
      .program = "sailor-launch",
      .purpose = "gives each task of a job step its place in a plan, then runs a program",
      .positionals = {{.name = "COMMAND",
                       .help = "program and arguments, after '--'; none: print the place of each task",
                       .required = false,
                       .repeatable = true}},
      .options = {{.name = "plan",
                   .value_name = "FILE",
                   .help = "plan file (plan.toml); must be readable on the nodes"},
                  shared::gpus_file()},
      .examples = {{"srun -n 2 sailor-launch --plan plan.toml", "which task would be which rank of the plan"},
                   {"srun --mpi=pmix -n 2 sailor-launch --plan plan.toml -- sailor-train plan.toml --data corpus "
                    "--iterations 100",
                    "train with every rank where the plan wants it"}},
      .notes =
          "Checks that the job step has the plan's number of tasks, on nodes of its GPU types (as far as slurm.conf\n"
          "says), with room for every tensor-parallel group. A task gets SAILOR_RANK, SAILOR_RANKS, SAILOR_PIPELINE,\n"
          "SAILOR_STAGE, SAILOR_TENSOR_PARALLEL_INDEX and SAILOR_LOCAL_RANK, one GPU in CUDA_VISIBLE_DEVICES if it\n"
          "sees several, and its share of the cores if Slurm did not bind it (SLURM_CPU_BIND=none: never).\n",
      .one_per_rank = true};
}

std::string value_of(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

/// All tasks see the same problem: one tells it. The others wait for it: where a task that fails ends the step
/// (--kill-on-bad-exit), the first to leave would take the message with it.
[[noreturn]] void fail_silently(const Error& error) {
  static volatile std::sig_atomic_t status;
  status = exit_status(error.code);
  std::signal(SIGTERM, [](int) { std::_Exit(status); });  // the step ends: with our status, not the signal's
  std::this_thread::sleep_for(std::chrono::seconds(3));
  std::exit(status);
}

/// What went wrong on this node is told by its first task; what all tasks see alike by the first of all.
tl::unexpected<Error> fail_once(const Error& error, const Environment& environment, const char* teller) {
  if (const std::string number = value_of(environment, teller); !number.empty() && number != "0") fail_silently(error);
  return fail(error);
}

/// A message of a node names it.
std::string on_node(const Environment& environment) {
  const std::string node = value_of(environment, "SLURMD_NODENAME");
  return node.empty() ? node : "node " + node;
}

[[nodiscard]] tl::unexpected<Error> become(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::fflush(stdout);
  ::execvp(arguments.front(), arguments.data());
  return fail(ErrorCode::failure, fmt::format("cannot start '{}': {}", command.front(), std::strerror(errno)),
              "is it installed on the nodes, and in PATH?");
}

Result<void> run(const Options& options, const Environment& environment) {
  const std::vector<std::string>& command = options.positional("COMMAND");
  if (!options.has("plan"))
    return fail_once(Error{ErrorCode::usage, "no plan is named", "use --plan FILE"}, environment, "SLURM_PROCID");
  const std::filesystem::path path = std::filesystem::absolute(options.text("plan"));
  const auto plan = load_plan(path);
  if (!plan) return fail_once(fail(plan.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  if (auto good = check_plan(*plan); !good)
    return fail_once(fail(good.error(), path.string()).value(), environment, "SLURM_PROCID");
  const slurm::Lookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
  // The plugin has done all this for this very task, and not for one whose environment came along.
  const bool placed = value_of(environment, "SAILOR_PLAN_FINGERPRINT") == plan_fingerprint(*plan) &&
                      !value_of(environment, "SAILOR_RANK").empty() &&
                      value_of(environment, "SAILOR_STEP") == slurm::step_name(lookup);
  if (placed && !command.empty()) return become(command);

  auto step = slurm::read_step(lookup);
  if (!step) return fail_once(step.error(), environment, "SLURM_PROCID");
  if (const auto configuration = slurm::configuration_file(lookup))
    if (auto known = slurm::add_node_facts(*step, *configuration); !known)
      spdlog::debug("GPU types of the nodes are not known: {}", known.error().message());
  const auto gpus = GpuCatalogue::load(gpus_file(options, environment));
  if (!gpus) return fail_once(fail(gpus.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  const auto task = slurm::find_role(*plan, *step, &*gpus);
  if (!task) return fail_once(fail(task.error(), path.string()).value(), environment, "SLURM_PROCID");
  const auto variables = slurm::role_environment(*task, *plan, path, lookup);
  if (!variables) return fail_once(fail(variables.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  if (command.empty()) {
    fmt::print("{}\n", slurm::describe(*task, *step));
    return {};
  }
  spdlog::debug("{}", slurm::describe(*task, *step));
  for (const auto& [name, value] : *variables) ::setenv(name.c_str(), value.c_str(), 1);
  const std::vector<int> allowed = slurm::allowed_cores();
  if (const std::vector<int> own = slurm::cores_of_task(*task, allowed, lookup); own != allowed)
    if (!slurm::bind_to_cores(own)) spdlog::warn("cannot keep {} to its cores", slurm::describe(*task, *step));
  return become(command);
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, sailor::apps::command_line(), sailor::apps::run);
}
